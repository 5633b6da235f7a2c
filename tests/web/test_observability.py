"""A real Prometheus asks the real app and the real Triton, by the shipped rules and for the dashboard."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.needs import need
from support.nginx import Nginx, nginx
from support.triton import run_triton, some_models
from support.up import Up
from support.web_app import Site

from gourmet.stack.preflight import free_ports
from gourmet.stack.processes import http_ok, wait_until
from gourmet.systems.digits import contract as digits

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "observability"
# They have an answer only where something failed, or where there is a GPU.
MAY_BE_EMPTY = {"Failures", "GPUs", "Refused because of a limit", "Errors by code"}

JPEG = {"Content-Type": "image/jpeg"}
Ask = Callable[[str], list[dict[str, Any]]]


@contextlib.contextmanager
def prometheus(
    folder: Path, metrics_port: int, web_port: int, rules: str, proxy_port: int = 0
) -> Iterator[Ask]:
    """Puts a question to a real one, by the shipped config, that asks these every second."""
    program = need("prometheus")
    (folder / "rules.yml").write_text(rules)
    config = (FOLDER / "prometheus.yml").read_text().replace(": 10s", ": 1s")
    config = config.replace("triton:8002", f"127.0.0.1:{metrics_port}")
    config = config.replace("proxy:8081", f"127.0.0.1:{proxy_port or web_port}")
    (folder / "prometheus.yml").write_text(config.replace("flask:5000", f"127.0.0.1:{web_port}"))
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], cwd=folder, stdout=log, stderr=log
        )

    def query(expression: str) -> list[dict[str, Any]]:
        words = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{url}/api/v1/query?{words}", timeout=60) as answer:
            reply = json.load(answer)
        assert reply["status"] == "success", reply
        results: list[dict[str, Any]] = reply["data"]["result"]
        return results

    try:
        wait_until(lambda: http_ok(f"{url}/-/ready"), 120, "Prometheus was not ready")
        yield query
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def ask(
    python_web: Any, triton: Any, sample: bytes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ask]:
    """A Prometheus that has seen some photos answered, and a text."""
    folder, rules = tmp_path_factory.mktemp("prometheus"), (FOLDER / "rules.yml").read_text()
    with prometheus(folder, triton.options.metrics_port, python_web.port, rules) as query:

        def seen() -> bool:
            assert python_web.predict(sample).status == 200
            text = json.dumps({"text": "Я люблю чай.", "stream": True})
            kind = {"Content-Type": "application/json"}
            assert python_web.request("POST", "/api/v1/translate", text, **kind).status == 200
            time.sleep(0.2)
            figures = ("web:errors:share5m", "model:triton_queue_seconds:mean2m")
            counts = ("generation_begun_total", "translator_first_piece_seconds_count")
            return all(map(query, (*figures, *(f"rate({name}[2m]) > 0" for name in counts))))

        wait_until(seen, 120, "Prometheus saw no photo answered")
        yield query


FAILING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("not today", pb_utils.TritonError.{code})
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""
CONFIG = """
backend: "python" max_batch_size: 8
input {{ name: "image" data_type: TYPE_UINT8 dims: [ 224, 224, 3 ] }}
output {{ name: "probabilities" data_type: TYPE_FP32 dims: [ 11 ] }}
instance_group {{ kind: KIND_CPU }}
parameters {{ key: "system" value: {{ string_value: "food11" }} }}
"""


def test_a_model_that_fails_every_request_fires_the_alert_though_triton_counts_successes(
    start: Any, sample: bytes, tmp_path: Path
) -> None:
    """By the shipped rules, in seconds in place of minutes."""
    models = some_models(tmp_path / "models", "food_classifier_onnx")
    for code in ("INTERNAL", "INVALID_ARG"):
        folder = models / code.lower()
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(FAILING.format(code=code))
        (folder / "config.pbtxt").write_text(CONFIG.format())
    rules = (FOLDER / "rules.yml").read_text().replace("for: 5m", "for: 2s").replace("[5m]", "[20s]")
    for triton in run_triton(models):
        web = start(triton.http_url, FOOD11_MODEL_NAME="food_classifier_onnx")
        with prometheus(tmp_path, triton.options.metrics_port, web.port, rules) as query:

            def fires(web: Any = web, query: Ask = query) -> bool:
                """Bad photos do not count as failures of a model."""
                statuses = {
                    model: web.request("POST", f"/api/v1/classify?model={model}", photo, **JPEG).status
                    for model, photo in (
                        ("internal", sample),
                        ("invalid_arg", sample),
                        ("food_classifier_onnx", sample),
                        ("food_classifier_onnx", b"no photo"),
                    )
                }
                assert statuses["internal"] == 502, statuses
                time.sleep(0.2)
                firing = query('ALERTS{alertname="ModelFails",alertstate="firing"}')
                return {series["metric"]["model"] for series in firing} == {"internal", "invalid_arg"}

            wait_until(fires, 60, "the alert does not fire")
            counted = query('sum by (model) (nv_inference_request_failure{model="internal"})')
            assert [series["value"][1] for series in counted] == ["0"]
            (successes,) = query('sum by (model) (nv_inference_request_success{model="internal"})')
            assert int(successes["value"][1]) > 5


# The shipped rules in seconds: their windows, and for how long something has to be so.
SHORTER = {
    **{"for: 2m": "for: 12s", "for: 30s": "for: 3s"},
    **{"[1m]": "[5s]", "[2m]": "[10s]", "[5m]": "[25s]", "[15m:1m]": "[75s:5s]", "[1h]": "[120s]"},
}
KEY = {"gourmet_admin_key": "of-the-tests-of-alerts"}
ANSWERS = "food_classifier_onnx"
DIGIT = digits.SYSTEM.sample()


@dataclass
class Watched:
    """`gourmet up` behind nginx, and a Prometheus with the shipped rules."""

    up: Up
    nginx: Nginx
    site: Site
    query: Ask

    def firing(self, name: str) -> list[dict[str, str]]:
        return [alert["metric"] for alert in self.query(f'ALERTS{{alertname="{name}",alertstate="firing"}}')]

    def has_answered(self, photo: bytes) -> bool:
        time.sleep(0.05)
        with contextlib.suppress(OSError):
            return self.site.predict(photo).status == 200
        return False

    def have_triton(self, what: str) -> None:
        """Have it load or unload the page's model."""
        path = f"/v2/repository/models/{ANSWERS}/{what}"
        assert Site(self.up.http).request("POST", path, "{}", **KEY).status == 200


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, sample: bytes) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    models = some_models(folder / "models", "food_classifier_onnx", "digits")
    rules = (FOLDER / "rules.yml").read_text()
    for usual, shorter in SHORTER.items():
        assert usual in rules
        rules = rules.replace(usual, shorter)
    env = {"FOOD11_MODEL_NAME": ANSWERS, "TRITON_ADMIN_KEY": KEY["gourmet_admin_key"]}
    up = Up("--model-repository", str(models), tmp=folder, env=env)
    try:
        up.wait_for("ready after")
        (folder / "nginx").mkdir()
        with (
            nginx(up.port, folder / "nginx") as front,
            prometheus(folder, up.metrics, up.port, rules, front.of_observers) as query,
        ):
            stack = Watched(up, front, Site(front.port), query)
            wait_until(lambda: len(query("up == 1")) == 3, 60, "not all are asked")
            known = "web:errors:share1h == 0 and web:errors:share1m == 0"
            wait_until(lambda: stack.has_answered(sample) and bool(query(known)), 60, "no photo was answered")
            yield stack
    finally:
        up.stop()


