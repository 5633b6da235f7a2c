"""A real Prometheus asks the real app and the real Triton, by the shipped rules and for the dashboard."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gourmet.serving.preflight import free_ports
from gourmet.serving.waiting import http_ok, wait_until

FOLDER = Path(__file__).parents[2] / "observability"
# They have an answer only where something failed, or where there is a GPU.
MAY_BE_EMPTY = {"Failures", "GPUs", "Refused for too much", "Errors by code"}

Ask = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ask(
    python_web: Any, triton: Any, sample: bytes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ask]:
    """Puts a question to a Prometheus that has seen some photos answered."""
    if not shutil.which("prometheus"):
        pytest.skip("no prometheus here: Debian's package prometheus brings it")
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copy(FOLDER / "rules.yml", folder)
    config = (FOLDER / "prometheus.yml").read_text().replace(": 10s", ": 1s")
    config = config.replace("triton:8002", f"127.0.0.1:{triton.options.metrics_port}")
    (folder / "prometheus.yml").write_text(config.replace("flask:5000", f"127.0.0.1:{python_web.port}"))
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], cwd=folder, stdout=log, stderr=log
        )

    def query(expression: str) -> list[dict[str, Any]]:
        words = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{url}/api/v1/query?{words}", timeout=10) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        results: list[dict[str, Any]] = found["data"]["result"]
        return results

    try:
        wait_until(lambda: http_ok(f"{url}/-/ready"), 120, "Prometheus was not ready")

        def seen() -> bool:
            assert python_web.predict(sample).status == 200
            time.sleep(0.2)
            return bool(query("web:errors:share5m") and query("model:triton_queue_seconds:mean2m"))

        wait_until(seen, 120, "Prometheus saw no photo answered")
        yield query
    finally:
        process.terminate()
        process.wait(20)


def test_both_servers_are_asked(ask: Ask) -> None:
    assert {one["metric"]["job"]: one["value"][1] for one in ask("up")} == {"triton": "1", "web": "1"}


def test_the_figures_are_those_of_the_models(ask: Ask) -> None:
    (queue,) = ask('model:triton_queue_seconds:mean2m{model="food_classifier"}')
    assert 0 <= float(queue["value"][1]) < 10
    (batch,) = ask('model:triton_batch_rows:mean2m{model="food_classifier"}')
    assert 1 <= float(batch["value"][1]) <= 16
    (errors,) = ask("web:errors:share5m")
    assert 0 <= float(errors["value"][1]) <= 1
    assert "/predict" in {one["metric"]["route"] for one in ask("route:web_seconds:p95_5m")}


def test_every_panel_of_the_dashboard_has_something_to_show(ask: Ask) -> None:
    dashboard = json.loads((FOLDER / "grafana" / "dashboards" / "gourmetgram.json").read_text())
    empty = [
        f"{panel['title']}: {target['expr']}"
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        if not ask(target["expr"]) and panel["title"] not in MAY_BE_EMPTY
    ]
    assert empty == []
