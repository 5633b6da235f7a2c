"""Traces: the spans of a request, how they hang together, and that nothing is imported where they are off."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.fake_classifier import FakeClassifier, form

from app import create_app
from app.models import Prediction
from app.web import tracing
from app.web.errors import ServingError
from app.web.settings import Settings, SettingsError
from gourmet.systems.food11 import contract

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class TracedClassifier(FakeClassifier):
    """Opens the spans that a real one does."""

    def classify(self, photo: bytes, *args: Any, **kwargs: Any) -> Prediction:
        with tracing.span("triton", model="m"):
            return super().classify(photo, *args, **kwargs)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> tuple[Flask, TracedClassifier]:
    monkeypatch.setattr(tracing, "_tracer", None)  # as it is again afterwards
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(
        "opentelemetry.sdk.trace.export.BatchSpanProcessor", lambda _: SimpleSpanProcessor(spans)
    )
    classifier = TracedClassifier()
    return create_app(Settings(), classifier), classifier


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def test_a_request_s_span_contains_triton_s_and_continues_the_browser_s_trace(
    traced: tuple[Flask, TracedClassifier], spans: InMemorySpanExporter
) -> None:
    app, _ = traced
    headers = {"traceparent": PARENT, "X-Request-ID": "mine"}
    assert app.test_client().post("/predict", data=form(), headers=headers, buffered=True).status_code == 200
    result = by_name(spans)
    outer, inner = result["POST /predict"], result["triton"]
    assert outer.context and inner.context and outer.parent and inner.parent  # noqa: PT018
    assert f"{outer.context.trace_id:032x}" == f"{inner.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{outer.parent.span_id:016x}" == PARENT.split("-")[2]
    assert inner.parent.span_id == outer.context.span_id
    wanted = {
        "http.request.method": "POST",
        "http.route": "/predict",
        "http.response.status_code": 200,
        "gourmet.request_id": "mine",
        "gourmet.model": "food_classifier",
    }
    assert wanted.items() <= dict(outer.attributes or {}).items()


def test_photos_of_one_call_are_in_its_trace_whichever_thread_asks(
    traced: tuple[Flask, TracedClassifier], spans: InMemorySpanExporter
) -> None:
    app, _ = traced
    photos = form(*[contract.SYSTEM.sample()] * 5)
    assert app.test_client().post("/api/v1/classify", data=photos, buffered=True).status_code == 200
    result = spans.get_finished_spans()
    outer = by_name(spans)["POST /api/v1/classify"]
    inner = [span for span in result if span.name == "triton"]
    assert len(inner) == 5
    assert {span.parent.span_id for span in inner if span.parent} == {outer.context.span_id}


def test_an_error_is_recorded_in_the_span(
    traced: tuple[Flask, TracedClassifier], spans: InMemorySpanExporter
) -> None:
    app, classifier = traced
    classifier.outcome = ServingError("triton_unavailable", "away")
    assert app.test_client().post("/predict", data=form(), buffered=True).status_code == 503
    outer = by_name(spans)["POST /predict"]
    assert outer.status.status_code.name == "ERROR"
    assert (outer.attributes or {})["error.type"] == "503"
    assert (outer.attributes or {})["gourmet.error_code"] == "triton_unavailable"


def test_static_files_and_metrics_have_no_span(
    traced: tuple[Flask, TracedClassifier], spans: InMemorySpanExporter
) -> None:
    """A test's client has to read an answer to its end (`buffered`): its span ends then."""
    app, _ = traced
    for path in ("/static/style.css", "/metrics", "/no/such/page"):
        app.test_client().get(path, buffered=True)
    assert by_name(spans).keys() - {"triton"} == {"GET unknown"}


@pytest.mark.parametrize("parent", ["", "00-zz-zz-01", "x" * 5000, "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_an_invalid_traceparent_begins_a_new_trace(
    traced: tuple[Flask, TracedClassifier], spans: InMemorySpanExporter, parent: str
) -> None:
    app, _ = traced
    assert app.test_client().get("/", headers={"traceparent": parent}, buffered=True).status_code == 200
    assert by_name(spans)["GET /"].parent is None


def test_where_no_endpoint_is_set_nothing_is_traced_or_imported() -> None:
    code = (
        "import sys, app.web.tracing; from app import create_app;"
        "from support.fake_classifier import FakeClassifier;"
        "from app.web.settings import Settings; a = create_app(Settings(), FakeClassifier(RuntimeError()));"
        "assert a.test_client().get('/healthz').status_code == 200; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    assert subprocess.run([sys.executable, "-P", "-c", code], env=env, check=False).returncode == 0


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_tracing_is_off_without_an_endpoint(
    env: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_tracer", None)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    app = create_app(Settings(), FakeClassifier(RuntimeError()))
    assert ("tracing" in app.extensions) is wanted


def test_a_missing_tracing_package_is_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SettingsError, match=r"requirements/tracing\.txt"):
        create_app(Settings(), FakeClassifier(RuntimeError()))
