"""Lines of JSON: what is in them, what is not, and that a visitor cannot write one."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from support.fake_classifier import EGG, form
from support.fake_classifier import client as app_client

from app.models import Prediction
from app.web.errors import ServingError
from app.web.logs import JsonLines

SECRET = "a-key-that-nobody-may-read"


class LoggedLines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))

    def requests(self) -> list[dict[str, Any]]:
        results = [json.loads(text) for text in self.texts]
        return [line for line in results if line["logger"] == "app.requests"]


@pytest.fixture
def lines() -> Iterator[LoggedLines]:
    handler = LoggedLines()
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


def client(outcome: Prediction | Exception = EGG, **settings: Any) -> Any:
    return app_client(outcome, log_format="json", **settings)


def test_a_request_is_logged_as_one_line_with_its_identifiers(lines: LoggedLines) -> None:
    answer = client().post("/predict", data=form(), headers={"X-Request-ID": "mine-7"})
    (line,) = lines.requests()
    assert answer.headers["X-Request-ID"] == line["request_id"] == "mine-7"
    assert (line["route"], line["method"], line["status"], line["model"]) == (
        "/predict",
        "POST",
        200,
        "food_classifier",
    )
    assert 0 < line["ms"] < 60_000
    assert line["level"] == "info"
    assert line["time"].endswith("+00:00")


@pytest.mark.promise("SECURITY 10")
def test_file_names_keys_and_the_query_stay_out_of_the_log(lines: LoggedLines) -> None:
    browser = client(api_keys=(SECRET,))
    headers = {"Authorization": f"Bearer {SECRET}", "Cookie": f"c={SECRET}"}
    browser.post(
        "/api/v1/classify?model=grandmothers", data=form(name="grandmothers-birthday.jpg"), headers=headers
    )
    browser.post("/api/v1/classify", headers={"X-API-Key": f"wrong-{SECRET}"}, data=form())
    assert len(lines.requests()) == 2
    for word in (SECRET, "grandmothers", "127.0.0.1"):
        assert word not in "".join(lines.texts)


def test_an_error_is_logged_with_its_code(lines: LoggedLines) -> None:
    client().post("/predict", data=form(b"no picture"))
    client(RuntimeError("nobody foresaw this")).post("/predict", data=form())
    refused, failed = lines.requests()
    assert (refused["status"], refused["code"], refused["level"]) == (400, "not_a_picture", "info")
    assert (failed["status"], failed["code"], failed["level"]) == (500, "internal", "warning")
    (why,) = (line for line in map(json.loads, lines.texts) if "exception" in line)
    assert "nobody foresaw this" in why["exception"]
    assert why["request_id"] == failed["request_id"]


def test_a_client_cannot_inject_a_line_into_the_log(lines: LoggedLines) -> None:
    client().get('/none%0a{"level":"error"}\r\n', headers={"X-Request-ID": "a\tb"})
    logging.getLogger("x").warning("two\nlines \u2028 and %s", "three\r\n")
    assert all("\n" not in text and "\r" not in text and text.isascii() for text in lines.texts)
    (line,) = lines.requests()
    assert line["route"] == "unknown"


def test_probes_are_logged_only_when_they_fail(lines: LoggedLines) -> None:
    browser = client()
    for path in ("/healthz", "/readyz", "/metrics"):
        assert browser.get(path).status_code == 200
    assert lines.requests() == []


def test_a_failed_request_is_logged_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    browser = app_client(ServingError("triton_unavailable", "no Triton answers at 127.0.0.1:9"))
    reply = browser.post("/predict", data=form(), headers={"X-Request-ID": "mine-8"})
    assert reply.status_code == 503
    lines = [record.getMessage() for record in caplog.records if "mine-8" in record.getMessage()]
    assert lines == ["request mine-8: 503 triton_unavailable: no Triton answers at 127.0.0.1:9"]
