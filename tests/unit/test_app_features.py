"""Comparisons, model cards, corrections and heat maps, with a fake classifier behind them."""

from __future__ import annotations

import base64
import io
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image
from support.eventually import eventually
from support.fake_classifier import EGG, PHOTO, FakeClassifier, client, code, form, served
from werkzeug.test import TestResponse

from app import create_app
from app.api.texts import LINES
from app.models import AskRows, Model, Prediction
from app.pages import compare, corrections
from app.pages.compare import verdict
from app.pages.model_cards import as_html
from app.web import errors
from app.web.errors import ServingError
from app.web.settings import Rate, Settings
from gourmet.contracts import TensorSpec
from gourmet.evaluation.labelled_pictures import LabelledPictures
from gourmet.pictures.certainty import Floats
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import Pixels
from gourmet.pictures.label_folders import folder_of
from gourmet.systems.food11.contract import SYSTEM
from gourmet.triton_client.deadline import Deadline

JSON = {"Accept": "application/json"}
READY = [served(name, "1", TensorSpec("x", "FP32", (3, 224, 224)), 0.5) for name in "abc"]
COLD_S = 0.2


class Comparing(FakeClassifier):
    """Models of which each takes long over its first answer; `faults`: those that cannot answer."""

    def __init__(self, faults: dict[str, ServingError] | None = None, disturbed_at: int = 0) -> None:
        super().__init__(EGG, READY)
        self.disturbed_at = disturbed_at
        self.faults = faults or {}
        self.warm: set[str] = set()
        self.asked_models: list[str] = []
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def classify(self, photo: bytes, deadline: Deadline, model: str = "", **more: Any) -> Prediction:
        if model in self.faults:
            raise self.faults[model]
        self.now += 0.001 if model in self.warm else COLD_S
        self.warm.add(model)
        self.asked_models.append(model)
        if len(self.asked_models) == self.disturbed_at:
            self.now += COLD_S
        return replace(EGG, model=model)


def compared(classifier: FakeClassifier, **headers: str) -> Any:
    return client(classifier).post("/compare", data=form(), headers=headers)


def test_times_are_medians_of_several_turns_without_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    models = Comparing(disturbed_at=7)
    monkeypatch.setattr(compare, "time", SimpleNamespace(monotonic=models.clock, perf_counter=models.clock))
    body = compared(models, **JSON).get_json()
    assert models.asked_models == [*"abc"] * 6
    assert [row["model"]["name"] for row in body["results"]] == ["a", "b", "c"]
    assert body["verdict"] == "All 3 models agree: Egg"
    assert body["results"][0]["bytes_kind"] == "tensor"
    for row in body["results"]:
        shortest, longest = row["spread_ms"]
        assert shortest <= row["timings_ms"]["total"] <= longest
        assert row["timings_ms"]["total"] < 1000 * COLD_S / 2
        assert (longest >= 1000 * COLD_S) == (row["model"]["name"] == "a")
    assert "one network in several forms" in body["note"]
    assert "5 in all" in body["note"]


def test_a_comparison_counts_as_the_answers_it_asks_for_and_slow_models_have_fewer_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limited = client(Comparing(), rate_limit=Rate(16, 60))
    assert [limited.post("/compare", data=form()).status_code for _ in range(2)] == [200, 429]
    monkeypatch.setattr(compare, "_ENOUGH_S", 0.0)
    slow = Comparing()
    assert "1 in all" in compared(slow, **JSON).get_json()["note"]
    assert len(slow.asked_models) == 2 * 3


def test_a_model_that_fails_leaves_the_others_their_answers() -> None:
    body = compared(Comparing({"b": ServingError("inference_failed", "b is broken")}), **JSON).get_json()
    assert [row.get("label") for row in body["results"]] == ["Egg", None, "Egg"]
    assert body["results"][1]["error"]["message"] == "b is broken"
    assert body["verdict"] == "All 2 models agree: Egg (1 could not answer)"
    page = compared(Comparing({"b": ServingError("inference_failed", "b is broken")}), Accept="text/html")
    assert (page.status_code, "b is broken" in page.text) == (200, True)


def test_where_every_model_fails_so_does_the_comparison() -> None:
    faults = {name: ServingError("inference_failed", f"{name} is broken") for name in "abc"}
    reply = compared(Comparing(faults), **JSON)
    assert (reply.status_code, reply.get_json()["error"]["message"]) == (502, "a is broken")


