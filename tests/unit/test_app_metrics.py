"""What is counted has labels of the app's own: strangers send what they like, and no series is added."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from flask.testing import FlaskClient
from support.fake_classifier import client, form

from app.core.metrics import ObservedTransport
from gourmet.client.deadline import Deadline
from gourmet.client.errors import InvalidRequest, NoAnswerInTime, TritonError
from gourmet.client.transport import Call, Reply

WORDS = [f"strange{number}" for number in range(40)]


def any_method(browser: FlaskClient, word: str) -> None:
    for path in ("/predict", "/healthz", "/nowhere", "/static/style.css"):
        browser.open(path, method=word)


def any_address(browser: FlaskClient, word: str) -> None:
    for path in (
        f"/{word}",
        f"/static/{word}.js",
        f"/api/v1/{word}",
        f"/lab/reports/{word}",
        f"/test?{word}=1",
    ):
        browser.get(path)


def any_model_label_and_system(browser: FlaskClient, word: str) -> None:
    browser.post("/predict", data=form(name=word) | {"model": word})
    browser.post(f"/api/v1/classify?model={word}&probabilities={word}", data=form())
    browser.post(f"/api/v1/explain?label={word}&grid={word}", data=form())
    browser.get(f"/api/v1/models?system={word}")
    browser.post("/api/v1/generate", json={"text": word, "model": word, "options": {word: 1}})


def any_header(browser: FlaskClient, word: str) -> None:
    names = (
        "Host",
        "Origin",
        "Sec-Fetch-Site",
        "Accept",
        "Content-Type",
        "User-Agent",
        "X-Request-ID",
        "X-API-Key",
    )
    for name in (*names, "X-Forwarded-For", "Traceparent", "Range"):
        browser.get("/", headers={name: word})
        browser.post("/api/v1/classify", data=b"x", headers={name: word})


@pytest.mark.parametrize("send", [any_method, any_address, any_model_label_and_system, any_header])
def test_no_label_has_a_value_that_a_client_chooses(send: Callable[[FlaskClient, str], Any]) -> None:
    browser = client()
    browser.get("/metrics")
    send(browser, "first")
    before = browser.get("/metrics").text
    for word in WORDS:
        send(browser, word)
    after = browser.get("/metrics").text
    assert len(after.splitlines()) == len(before.splitlines())
    assert "strange" not in after
    assert 'method="other"' in after or send is not any_method


class Answering:
    """A way to a server that says what it is told to, with a silence first."""

    protocol: Literal["http"] = "http"
    address = "10.0.0.7:8000"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        yield None
        if self.error:
            raise self.error
        yield Reply({})
        yield Reply({})

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("operation", "error", "seen"),
    [
        ("infer", None, ["answered"]),
        ("stream", None, ["answered"]),  # once, for its first piece
        ("infer", NoAnswerInTime(2), ["failed"]),
        ("infer", InvalidRequest("not a photo", 400), []),
        ("ready", None, []),
    ],
)
def test_of_each_server_is_told_when_answers_began_by_the_configured_address(
    operation: Any, error: Exception | None, seen: list[str]
) -> None:
    told: list[str] = []

    def observe(server: str, seconds: float | None) -> None:
        assert server == "triton:8000"
        told.append("failed" if seconds is None else "answered")

    way = ObservedTransport(Answering(error), "triton:8000", observe)
    with contextlib.suppress(TritonError):
        list(way.send(Call(operation, "m"), Deadline(1)))
    assert told == seen
