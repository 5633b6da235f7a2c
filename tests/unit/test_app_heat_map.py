"""Heat maps: what is covered, what is found, and POST /api/v1/explain with a fake classifier behind it."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest
from flask.testing import FlaskClient
from support.eventually import eventually
from support.fake_classifier import PHOTO, FakeClassifier, client, form

from app import create_app
from app.api.texts import LINES
from app.models import AskRows, Model
from app.web import errors
from app.web.settings import Rate, Settings
from gourmet.pictures.certainty import Floats
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import Pixels
from gourmet.triton_client.deadline import Deadline

EXPLAIN = "/api/v1/explain"


# What is covered, and what is found


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


# The address


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
    ("photos", "query", "status", "code"),
    [
        ([PHOTO], "?grid=8", 400, "bad_request"),
        ([PHOTO], "?label=Stone", 400, "bad_request"),
        ([PHOTO, PHOTO], "", 400, "bad_request"),
        ([b"text"], "", 400, "not_a_picture"),
        ([PHOTO[:900]], "", 400, "broken_picture"),
        ([PHOTO], "?model=nobody", 404, "unknown_model"),
    ],
)
def test_a_heat_map_of_an_invalid_request_has_the_status_of_its_error(
    photos: list[bytes], query: str, status: int, code: str
) -> None:
    reply = send(client(), *photos, query=query)
    assert (reply.status_code, reply.get_json()["error"]["code"]) == (status, code)


def test_without_triton_a_heat_map_is_the_usual_error() -> None:
    browser = client(errors.ServingError("triton_unavailable", "away"))
    for _ in range(2):  # the turn was given back
        reply = send(browser)
        assert (reply.status_code, reply.get_json()["error"]["code"]) == (503, "triton_unavailable")


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
    """A turn lasts until the last line, and only so many wait: those beyond are refused."""
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
    assert (refused.status_code, refused.get_json()["error"]["code"]) == (503, "overloaded")
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
    assert reply.status_code == 200
    assert f"r={left};" in reply.headers["RateLimit"]
    lines(reply)
    assert send(browser).status_code == 429
