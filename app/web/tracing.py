"""OpenTelemetry traces of requests, from the browser's to Triton's; off unless OTEL_* names an endpoint.

    OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318

OpenTelemetry's WSGI instrumentation makes the span of a request and continues the `traceparent` of a browser
or proxy. This module adds two spans, for decoding a photo and for asking Triton, and sends Triton a
`traceparent`: a Triton that traces too (`gourmet up` starts it so) continues the same trace.
requirements/tracing.txt has the packages; without an endpoint none of them is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from flask import Flask, Response, g, request

from app.web.http import request_id, route
from app.web.settings import Settings, SettingsError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from opentelemetry.trace import Tracer

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_SERVICE: Final = "gourmetgram-web"
_UNTRACED: Final = ("/static/", "/metrics")
P = ParamSpec("P")
T = TypeVar("T")

_tracer: Tracer | None = None


def init_app(app: Flask, _: Settings) -> None:
    """Trace the app's requests if the environment names an endpoint."""
    configured = any(os.environ.get(name) for name in _ENDPOINTS)
    if not configured or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    # Use the current attribute names (`http.request.method`); the instrumentation defaults to older ones.
    os.environ.setdefault("OTEL_SEMCONV_STABILITY_OPT_IN", "http")
    try:
        from opentelemetry.exporter.otlp.json.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.wsgi import OpenTelemetryMiddleware
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as exc:
        raise SettingsError(
            f"{_ENDPOINTS[1]} is set, and what traces is not installed ({exc.name}): "
            "`pip install -r requirements/tracing.txt`, or unset it"
        ) from exc
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": _SERVICE}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    global _tracer
    _tracer = provider.get_tracer(_SERVICE)
    untraced = app.wsgi_app
    traced = OpenTelemetryMiddleware(untraced, tracer_provider=provider)

    def wsgi_app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        call = untraced if environ.get("PATH_INFO", "").startswith(_UNTRACED) else traced
        return call(environ, start_response)

    app.wsgi_app = wsgi_app  # type: ignore[method-assign]
    app.before_request(_name_span)
    app.after_request(_describe_answer)
    app.extensions["tracing"] = provider


@contextmanager
def span(name: str, **attributes: str | int) -> Iterator[None]:
    """Open a span around a part of a request, within the current span of this thread."""
    with _tracer.start_as_current_span(name, attributes=attributes) if _tracer else nullcontext():
        yield


def traceparent() -> dict[str, str]:
    """Return the header with which a server continues the trace."""
    headers: dict[str, str] = {}
    if _tracer is not None:
        from opentelemetry.propagate import inject

        inject(headers)
    return headers


def carried(call: Callable[P, T]) -> Callable[P, T]:
    """Return `call` for other threads, within the current span of this thread."""
    here = copy_context()
    # Only one thread at a time may run in a context, so each call has a copy.
    return lambda *args, **kwargs: here.copy().run(call, *args, **kwargs)


def _name_span() -> None:
    """Name the request's span after its route."""
    from opentelemetry.trace import format_trace_id, get_current_span

    span = get_current_span()
    if not span.get_span_context().is_valid:
        return
    g.trace_id = format_trace_id(span.get_span_context().trace_id)
    span.update_name(f"{request.method} {route()}")
    span.set_attributes({"http.route": route(), "gourmet.request_id": request_id()})


def _describe_answer(response: Response) -> Response:
    from opentelemetry.trace import get_current_span

    for attribute in ("model", "error_code"):
        if value := g.get(attribute):
            get_current_span().set_attribute(f"gourmet.{attribute}", value)
    return response
