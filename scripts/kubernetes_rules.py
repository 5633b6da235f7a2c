"""Write observability/rules.yml as a PrometheusRule; a test says where that is out of date.

.venv/bin/python -P scripts/kubernetes_rules.py
"""

from __future__ import annotations

import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
RULES = ROOT / "observability" / "rules.yml"
MADE = ROOT / "deploy" / "kubernetes" / "components" / "monitoring" / "rules.yaml"
HEAD = """\
# Written by scripts/kubernetes_rules.py out of observability/rules.yml: change that.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gourmetgram
  labels: { release: kube-prometheus-stack }
spec:
"""


def made() -> str:
    _, groups, rest = RULES.read_text().partition("groups:\n")
    return HEAD + textwrap.indent(groups + rest, "  ")


if __name__ == "__main__":
    MADE.write_text(made())