def test_errors_that_last_fire_an_alert_and_it_ends_with_them(watched: Watched, sample: bytes) -> None:
    """The rule's own tests, in observability/rules.test.yml, show that a short burst fires nothing."""

    def fires() -> bool:
        watched.site.predict(sample)
        time.sleep(0.05)
        return bool(watched.firing("WebErrors"))

    watched.have_triton("unload")
    wait_until(fires, 180, "the alert does not fire")
    wait_until(lambda: bool(watched.firing("NotReady")), 180, "nobody is told that the model is not ready")
    assert [alert["system"] for alert in watched.firing("NotReady")] == ["food11"]
    watched.have_triton("load")
    wait_until(lambda: not fires(), 180, "the alert does not end")
    wait_until(lambda: not watched.firing("NotReady"), 180, "it is ready again")


def test_repeated_restarts_fire_an_alert(watched: Watched, sample: bytes) -> None:
    expression = 'count(nv_inference_request_success{job="triton"} > 0) == 2'
    for restarts in (1, 2, 3):
        # The web app's own probes ask both models, and Prometheus saw it.
        wait_until(lambda: bool(watched.query(expression)), 60, "the models are not asked")
        # Then more than the probes of the next start, so that the counters fall.
        for _ in range(6):
            wait_until(lambda: watched.has_answered(sample), 60, "no photo was answered")
            watched.site.request("POST", "/api/v1/digits", DIGIT, **{"Content-Type": "image/png"})
        wait_until(
            lambda: bool(watched.query(expression.replace("> 0", "> 5"))), 60, "Prometheus did not see it"
        )
        os.kill(watched.up.triton_pid(), signal.SIGKILL)
        fell = f'count(resets(nv_inference_request_success{{job="triton"}}[15m]) >= {restarts}) == 2'
        wait_until(lambda fell=fell: bool(watched.query(fell)), 120, "Triton was not started again")
    wait_until(lambda: bool(watched.firing("Restarts")), 60, "the alert does not fire")
    assert {alert["job"] for alert in watched.firing("Restarts")} == {"triton"}


def test_a_dead_nginx_fires_an_alert(watched: Watched) -> None:
    wait_until(lambda: not watched.firing("Away"), 60, "all is well")
    watched.nginx.process.terminate()  # killed, its workers would go on
    wait_until(lambda: bool(watched.firing("Away")), 60, "the alert does not fire")
    assert {alert["job"] for alert in watched.firing("Away")} == {"proxy"}


def test_prometheus_scrapes_triton_the_web_app_and_the_proxy(ask: Ask) -> None:
    states = {series["metric"]["job"]: series["value"][1] for series in ask("up")}
    assert states == {"triton": "1", "web": "1", "proxy": "1"}
    assert ask('{job="proxy",__name__!~"up|scrape_.*|ALERTS.*"}') == []


def test_the_recording_rules_have_plausible_values(ask: Ask) -> None:
    (queue,) = ask('model:triton_queue_seconds:mean2m{model="food_classifier"}')
    assert 0 <= float(queue["value"][1]) < 10
    (batch,) = ask('model:triton_batch_rows:mean2m{model="food_classifier"}')
    assert 1 <= float(batch["value"][1]) <= 16
    (errors,) = ask("web:errors:share5m")
    assert 0 <= float(errors["value"][1]) <= 1
    assert "/predict" in {series["metric"]["route"] for series in ask("route:web_seconds:p95_5m")}


def test_every_panel_of_the_dashboard_has_data(ask: Ask) -> None:
    dashboard = json.loads((FOLDER / "grafana" / "dashboards" / "gourmetgram.json").read_text())
    empty = [
        f"{panel['title']}: {target['expr']}"
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        if not ask(target["expr"]) and panel["title"] not in MAY_BE_EMPTY
    ]
    assert empty == []
