"""The rules and the dashboard, by Prometheus' own tool: Debian's package `prometheus` brings it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from support.needs import need

FOLDER = Path(__file__).parents[2] / "observability"
RULES = yaml.safe_load((FOLDER / "rules.yml").read_text())
DASHBOARD = json.loads((FOLDER / "grafana" / "dashboards" / "gourmetgram.json").read_text())


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [need("promtool", "prometheus"), *arguments], cwd=FOLDER, capture_output=True, text=True
    )


def questions() -> dict[str, str]:
    """Every expression of the dashboard, by panel and letter."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    }


def test_prometheus_can_read_its_config() -> None:
    ran = promtool("check", "config", "prometheus.yml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_the_alerts_pass_their_promtool_tests() -> None:
    ran = promtool("test", "rules", "rules.test.yml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_dashboards_questions_can_be_parsed_and_use_known_figures(tmp_path: Path) -> None:
    recorded = {rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule}
    used = set(re.findall(r"\b(?:model|web|route|replica):[\w:]+", " ".join(questions().values())))
    assert used <= recorded
    recordings = [
        {"record": f"question:{number}", "expr": expr} for number, expr in enumerate(questions().values())
    ]
    file = tmp_path / "questions.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "questions", "rules": recordings}]}))
    ran = promtool("check", "rules", str(file))
    assert ran.returncode == 0, ran.stdout + ran.stderr
