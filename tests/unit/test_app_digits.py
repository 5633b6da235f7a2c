"""Digits: the page, its form and POST /api/v1/digits with fake classifiers behind them."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
from flask.testing import FlaskClient
from openapi_spec_validator import validate
from support.fake_classifier import FakeClassifier, form, knowing
from support.fake_classifier import client as app_client

from app.models import Prediction
from app.pages.digits import Digits
from app.web import errors
from gourmet.pictures.decode import PictureError
from gourmet.systems.digits import contract

THREE = Prediction(
    contract.SYSTEM,
    contract.SYSTEM.labels,
    probabilities=(0.01, 0.02, 0.03, 0.85, 0.01, 0.01, 0.02, 0.02, 0.02, 0.01),
    model="digits",
    version="4",
    threshold=0.76,
    timings_ms={"decode": 1.5, "preprocess": 0.1, "triton": 1.25},
)
AWAY = errors.ServingError("triton_unavailable", "no Triton answers")
PAGE = {"Accept": "text/html"}


def client(digits: Any = THREE, **settings: Any) -> FlaskClient:
    return app_client(FakeClassifier(others={"digits": digits}), **settings)


def test_a_digit_is_answered_with_the_probabilities_of_all_ten_as_the_document_says() -> None:
    browser = client()
    reply = browser.post("/api/v1/digits", data=form())
    assert reply.status_code == 200
    (result,) = reply.get_json()["results"]
    assert (result["label"], result["sure"], result["threshold"]) == ("3", True, 0.76)
    assert result["probabilities"] == list(THREE.probabilities)
    assert result["model"] == {"name": "digits", "version": "4"}
    made = browser.get("/api/v1/openapi.json").get_json()
    validate(made)
    content = made["paths"]["/api/v1/digits"]["post"]["responses"]["200"]["content"]
    schema = {**content["application/json"]["schema"], "components": made["components"]}
    jsonschema.Draft202012Validator(schema).validate(reply.get_json())
    Digits.model_validate(reply.get_json())
    assert "digits_predictions_total" in browser.get("/metrics").text


@pytest.mark.parametrize("code", ["blank", "several_digits"])
def test_a_picture_of_no_digit_or_several_is_a_client_error(code: str) -> None:
    reply = client(PictureError(code, "not one digit")).post("/api/v1/digits", data=form())
    assert (reply.status_code, reply.get_json()["results"][0]["error"]["code"]) == (400, code)


def test_the_digits_page_reports_a_missing_model() -> None:
    reply = knowing(client(AWAY), contract.SYSTEM.name).get("/digits", headers=PAGE)
    assert reply.status_code == 200
    assert re.search(r"<noscript>.*no Triton answers.*</noscript>", reply.text)
    assert client(AWAY).post("/digits", data=form()).status_code == 503


def test_health_reports_each_system() -> None:
    browser = client(AWAY)
    assert browser.get("/api/v1/health").get_json()["ready"] is True
    assert browser.get("/api/v1/health?system=digits").get_json()["ready"] is False
    refused = browser.get("/api/v1/health?system=stones")
    assert refused.status_code == 400
    assert "food11, digits" in refused.get_json()["error"]["message"]
