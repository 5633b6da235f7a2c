"""A photo's trace from the browser's request to Triton's model, gathered by a collector of the test's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from support.triton import run_triton, some_models

from gourmet.stack.processes import wait_until

MODEL = "food_classifier_onnx"
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
    models = some_models(tmp_path_factory.mktemp("traced"), MODEL)
    yield from run_triton(models, traces_to=f"{collector.url}/v1/traces")


@pytest.fixture(scope="module")
def traced_web(start: Callable[..., Any], collector: Collector, traced_triton: Any) -> Any:
    return start(
        traced_triton.http_url,
        FOOD11_MODEL_NAME=MODEL,
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
    assert (line["trace_id"], line["model"], line["status"]) == (TRACE, "food_classifier_onnx", 200)
    assert any(line["logger"] == "gunicorn.error" for line in lines)
