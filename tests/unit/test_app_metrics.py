"""What is counted has labels of the app's own: strangers send what they like, and no series is added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from support.fake_classifier import client, form

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
