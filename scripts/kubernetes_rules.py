"""Write observability/rules.yml as a PrometheusRule of one namespace; a test fails if that is out of date.

.venv/bin/python -P scripts/kubernetes_rules.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
RULES: Final = ROOT / "observability" / "rules.yml"
MADE: Final = ROOT / "deploy" / "kubernetes" / "components" / "monitoring" / "rules.yaml"
NAMESPACE: Final = "gourmetgram"
HEAD: Final = "# Written by scripts/kubernetes_rules.py from observability/rules.yml: change that file.\n"
# Metrics of servers, and figures that the rules record.
_FIGURE: Final = re.compile(r"(\b(?:nv_|web_|(?:model|web|route|replica):)[\w:]*|\bup\b)({)?")


def scoped(rule: dict[str, Any]) -> dict[str, Any]:
    """Restrict a rule to the metrics of the namespace's own servers."""
    own = f'{{namespace="{NAMESPACE}"'
    expr = _FIGURE.sub(lambda match: f"{match[1]}{own}{',' if match[2] else '}'}", rule["expr"])
    labels = {"namespace": NAMESPACE} | rule.get("labels", {})
    return rule | {"expr": " ".join(expr.split()), "labels": labels}


def made() -> str:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    spec = {"groups": [group | {"rules": [scoped(rule) for rule in group["rules"]]} for group in groups]}
    # By the label `release` a Prometheus of the chart kube-prometheus-stack finds it.
    metadata = {"name": "gourmetgram", "labels": {"release": "kube-prometheus-stack"}}
    rules = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata}
    return HEAD + yaml.safe_dump(rules | {"spec": spec}, sort_keys=False, width=120)


if __name__ == "__main__":
    MADE.write_text(made())