SURE, UNSURE = {"sure": True}, {"sure": False}
IRRELEVANT = {"sure": False, "relevant": False}


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([("Egg", SURE)] * 3, "All 3 models agree: Egg"),
        ([("Egg", UNSURE)] * 3, "All 3 models guess Egg, but none is sure"),
        ([("Egg", SURE), ("Egg", UNSURE)], "All 2 models say Egg; sure: 1"),
        ([("Egg", SURE), ("Soup", SURE), ("Egg", SURE)], "2 of 3 models say Egg"),
        ([("Egg", SURE), ("Soup", SURE)], "Every model gives a different answer"),
        ([("Egg", UNSURE)], "One model answered, and it is not sure: Egg?"),
        ([("Egg", IRRELEVANT), ("Egg", SURE), ("Soup", IRRELEVANT)], "2 of 3 models say not food"),
    ],
)
def test_the_verdict_says_which_are_sure(answers: list[tuple[str, dict[str, bool]]], says: str) -> None:
    assert verdict([{"label": label, **certainty} for label, certainty in answers], "food") == says


def test_every_page_of_a_system_leads_to_its_model_card() -> None:
    browser = client()
    pages = {"/": "food11", "/digits": "digits", "/translate": "translator", "/caption": "captioner"}
    for path, system in pages.items():
        assert f'<a href="/model-card/{system}">Model card</a>' in browser.get(path).text
        card = browser.get(f"/model-card/{system}").text
        assert "<h1>Model card" in card
        assert '<div class="wide-table" tabindex="0"><table>' in card  # which a phone scrolls
        assert not re.search(r'<th></th>|style=|<img src="(?!/static)|href="\.\.', card)
    assert browser.get("/model-card/nobody").status_code == 404


def test_a_model_card_is_escaped() -> None:
    links = "[one](javascript:x()) [two](../y.md) [three](https://example.org/)"
    made = as_html(f"# a\n<script>x()</script>\n{links}\n\n![p](z.svg)")
    assert "<script" not in made
    assert "<img" not in made
    assert re.findall(r'href="([^"]*)"', made) == ["https://example.org/"]


# Corrections
ADDRESS = "/api/v1/corrections"


def correct(browser: Any, label: str, photo: bytes = SYSTEM.sample()) -> TestResponse:
    return browser.post(ADDRESS, query_string={"label": label}, data=form(photo, name="my holiday.jpg"))  # type: ignore[no-any-return]


def keep(folder: Path, label_folder: str, pixels: Pixels) -> None:
    corrections.keep(folder / "food11", label_folder, pixels)


