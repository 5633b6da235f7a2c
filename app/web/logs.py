"""Logs as lines of JSON if LOG_FORMAT=json: one line for each request, and one for each other message.

A request's line has its id, which Triton and the answer have too, the route's pattern instead of the path,
status, error code, milliseconds and model. It has nothing about the photo, its name, keys or the client.
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any, Final

from flask import Flask, Response, g, has_request_context, request

from app.web.http import options_of_route, route, since_start_ms
from app.web.settings import Settings

_requests: Final = logging.getLogger("app.requests")


class JsonLines(logging.Formatter):
    """Format a record as one line, which text from a visitor cannot break."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if has_request_context() and "request_id" in g:
            line["request_id"] = g.request_id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, default=str)


def gunicorn_config() -> dict[str, Any]:
    """Return the logging config with which gunicorn and the app log through JsonLines."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonLines}},
        "handlers": {
            "out": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stdout"}
        },
        "root": {"level": "INFO", "handlers": ["out"]},
        "loggers": {
            "gunicorn.error": {"level": "INFO", "handlers": ["out"], "propagate": False},
            # The app's own line has more.
            "gunicorn.access": {"level": "CRITICAL", "handlers": [], "propagate": False},
        },
    }


def init_app(app: Flask, settings: Settings) -> None:
    if settings.log_format == "json":
        app.after_request(_log_request)


def _log_request(response: Response) -> Response:
    if response.status_code < 400 and options_of_route().probe:
        return response
    fields = {
        "route": route(),
        "method": request.method if request.url_rule else "unknown",
        "status": response.status_code,
        "ms": round(since_start_ms(), 1),
        "code": g.get("error_code"),
        "model": g.get("model"),
        "trace_id": g.get("trace_id"),
    }
    known = {name: value for name, value in fields.items() if value is not None}
    level = logging.WARNING if response.status_code >= 500 else logging.INFO
    _requests.log(level, "request", extra={"fields": known})
    return response
