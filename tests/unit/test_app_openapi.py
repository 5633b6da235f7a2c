"""The API's document: valid, complete both ways, and what the app really answers; and its page."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import validate
from support.fake_classifier import EGG, PHOTO, client
from support.fake_classifier import form as fields

from app.api.schemas import Error, Health, Models, Predicted, Results, Schema
from app.web import errors

CLASSIFY = "/api/v1/classify"
TESTS = Path(__file__).parents[1]


def document(**settings: Any) -> Any:
    return client(**settings).get("/api/v1/openapi.json").get_json()


def resolved(document: Any, value: Any) -> Any:
    """Return what `value` refers to."""
    while "$ref" in value:
        path = value["$ref"].split("/")[1:]
        value = document
        for name in path:
            value = value[name]
    return value


def test_the_document_is_valid() -> None:
    made = document()
    validate(made)
    assert made["openapi"].startswith("3.1")
    answer = made["paths"][CLASSIFY]["post"]["responses"]["200"]["content"]["application/json"]
    Results.model_validate(answer["example"])


def test_every_route_of_the_api_has_an_entry_and_every_entry_a_route(tmp_path: Path) -> None:
    browser = client(keep_corrections=tmp_path)
    entries = browser.get("/api/v1/openapi.json").get_json()["paths"]
    methods = {
        rule.rule: {method.lower() for method in rule.methods or ()} - {"head", "options"}
        for rule in browser.application.url_map.iter_rules()
        if rule.rule in entries or (rule.rule.startswith("/api/v1/") and "openapi" not in rule.rule)
    }
    assert methods == {path: set(operations) for path, operations in entries.items()}


def test_a_route_that_this_app_does_not_have_is_left_out() -> None:
    assert "/api/v1/corrections" not in document()["paths"]


def test_the_document_has_the_same_bytes_in_every_process() -> None:
    program = (
        "from support.fake_classifier import client; print(client().get('/api/v1/openapi.json').text, end='')"
    )

    def made_with(seed: str) -> str:
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(TESTS)}
        return subprocess.check_output([sys.executable, "-c", program], env=env, text=True)

    first = made_with("1")
    assert json.loads(first)["paths"]
    assert made_with("2") == first


def test_an_answer_needs_its_fields_but_not_those_that_may_be_missing() -> None:
    schema = document()["components"]["schemas"]["Predicted"]
    assert {"label", "sure", "top"} <= set(schema["required"])
    assert {"dish", "relevant"}.isdisjoint(schema["required"])
    assert schema["properties"]["relevant"]["type"] == "boolean"  # never null
    assert schema["properties"]["sure"]["description"].startswith("True if")


def form(*photos: bytes) -> dict[str, Any]:
    return {"data": fields(*photos)}


JSON = {"headers": {"Accept": "application/json"}}
AWAY = errors.ServingError("triton_unavailable", "away")
# outcome, method, address, options, status, the shape of the answer
CALLS: list[tuple[Any, str, str, dict[str, Any], int, type[Schema]]] = [
    (EGG, "get", "/api/v1/models", {}, 200, Models),
    (AWAY, "get", "/api/v1/models", {}, 503, Error),
    (EGG, "get", "/api/v1/health", {}, 200, Health),
    (AWAY, "get", "/api/v1/health", {}, 200, Health),
    (EGG, "post", CLASSIFY, form(PHOTO), 200, Results),
    (EGG, "post", CLASSIFY, form(PHOTO, b"text", b"<svg/>"), 200, Results),
    (EGG, "post", CLASSIFY, {"json": {"images": [base64.b64encode(PHOTO).decode()]}}, 200, Results),
    (EGG, "post", CLASSIFY, {"json": {}}, 400, Error),
    (EGG, "post", CLASSIFY, form(b"text"), 400, Results),
    (EGG, "post", CLASSIFY, form(b"<svg/>"), 415, Results),
    (EGG, "post", CLASSIFY, {"data": "x", "content_type": "text/plain"}, 415, Error),
    (EGG, "post", CLASSIFY + "?model=nobody", form(PHOTO), 404, Error),
    (EGG, "post", CLASSIFY, form(*[b"x"] * 17), 413, Error),
    (AWAY, "post", CLASSIFY, form(PHOTO, PHOTO), 503, Results),
    (errors.ServingError("triton_too_slow", "x"), "post", CLASSIFY, form(PHOTO), 504, Results),
    (errors.ServingError("inference_failed", "x"), "post", CLASSIFY, form(PHOTO), 502, Results),
    (RuntimeError("a secret"), "post", CLASSIFY, form(PHOTO), 500, Results),
    (EGG, "post", "/predict", form(PHOTO) | JSON, 200, Predicted),
    (EGG, "post", "/predict", form(b"text") | JSON, 400, Error),
    (AWAY, "post", "/predict", form(PHOTO) | JSON, 503, Error),
]


@pytest.mark.parametrize(
    ("outcome", "method", "address", "options", "status", "shape"), CALLS, ids=lambda value: str(value)[:25]
)
def test_answers_are_as_the_document_says(
    outcome: Any, method: str, address: str, options: dict[str, Any], status: int, shape: type[Schema]
) -> None:
    browser = client(outcome)
    made = browser.get("/api/v1/openapi.json").get_json()
    reply = browser.open(address, method=method, **_fresh(options))
    assert reply.status_code == status
    assert ("Retry-After" in reply.headers) == (status == 503)
    assert "secret" not in reply.text
    responses = made["paths"][address.partition("?")[0]][method]["responses"]
    schema = resolved(made, responses[str(status)])["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator({**schema, "components": made["components"]}).validate(reply.get_json())
    shape.model_validate(reply.get_json())  # and nothing beyond what is documented


def _fresh(options: dict[str, Any]) -> dict[str, Any]:
    """The same options with files that were not read yet."""
    if not isinstance(options.get("data"), dict):
        return options
    files = [(io.BytesIO(file.getvalue()), name) for file, name in options["data"]["file"]]
    return {**options, "data": {"file": files}}


def test_every_code_of_an_error_is_documented_under_its_status(tmp_path: Path) -> None:
    responses = document(keep_corrections=tmp_path)["components"]["responses"]
    # Nobody reads the first; health reports the second with status 200.
    for code, status in set(errors.STATUSES.items()) - {("client_left", 499), ("sample_unusable", 500)}:
        assert f"`{code}`" in responses[str(status)]["description"], (code, status)


# The page


def test_the_examples_of_json_routes_match_their_schema() -> None:
    made = document()
    for name in ("translate", "generate"):
        body = made["paths"][f"/api/v1/{name}"]["post"]["requestBody"]["content"]["application/json"]
        jsonschema.validate(body["example"], {**body["schema"], "components": made["components"]})


def test_its_examples_have_the_reader_s_own_address() -> None:
    browser = client(trusted_proxies=1, trusted_hosts=("food.example",))
    text = browser.get(
        "/api/docs", base_url="http://food.example", headers={"X-Forwarded-Proto": "https"}
    ).text
    assert "https://food.example/api/v1/classify" in text
    assert "localhost" not in text