def kept(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jpg"))


def test_nothing_is_kept_unless_the_operator_switched_it_on(tmp_path: Path) -> None:
    browser = client(keep_corrections=None)
    assert correct(browser, "Egg").status_code == 404
    page, keeping = browser.get("/").text, client(keep_corrections=tmp_path).get("/").text
    assert ("correction.js" in page, "correction.js" in keeping) == (False, True)
    assert ("Nothing is stored" in page, "Nothing is stored" in keeping) == (True, False)
    assert "not stored on the server" in page
    assert "only those that you correct are kept on the server" in keeping
    assert ADDRESS not in browser.get("/api/v1/openapi.json").get_json()["paths"]


@pytest.mark.promise("README: The photos stay on this machine")
def test_a_correction_is_a_small_square_in_the_folder_of_its_label(tmp_path: Path) -> None:
    answered = correct(client(keep_corrections=tmp_path), "Noodles/Pasta")
    contradicted = {"label": "Egg", "probability": 0.8}
    assert answered.get_json() == {"label": "Noodles/Pasta", "contradicted": contradicted}
    (path,) = kept(tmp_path)
    assert path.parent == tmp_path / "food11" / "Noodles-Pasta"
    assert "holiday" not in path.name
    with Image.open(path) as picture:
        assert picture.size == (224, 224)
        assert not picture.getexif()
    for private in (path, path.parent, path.parent.parent):
        assert private.stat().st_mode & 0o077 == 0
    (photo,) = LabelledPictures(SYSTEM.labels).listing(tmp_path / "food11", "train") or [None]
    assert photo is None or photo.class_id == 6


# Labels whose folders were read as other labels', as parts of a data folder, or as none; old folders stay.
HARD = (
    *("1", "2", "3", "C++", "C#", "C", "c", "class 3", "Other", "test", "../x", "..", "a b", "a-b", "+", "="),
    "L" * 300,
)


@pytest.mark.parametrize("labels", [HARD, HARD[::-1], ("2", "1", "0"), SYSTEM.labels])
def test_a_correction_of_any_label_is_read_as_that_label(tmp_path: Path, labels: tuple[str, ...]) -> None:
    for class_id, label in enumerate(labels):
        pixels = np.full((224, 224, 3), class_id, np.uint8)
        keep(tmp_path, folder_of(label, labels), pixels)
    examples = LabelledPictures(labels).listing(tmp_path / "food11", "all")
    assert sorted(photo.class_id for photo in examples) == list(range(len(labels)))
    for photo in examples:
        with Image.open(tmp_path / "food11" / photo.name) as picture:
            assert picture.getpixel((9, 9)) == (photo.class_id,) * 3


def test_corrections_of_a_photo_at_the_same_moment_are_answered_and_the_last_stays(tmp_path: Path) -> None:
    for number in range(10):
        pixels = np.full((224, 224, 3), number, np.uint8)
        with ThreadPoolExecutor(16) as pool:
            kept = [pool.submit(keep, tmp_path, SYSTEM.labels[index % 4], pixels) for index in range(16)]
        assert [future.exception() for future in kept] == [None] * 16
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 10


@pytest.mark.parametrize(("label", "photo"), [("Pizza", SYSTEM.sample()), ("Egg", b"no photo")])
def test_an_unusable_correction_is_refused(tmp_path: Path, label: str, photo: bytes) -> None:
    assert correct(client(keep_corrections=tmp_path), label, photo).status_code == 400
    assert kept(tmp_path) == []


def test_an_unwritable_folder_fails_only_the_correction(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    browser = client(keep_corrections=tmp_path / "file")
    refused = correct(browser, "Egg")
    assert (refused.status_code, refused.get_json()["error"]["code"]) == (503, "corrections_unavailable")
    assert refused.headers["Retry-After"]
    assert browser.post("/predict", data=form(), headers=JSON).status_code == 200


def test_a_full_folder_takes_no_more_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrections, "MAX_CORRECTIONS", 1)
    browser = client(keep_corrections=tmp_path)
    assert correct(browser, "Egg").status_code == 200
    assert correct(browser, "Soup").status_code == 200, "the same photo takes no further place"
    other = io.BytesIO()
    Image.new("RGB", (300, 300), "red").save(other, "PNG")
    refused = correct(browser, "Meat", other.getvalue())
    assert (refused.status_code, refused.get_json()["error"]["code"]) == (507, "corrections_full")
    assert len(kept(tmp_path)) == 1


# Heat maps
EXPLAIN = "/api/v1/explain"


def test_an_answer_of_no_food_is_explained_by_the_probability_of_another_subject() -> None:
    class Denies(FakeClassifier):
        def rows(self, deadline: Deadline, model: str = "") -> tuple[Model[PictureClassifier], AskRows]:
            served, _ = super().rows(deadline, model)
            served = replace(served, subject_threshold=0.5)

            def ask(images: Pixels) -> Floats:
                labels = np.full((len(images), len(served.labels)), 1 / len(served.labels), np.float32)
                is_whole = (images == images[0]).all(axis=(1, 2, 3)) & (len(images) == 1)
                return np.column_stack([labels, np.where(is_whole, 0.9, 0.7)]).astype(np.float32)

            return served, ask

    for address, label in ((EXPLAIN, "not food"), (f"{EXPLAIN}?label=Soup", "Soup")):
        answer = client(Denies()).post(address, data=form(PHOTO), headers={"Accept": LINES})
        last = json.loads(answer.text.splitlines()[-1])
        assert (answer.status_code, last["label"]) == (200, label)


def send(browser: FlaskClient, *photos: bytes, query: str = "", **options: Any) -> Any:
    return browser.post(EXPLAIN + query, data=form(*photos), **{"buffered": True, **options})


def lines(reply: Any) -> list[Any]:
    assert reply.status_code == 200, reply.text
    assert reply.mimetype == LINES
    return [json.loads(line) for line in reply.text.splitlines()]


def test_a_heat_map_streams_its_progress_and_two_maps_as_documented() -> None:
    browser = client()
    events = lines(send(browser))
    maps = [line for line in events if line["kind"] == "map"]
    assert [(line["grid"], line["final"]) for line in maps] == [(7, False), (14, True)]
    assert events[-1] is maps[-1]
    assert (maps[0]["label"], maps[0]["class_id"], maps[0]["probability"]) == ("Egg", 3, pytest.approx(0.8))
    assert maps[0]["model"] == {"name": "food_classifier", "version": "3"}
    assert [line["done"] for line in events if line["kind"] == "progress"][-1] == 245
    # The fake looks at the middle alone.
    falls = np.array(maps[0]["falls"])
    assert falls[3, 3] == pytest.approx(0.8)
    assert np.count_nonzero(falls) == 1
    made = browser.get("/api/v1/openapi.json").get_json()
    schema = made["paths"][EXPLAIN]["post"]["responses"]["200"]["content"][LINES]["schema"]
    for line in events:
        jsonschema.Draft202012Validator({**schema, "components": made["components"]}).validate(line)


def test_another_label_and_the_coarse_map_alone_can_be_requested() -> None:
    *progress, only = lines(send(client(), query="?label=Rice&grid=7"))
    assert (only["label"], only["class_id"], only["grid"], only["final"]) == ("Rice", 7, 7, True)
    assert progress[-1] == {"kind": "progress", "done": 49, "total": 49}
    text = base64.b64encode(PHOTO).decode()
    assert lines(client().post(f"{EXPLAIN}?grid=7", json={"images": [text]}))[-1]["label"] == "Egg"


@pytest.mark.parametrize(
    ("photos", "query", "status", "error"),
    [
        ([PHOTO], "?grid=8", 400, "bad_request"),
        ([PHOTO], "?label=Stone", 400, "bad_request"),
        ([PHOTO, PHOTO], "", 400, "bad_request"),
        ([PHOTO[:900]], "", 400, "broken_picture"),
        ([PHOTO], "?model=nobody", 404, "unknown_model"),
    ],
)
def test_a_heat_map_of_an_invalid_request_has_the_status_of_its_error(
    photos: list[bytes], query: str, status: int, error: str
) -> None:
    assert code(send(client(), *photos, query=query)) == (status, error)


def test_without_triton_a_heat_map_is_the_usual_error() -> None:
    browser = client(errors.ServingError("triton_unavailable", "away"))
    for _ in range(2):  # the turn was given back
        assert code(send(browser)) == (503, "triton_unavailable")


class Ending(FakeClassifier):
    """Is away after a few answers."""

    def rows(self, deadline: Deadline, model: str = "") -> tuple[Model[PictureClassifier], AskRows]:
        served, whole = super().rows(deadline, model)
        answers: Iterator[None] = iter([None] * 3)

        def ask(images: Pixels) -> Floats:
            for _ in answers:
                return whole(images)
            raise errors.ServingError("triton_unavailable", "gone")

        return served, ask


def test_an_error_during_a_heat_map_is_its_last_line() -> None:
    *progress, last = lines(send(client(Ending())))
    assert len(progress) == 2
    assert last["error"]["code"] == "triton_unavailable"
    assert last["error"]["request_id"]


class Held(FakeClassifier):
    """Answers, after the first picture, only when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.may_go_on = threading.Event(), threading.Event()

    def rows(self, deadline: Deadline, model: str = "") -> tuple[Model[PictureClassifier], AskRows]:
        served, whole = super().rows(deadline, model)

        def ask(images: Pixels) -> Floats:
            if len(images) > 1:
                self.reached.set()
                assert self.may_go_on.wait(30)
            return whole(images)

        return served, ask


def test_heat_maps_run_one_at_a_time_and_never_delay_photos() -> None:
    held = Held()
    app = create_app(Settings(max_at_work=1, max_waiting=4), held)

    def ask(path: str = EXPLAIN) -> Any:
        return app.test_client().post(path, data=PHOTO, content_type="image/jpeg", buffered=True)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: lines(send(app.test_client())))
        assert held.reached.wait(30)
        second = pool.submit(ask)
        eventually(lambda: 'stage="waiting"} 1.0' in app.test_client().get("/metrics").text)
        refused = ask()
        assert ask("/api/v1/classify").status_code == 200
        assert not second.done()
        held.may_go_on.set()
        assert first.result(30)[-1]["final"]
        assert second.result(30).status_code == 200
    assert code(refused) == (503, "overloaded")
    assert refused.headers["Retry-After"]
    assert ask().status_code == 200


def test_a_client_that_leaves_ends_its_heat_map() -> None:
    browser = client()
    send(browser, buffered=False).close()
    assert lines(send(browser))[-1]["final"]


@pytest.mark.parametrize(("allowed", "left"), [(20, 4), (5, 0)])
def test_a_heat_map_counts_as_sixteen_photos_or_the_whole_rate_limit(allowed: int, left: int) -> None:
    browser = client(rate_limit=Rate(allowed, 3600))
    reply = send(browser, query="?grid=7")
    assert lines(reply)
    assert f"r={left};" in reply.headers["RateLimit"]
    assert send(browser).status_code == 429
