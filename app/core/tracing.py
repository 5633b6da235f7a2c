"""OpenTelemetry traces of requests, from the browser's to Triton's, off unless OTEL_* says where to.

    OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318

A request's span has a child for the decoding of a photo and one for asking Triton, to which the W3C header
`traceparent` is passed: a Triton that traces too (`gourmet up` starts it so) continues the same trace. A
`traceparent` of the browser's, or of a proxy's, is continued in the same way. The packages are those of
requirements/tracing.txt; nothing of them is imported where there is no endpoint. The instrumentation of Flask
has no release for the semantic conventions of this SDK, which each release of it pins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from flask import Flask, Response, g, request

from app.core.http import request_id
from app.core.settings import Settings, SettingsError
from gourmet.client.deadline import Deadline
from gourmet.client.transport import Call, Reply, Transport

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_SERVICE: Final = "gourmetgram-web"
P = ParamSpec("P")
T = TypeVar("T")

_tracer: Tracer | None = None


def init_app(app: Flask, _: Settings) -> None:
    """Trace the app's requests if the environment says so."""
    configured = any(os.environ.get(name) for name in _ENDPOINTS)
    if not configured or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    try:
        from opentelemetry.exporter.otlp.json.http.trace_exporter import OTLPSpanExporter
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
    app.before_request(_begin)
    app.after_request(_finish)
    app.extensions["tracing"] = provider


@contextmanager
def span(name: str, **attributes: str | int) -> Iterator[None]:
    """Around a part of a request, within whatever span is open in this thread."""
    if _tracer is None:
        yield
        return
    with _tracer.start_as_current_span(name, attributes=attributes):
        yield


def headers() -> dict[str, str]:
    """What has another server go on with the trace."""
    if _tracer is None:
        return {}
    from opentelemetry.propagate import inject

    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier


def carried(call: Callable[P, T]) -> Callable[P, T]:
    """`call`, for other threads, within the span that is open in this one."""
    here = copy_context()
    # A context is one thread's at a time, so each call has a copy.
    return lambda *args, **kwargs: here.copy().run(call, *args, **kwargs)


def _begin() -> None:
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind, format_trace_id

    if _tracer is None or request.url_rule is None or request.endpoint in ("static", "health.metrics"):
        return
    route = request.url_rule.rule
    g.span_in_use = _tracer.start_as_current_span(
        f"{request.method} {route}",
        context=extract(request.headers),
        kind=SpanKind.SERVER,
        attributes={
            "http.request.method": request.method,
            "http.route": route,
            "gourmet.request_id": request_id(),
        },
        end_on_exit=False,
    )
    g.span = g.span_in_use.__enter__()
    g.trace_id = format_trace_id(g.span.get_span_context().trace_id)


def _finish(response: Response) -> Response:
    opened: Any = g.pop("span", None)
    if opened is None:
        return response
    from opentelemetry.trace import Status, StatusCode

    opened.set_attribute("http.response.status_code", response.status_code)
    if model := g.get("model"):
        opened.set_attribute("gourmet.model", model)
    if response.status_code >= 500:
        opened.set_status(Status(StatusCode.ERROR))
        opened.set_attribute("error.type", g.get("error_code") or str(response.status_code))
    g.pop("span_in_use").__exit__(None, None, None)
    # A heat map is still being sent; its span ends with its last line, and all others with their answer.
    if response.is_streamed:
        response.call_on_close(opened.end)
    else:
        opened.end()
    return response


class TracedTransport:
    """Has a server go on with the trace of a request."""

    def __init__(self, below: Transport) -> None:
        self.protocol, self.address = below.protocol, below.address
        self._below = below
        self.close = below.close

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        if call.operation not in ("infer", "stream"):
            yield from self._below.send(call, deadline)
            return
        with span("triton", model=call.target):
            yield from self._below.send(replace(call, headers=headers()), deadline)
