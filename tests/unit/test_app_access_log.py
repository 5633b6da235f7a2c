"""A line of the access log says what gunicorn's own would, whatever it is asked to say."""

from __future__ import annotations

import logging
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger

from app.admission.gunicorn_conf import AccessLogger, access_log_format

ENVIRON = {"REMOTE_ADDR": "127.0.0.1", "REQUEST_METHOD": "GET", "SERVER_PROTOCOL": "HTTP/1.1"}
ID = ("X-Request-ID", "abc")


def line(kind: type[Logger], form: str, uri: str, headers: list[tuple[str, str]], sent: int) -> str:
    config = Config()
    config.set("accesslog", "-")
    config.set("access_log_format", form)
    logger = kind(config)
    said: list[str] = []
    keeping = logging.Handler()
    keeping.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.access_log.handlers = [keeping]
    answer = SimpleNamespace(status="200 OK", sent=sent, headers=headers)
    environ: dict[str, Any] = {**ENVIRON, "RAW_URI": uri}
    logger.access(answer, SimpleNamespace(headers=[]), environ, timedelta(milliseconds=1234.9))
    (found,) = said
    return found


@pytest.mark.parametrize("form", [access_log_format, "%(m)s %(U)s"], ids=["ours", "of somebody's own"])
@pytest.mark.parametrize(
    ("uri", "headers", "sent"),
    [("/", [ID], 0), ("/predict?model=a%20b", [("Vary", "x"), ID], 512), ('/"quoted"', [], 1)],
    ids=["plain", "query", "quotes, no id"],
)
def test_a_line_is_gunicorns_own(form: str, uri: str, headers: list[tuple[str, str]], sent: int) -> None:
    assert line(AccessLogger, form, uri, headers, sent) == line(Logger, form, uri, headers, sent)
