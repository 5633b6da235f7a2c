"""A system of pictures that no line of the app names: its model is asked, listed, compared and has a page."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from support.eventually import eventually
from support.flowers import write_flowers
from support.listener import Listen, Listener, answered, http, ready, serving, tensor

from app import create_app, services
from app.models import Prediction
from app.photos import count
from app.web.metrics import MAX_LABELS, OTHER, Metrics
from app.web.settings import Settings, SettingsError
from gourmet.systems.food11.contract import SYSTEM as FOOD

LABELS = ["rose", "tulip", "daisy"]
PAGE = {"Accept": "text/html"}
JSON = {"Accept": "application/json"}


def model(name: str, system: str, scores: int, **parameters: str) -> dict[str, bytes]:
    """Return the answers of a Triton that serves it; its last label is the likeliest."""
    inputs = [tensor("INPUT_IMAGE", "BYTES", shape=(-1, 1))]
    outputs = [tensor("PROBABILITIES", "FP32", shape=(-1, scores))]
    infer = answered([0.0] * (scores - 1) + [1.0])
    return serving(name, inputs, outputs, infer, system=system, **parameters)


@pytest.fixture(autouse=True)
def _flowers(systems_folder: Path) -> None:
    write_flowers(systems_folder, FOOD.sample_file)


@pytest.fixture
def triton(listen: Listen) -> Listener:
    return listen(
        model("food_classifier", "food11", 11)
        | model("flowers", "flowers", 3, labels=json.dumps(LABELS), threshold="0.5")
        | model("odd", "food11", 4)
        | ready("food_classifier", "flowers", "odd")
    )


@pytest.fixture
def browser(triton: Listener) -> Iterator[FlaskClient]:
    yield from client(triton)


def client(triton: Listener, **models: str) -> Iterator[FlaskClient]:
    app = create_app(Settings(triton_url=triton.url, models=models))
    yield app.test_client()


def form() -> dict[str, Any]:
    return {"file": (io.BytesIO(FOOD.sample()), "photo.jpg")}


def test_a_model_of_a_user_system_answers_with_the_labels_of_its_config(browser: FlaskClient) -> None:
    reply = browser.post("/api/v1/classify?model=flowers&probabilities=all", data=form())
    (result,) = reply.get_json()["results"]
    assert (reply.status_code, result["label"], result["class_id"]) == (200, "daisy", 2)
    assert (result["sure"], result["threshold"]) == (True, 0.5)
    assert result["probabilities"] == {"rose": 0.0, "tulip": 0.0, "daisy": 1.0}
    assert 'flowers_predictions_total{label="daisy",model="flowers"} 1.0' in browser.get("/metrics").text
    # The app's first system answers where no model is named, and without being asked for all.
    (other,) = browser.post("/api/v1/classify", data=form()).get_json()["results"]
    assert other["label"] == FOOD.labels[-1]
    assert "probabilities" not in other


def test_a_user_model_is_listed_with_its_system_unless_its_config_is_wrong(browser: FlaskClient) -> None:
    every = browser.get("/api/v1/models").get_json()
    assert {model["name"]: model["system"] for model in every["models"]} == {
        "flowers": "flowers",
        "food_classifier": "food11",
    }
    assert every["default"] == "food_classifier"
    own = browser.get("/api/v1/models?system=flowers").get_json()
    assert [(model["name"], model["labels"]) for model in own["models"]] == [("flowers", LABELS)]
    assert own["default"] == "flowers"
    assert browser.get("/api/v1/models?system=stones").status_code == 400


def test_a_user_model_is_compared_only_within_its_system(browser: FlaskClient) -> None:
    reply = browser.post("/compare?system=flowers", data=form(), headers=JSON)
    assert [row["model"]["name"] for row in reply.get_json()["results"]] == ["flowers"]
    assert "flowers" in browser.get("/compare?system=flowers", headers=PAGE).text
    usual = browser.post("/compare", data=form(), headers=JSON).get_json()["results"]
    assert [row["model"]["name"] for row in usual] == ["food_classifier"]


def test_a_user_system_has_a_linked_page_with_its_labels(browser: FlaskClient) -> None:
    reply = browser.get("/classify/flowers", headers=PAGE)
    assert all(label in reply.text for label in LABELS)
    assert '<a href="/classify/flowers" aria-current="page">Flowers</a>' in reply.text
    assert '<a href="/classify/flowers">Flowers</a>' in browser.get("/", headers=PAGE).text
    answer = browser.post("/classify/flowers", data=form(), headers=PAGE)
    assert (answer.status_code, "daisy" in answer.text) == (200, True)
    assert 'href="/classify/flowers">' in answer.text
    for other in ("food11", "stones"):
        assert browser.get(f"/classify/{other}").status_code == 404
        assert browser.post(f"/classify/{other}", data=form()).status_code == 404


def test_a_user_system_is_not_linked_while_its_model_does_not_answer(listen: Listen) -> None:
    triton = listen(model("food_classifier", "food11", 11) | ready("food_classifier"))
    (browser,) = client(triton)
    health = browser.get("/api/v1/health?system=flowers").get_json()
    assert (health["ready"], health["model"]["name"]) == (False, "flowers")
    assert "/classify/flowers" not in browser.get("/", headers=PAGE).text


def test_a_model_that_is_not_for_the_web_answers_only_where_the_settings_name_it(listen: Listen) -> None:
    closed = model("flowers_slow", "flowers", 2, web="when configured")
    triton = listen(
        closed
        | model("flowers", "flowers", 3, labels=json.dumps(LABELS))
        | model("food_classifier", "food11", 11)
        | ready("flowers", "flowers_slow")
    )

    def answers(browser: FlaskClient) -> tuple[int, list[str], list[str]]:
        reply = browser.post("/api/v1/classify?model=flowers_slow", data=form())
        listed = browser.get("/api/v1/models?system=flowers").get_json()["models"]
        compared = browser.post("/compare?system=flowers", data=form(), headers=JSON).get_json()["results"]
        return reply.status_code, [m["name"] for m in listed], [row["model"]["name"] for row in compared]

    (browser,) = client(triton)
    assert answers(browser) == (404, ["flowers"], ["flowers"])
    (browser,) = client(triton, flowers="flowers_slow")
    assert answers(browser) == (200, ["flowers", "flowers_slow"], ["flowers", "flowers_slow"])


@pytest.fixture
def two_versions(listen: Listen) -> Listener:
    """Of a Triton whose flowers serve in the versions 9 and 10, which answer differently."""
    known = model("flowers", "flowers", 3, labels=json.dumps(LABELS))
    of_old = {f"/flowers/versions/9/{route}": known[f"/flowers/{route}"] for route in ("config", "ready")}
    about = json.loads(known["/models/flowers"].partition(b"\r\n\r\n")[2]) | {"versions": ["10", "9"]}
    both = http({"model_stats": [{"name": "flowers", "version": version} for version in ("9", "10")]})
    return listen(
        {"/flowers/versions/9/infer": answered([1.0, 0.0, 0.0], "9"), "/flowers/versions/9": http(about)}
        | of_old
        | known
        | {"/models/flowers": http(about), "/models/stats": both}
        | {"/flowers/infer": answered([0.0, 0.0, 1.0], "10")}
        | {"/flowers/versions/8/ready": http({"error": "no version 8"}, "400 Bad Request")}
        | {"/repository/index": http([])}
        | {"/flowers/versions/8": http({"error": "no version 8"}, "400 Bad Request")}
    )


@pytest.mark.parametrize(
    ("query", "fields", "answer"),
    [
        ("", {}, ("daisy", "10")),
        ("version=9", {}, ("rose", "9")),
        ("", {"version": "9"}, ("rose", "9")),
        ("model=flowers/9", {}, ("rose", "9")),
        ("", {"model": "flowers/9"}, ("rose", "9")),
    ],
)
def test_a_version_is_chosen_by_parameter_or_by_name_and_version(
    two_versions: Listener, query: str, fields: dict[str, str], answer: tuple[str, str]
) -> None:
    (browser,) = client(two_versions, food11="flowers")
    reply = browser.post(f"/api/v1/classify?{query}", data=form() | fields)
    (result,) = reply.get_json()["results"]
    assert (result["label"], result["model"]) == (answer[0], {"name": "flowers", "version": answer[1]})
    reply = browser.post(f"/predict?{query}", data=form() | fields, headers=JSON)
    assert (reply.get_json()["label"], reply.get_json()["model"]["version"]) == answer


@pytest.mark.parametrize(
    "asked", ["version=8", "version=09", "model=flowers/8", "version=9/9", "version=9/../../x"]
)
@pytest.mark.parametrize("models", [{}, {"food11": "flowers"}])
def test_a_version_that_does_not_serve_is_an_unknown_model(
    two_versions: Listener, asked: str, models: dict[str, str]
) -> None:
    model_named = "" if "model=" in asked else "model=flowers&"
    (browser,) = client(two_versions, **models)
    reply = browser.post(f"/api/v1/classify?{model_named}{asked}", data=form())
    error = reply.get_json()["error"]
    assert (reply.status_code, error["code"]) == (404, "unknown_model")
    assert error["message"].endswith("ready models: flowers, flowers/9")
    assert not any(".." in path or "9/versions" in path or path.endswith("/x") for path in two_versions.asked)


def test_versions_that_serve_side_by_side_are_offered_and_compared(two_versions: Listener) -> None:
    (browser,) = client(two_versions)
    listed = browser.get("/api/v1/models?system=flowers").get_json()["models"]
    assert [(entry["name"], entry["version"]) for entry in listed] == [("flowers", "10"), ("flowers", "9")]
    page = browser.get("/classify/flowers", headers=PAGE).text
    assert re.findall(r'<option value="(flowers[^"]*)"', page) == ["flowers", "flowers/9"]
    rows = browser.post("/compare?system=flowers", data=form(), headers=JSON).get_json()["results"]
    answers = [(row["model"]["version"], row["label"]) for row in rows]
    assert answers == [("10", "daisy"), ("9", "rose")]


def test_requests_to_models_are_counted_by_outcome(
    two_versions: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One check, which sends the sample. A later one would be counted with the requests.
    monkeypatch.setattr(services, "_READY_AGE_S", float("inf"))
    (browser,) = client(two_versions)
    eventually(lambda: 'web_ready{system="flowers"} 1.0' in browser.get("/metrics").text)

    def status(model: str) -> int:
        return browser.post(f"/api/v1/classify?model={model}", data=form()).status_code

    assert [status(name) for name in ("flowers", "flowers/9", "flowers/8")] == [200, 200, 404]
    for answer in ("500 Internal Server Error", "400 Bad Request"):
        two_versions.script["/flowers/infer"] = http({"error": "not these"}, answer)
        assert status("flowers") == (502 if answer[0] == "5" else 400)
    counts = re.findall(r"^web_model_requests_total\{(.*)\} (\S+)$", browser.get("/metrics").text, re.M)
    assert sorted(counts) == [
        ('model="flowers",outcome="answered"', "3.0"),
        ('model="flowers",outcome="inference_failed"', "1.0"),
        ('model="flowers",outcome="refused"', "1.0"),
    ]


def test_another_system_s_model_is_not_one_of_food_but_may_be_configured_for_it(triton: Listener) -> None:
    (browser,) = client(triton)
    assert browser.post("/predict?model=flowers", data=form(), headers=JSON).status_code == 404
    (browser,) = client(triton, food11="flowers")
    reply = browser.post("/predict", data=form(), headers=JSON)
    assert (reply.status_code, reply.get_json()["label"]) == (200, "daisy")
    assert browser.get("/", headers=PAGE).status_code == 200
    assert browser.get("/readyz").status_code == 200


def test_a_configured_model_whose_labels_are_not_known_is_refused_in_a_sentence(triton: Listener) -> None:
    (browser,) = client(triton, food11="odd")
    reply = browser.post("/predict", data=form(), headers=JSON)
    error = reply.get_json()["error"]
    assert (reply.status_code, error["code"]) == (502, "inference_failed")
    assert re.search(r"'odd' returns 4 scores.*11 labels.*'labels'.*FOOD11_MODEL_NAME", error["message"])
    assert browser.get("/", headers=PAGE).status_code == 200


def test_the_variable_of_a_user_system_chooses_its_model() -> None:
    assert Settings().models["flowers"] == "flowers"
    assert Settings.from_env({"FLOWERS_MODEL_NAME": "roses"}).models["flowers"] == "roses"
    with pytest.raises(SettingsError, match=r"FLOWERS_MODEL_NAME is 'two words'.*such as flowers"):
        Settings.from_env({"FLOWERS_MODEL_NAME": "two words"})


def test_an_invalid_contract_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "systems" / "broken").mkdir()
    (tmp_path / "systems" / "broken" / "contract.py").write_text("SYSTEM = None")
    with pytest.raises(SettingsError, match=r"broken/contract\.py"):
        Settings.from_env({})


def test_a_system_of_a_thousand_labels_has_few_series() -> None:
    labels = tuple(f"class {at}" for at in range(1000))
    many = replace(FOOD, name="many", labels=labels, metrics_prefix="so-many")
    app = create_app()
    app.extensions["metrics"] = metrics = Metrics([many])
    with app.app_context():
        for at in range(1000):
            probabilities = tuple(0.9 * (index == at) for index in range(1000))
            count(Prediction(many, labels, probabilities, model="m", version="1"), {"total": 1.0})
    text = metrics.text().decode()
    counted = re.findall(r'^so_many_predictions_total{label="(.+?)",model="m"} (\S+)', text, re.M)
    assert len(counted) == MAX_LABELS + 1
    assert dict(counted)[OTHER] == f"{1000 - MAX_LABELS}.0"
    assert len(set(re.findall(r'^so_many_confidence_count{label="(.+?)"}', text, re.M))) == MAX_LABELS + 1


def test_without_triton_the_page_says_so_and_the_log_has_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    browser = create_app(Settings(triton_url="127.0.0.1:9")).test_client()
    reply = browser.post("/predict", data=form(), headers=PAGE)
    assert (reply.status_code, "no Triton answers at 127.0.0.1:9" in reply.text) == (503, True)
    assert ("Errno" in reply.text, "Connection refused" in caplog.text) == (False, True)
