"""What is seen of the real app and Triton: by a Prometheus with the shipped rules, and in traces and logs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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

FOLDER = Path(__file__).parents[2] / "observability"
# They have an answer only where something failed, or where there is a GPU.
MAY_BE_EMPTY = {"Failures", "GPUs", "Refused because of a limit", "Errors by code"}

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


# The shipped rules in seconds: their windows, and for how long something has to be so.
SHORTER = {
    **{"for: 2m": "for: 12s", "for: 30s": "for: 3s"},
    **{"[1m]": "[5s]", "[2m]": "[10s]", "[5m]": "[25s]", "[15m:1m]": "[75s:5s]", "[1h]": "[120s]"},
}
KEY = {"gourmet_admin_key": "of-the-tests-of-alerts"}
ANSWERS = "food_classifier_onnx"


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
    models = some_models(folder / "models", ANSWERS)
    rules = (FOLDER / "rules.yml").read_text()
    for usual, shorter in SHORTER.items():
        assert usual in rules
        rules = rules.replace(usual, shorter)
    env = {"FOOD11_MODEL_NAME": ANSWERS, "TRITON_ADMIN_KEY": KEY["gourmet_admin_key"]}
    (folder / "nginx").mkdir()
    with (
        Up(f"--model-repository={models}", tmp=folder, env=env) as up,
        nginx(up.port, folder / "nginx") as front,
        prometheus(folder, up.metrics, up.port, rules, front.of_observers) as query,
    ):
        stack = Watched(up, front, Site(front.port), query)
        wait_until(lambda: len(query("up == 1")) == 3, 60, "not all are asked")
        known = "web:errors:share1h == 0 and web:errors:share1m == 0"
        wait_until(lambda: stack.has_answered(sample) and bool(query(known)), 60, "no photo was answered")
        yield stack


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_dead_nginx_fires_an_alert(watched: Watched) -> None:
    wait_until(lambda: not watched.firing("Away"), 60, "all is well")
    watched.nginx.process.terminate()  # killed, its workers would go on
    wait_until(lambda: bool(watched.firing("Away")), 60, "the alert does not fire")
    assert {alert["job"] for alert in watched.firing("Away")} == {"proxy"}


@pytest.mark.slow
def test_prometheus_scrapes_triton_the_web_app_and_the_proxy(ask: Ask) -> None:
    states = {series["metric"]["job"]: series["value"][1] for series in ask("up")}
    assert states == {"triton": "1", "web": "1", "proxy": "1"}
    assert ask('{job="proxy",__name__!~"up|scrape_.*|ALERTS.*"}') == []


@pytest.mark.slow
def test_the_recording_rules_have_plausible_values(ask: Ask) -> None:
    (queue,) = ask('model:triton_queue_seconds:mean2m{model="food_classifier"}')
    assert 0 <= float(queue["value"][1]) < 10
    (batch,) = ask('model:triton_batch_rows:mean2m{model="food_classifier"}')
    assert 1 <= float(batch["value"][1]) <= 16
    (errors,) = ask("web:errors:share5m")
    assert 0 <= float(errors["value"][1]) <= 1
    assert "/predict" in {series["metric"]["route"] for series in ask("route:web_seconds:p95_5m")}


@pytest.mark.slow
def test_every_panel_of_the_dashboard_has_data(ask: Ask) -> None:
    dashboard = json.loads((FOLDER / "grafana" / "dashboards" / "gourmetgram.json").read_text())
    empty = [
        f"{panel['title']}: {target['expr']}"
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        if not ask(target["expr"]) and panel["title"] not in MAY_BE_EMPTY
    ]
    assert empty == []


# Tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Collector(ThreadingHTTPServer):
    """Keeps what is posted to it, as a collector of OTLP over HTTP does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> dict[str, dict[str, Any]]:
        """The spans of those that send JSON, by name; of Triton's, which may send protobuf, see `seen`."""
        by_name = {}
        for body in self.bodies:
            if body.lstrip()[:1] == b"{":
                for resource in json.loads(body)["resourceSpans"]:
                    for scope in resource.get("scopeSpans", ()):
                        by_name |= {span["name"]: span for span in scope["spans"]}
        return by_name

    def seen(self, service: bytes, trace: str) -> bool:
        """Return True once a span of `service` in this trace has arrived, in either form."""
        marks = (trace.encode(), bytes.fromhex(trace))
        return any(service in body and any(mark in body for mark in marks) for body in self.bodies)


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/traces":
            self.server.bodies.append(body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def traced_triton(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    models = some_models(tmp_path_factory.mktemp("traced"), ANSWERS)
    yield from run_triton(models, traces_to=f"{collector.url}/v1/traces")


@pytest.fixture(scope="module")
def traced_web(start: Callable[..., Any], collector: Collector, traced_triton: Any) -> Any:
    return start(
        traced_triton.http_url,
        FOOD11_MODEL_NAME=ANSWERS,
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_BSP_SCHEDULE_DELAY="200",
        LOG_FORMAT="json",
        WEB_CONCURRENCY="1",
    )


def test_a_photo_s_trace_reaches_from_the_browser_to_the_model(
    traced_web: Any, collector: Collector, sample: bytes
) -> None:
    reply = traced_web.predict(sample, traceparent=PARENT, X_Request_ID="traced-1")
    assert reply.status == 200
    wait_until(lambda: "POST /predict" in collector.spans(), 60, "the web app sent no span")
    spans = {name: span for name, span in collector.spans().items() if span["traceId"] == TRACE}
    outer = spans["POST /predict"]
    assert outer["parentSpanId"] == PARENT.split("-")[2]
    assert spans["decode"]["parentSpanId"] == spans["triton"]["parentSpanId"] == outer["spanId"]
    wait_until(
        lambda: collector.seen(b"gourmetgram-triton", TRACE), 60, "Triton did not go on with the trace"
    )


def test_the_log_line_of_a_request_has_its_trace_id(traced_web: Any, sample: bytes) -> None:
    assert traced_web.predict(sample, traceparent=PARENT, X_Request_ID="traced-2").status == 200
    wait_until(lambda: "traced-2" in traced_web.log.read_text(), 60, "it was not logged")
    lines = [json.loads(line) for line in traced_web.log.read_text().splitlines()]
    (line,) = (line for line in lines if line.get("request_id") == "traced-2")
    assert (line["trace_id"], line["model"], line["status"]) == (TRACE, ANSWERS, 200)
    assert any(line["logger"] == "gunicorn.error" for line in lines)
