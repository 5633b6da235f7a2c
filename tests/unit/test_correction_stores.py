"""Visitors' corrections in a bucket of a real S3 server: what holds for a folder holds there."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.fake_classifier import client, form
from support.object_store import Bucket, bucket
from werkzeug.test import TestResponse

from app.core.errors import Overloaded
from app.core.settings import Settings, SettingsError
from app.features import correction_stores
from app.features.correction_stores import InBucket
from gourmet.cli import main
from gourmet.client.deadline import Deadline
from gourmet.pictures.drawn import made_up
from gourmet.runtime import object_store
from gourmet.runtime.object_store import fetch, names_below
from gourmet.systems.food11.contract import SYSTEM
from gourmet.tasks.classification.labelled_pictures import LabelledPictures


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    with bucket() as found:
        yield found


@pytest.fixture
def place(server: Bucket, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """A prefix that nothing lies below."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    object_store._store.cache_clear()
    yield f"s3://{server.name}/{request.node.name.partition('[')[0]}"
    object_store._store.cache_clear()


def correct(browser: Any, label: str, photo: bytes = SYSTEM.sample()) -> TestResponse:
    return browser.post(  # type: ignore[no-any-return]
        "/api/v1/corrections", query_string={"label": label}, data=form(photo, name="my holiday.jpg")
    )


def code(answer: TestResponse) -> tuple[int, str]:
    return answer.status_code, answer.get_json()["error"]["code"]


def labels_at(place: str) -> list[str]:
    """Of the system's corrections, in the order of their labels."""
    return [name.split("/")[-2] for name in names_below(f"{place}/food11")]


def test_corrections_in_a_bucket_are_small_squares_that_learn_more_reads(place: str, tmp_path: Path) -> None:
    browser = client(keep_corrections=place)
    assert "only those that you correct are kept on the server" in browser.get("/").text
    for label, seed in (("Noodles/Pasta", 1), ("other", 2), ("Egg", 3)):
        answered = correct(browser, label, made_up(seed))
        assert (answered.status_code, answered.get_json()) == (200, {"label": label})
    assert labels_at(place) == ["Egg", "Noodles-Pasta", "other"]
    assert not [name for name in names_below(place) if "holiday" in name]
    fetch(f"{place}/food11", tmp_path)
    found = LabelledPictures(SYSTEM.labels).listing(tmp_path, "all")
    assert sorted(photo.class_id for photo in found) == [3, 6]
    for path in tmp_path.rglob("*.jpg"):
        assert path.read_bytes().startswith(b"\xff\xd8\xff")
        assert b"Exif" not in path.read_bytes()


def test_who_thinks_again_moves_the_photo_of_a_bucket_as_well(place: str) -> None:
    browser = client(keep_corrections=place)
    for label in ("Egg", "Egg", "Soup", "Meat", "Egg"):
        assert correct(browser, label).status_code == 200
    assert labels_at(place) == ["Egg"]


def test_of_corrections_of_one_photo_by_several_web_apps_at_a_time_one_is_left(place: str) -> None:
    pods = [InBucket(place) for _ in range(4)]
    for number in range(3):
        pixels = np.full((224, 224, 3), number, np.uint8)
        with ThreadPoolExecutor(16) as pool:
            kept = [
                pool.submit(pods[each % 4].keep, "food11", SYSTEM.labels[each % 5], pixels, Deadline(30))
                for each in range(16)
            ]
        assert [each.exception() for each in kept] == [None] * 16
        assert len(labels_at(place)) == number + 1


def test_a_full_bucket_takes_no_more_and_says_so(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correction_stores, "MOST", 2)
    browser = client(keep_corrections=place)
    for seed in (1, 2):
        assert correct(browser, "Egg", made_up(seed)).status_code == 200
    assert correct(browser, "Soup", made_up(2)).status_code == 200, "the same photo takes no further place"
    assert code(correct(browser, "Meat", made_up(3))) == (507, "corrections_full")
    with ThreadPoolExecutor(4) as pool:  # and where others keep theirs at the same moment
        monkeypatch.setattr(correction_stores, "MOST", 3)
        store = InBucket(place)
        sent = [np.full((224, 224, 3), each, np.uint8) for each in range(4)]
        for each in [pool.submit(store.keep, "food11", "Egg", pixels, Deadline(30)) for pixels in sent]:
            each.exception()
    assert len(labels_at(place)) <= 3


def test_a_bucket_that_is_not_there_costs_the_correction_alone(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    browser = client(keep_corrections="s3://nobodys/corrections")
    answered = correct(browser, "Egg")
    assert code(answered) == (503, "corrections_unavailable")
    assert answered.headers["Retry-After"]
    assert "send it again later" in answered.get_json()["error"]["message"]
    assert "nobodys" not in answered.text, "a visitor has no use for it"
    assert "nobodys/corrections/food11 cannot be had: The specified bucket does not exist" in caplog.text
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    object_store._store.cache_clear()
    assert code(correct(browser, "Egg")) == (503, "corrections_unavailable")
    assert browser.post("/predict", data=form(), headers={"Accept": "application/json"}).status_code == 200


def test_a_folder_that_cannot_be_written_to_says_so_as_a_bucket_does(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert code(correct(client(keep_corrections=tmp_path / "file"), "Egg")) == (
        503,
        "corrections_unavailable",
    )


def test_a_store_that_hangs_holds_few_threads_for_seconds_and_no_turn_of_the_photos(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        object_store._store.cache_clear()
        browser = client(keep_corrections=place, max_at_work=1)
        took, answers = [], []

        def one() -> None:
            began = time.monotonic()
            answers.append(code(correct(browser.application.test_client(), "Egg")))
            took.append(time.monotonic() - began)

        threads = [threading.Thread(target=one) for _ in range(12)]
        for thread in threads:
            thread.start()
        time.sleep(1)  # by now those at work wait for the store
        began = time.monotonic()
        answered = browser.post("/predict", data=form(), headers={"Accept": "application/json"})
        assert (answered.status_code, time.monotonic() - began < 1) == (200, True)
        for thread in threads:
            thread.join()
    # Of the eight places one client has six.
    assert sorted(answers) == [(503, "corrections_unavailable")] * 6 + [(503, "overloaded")] * 6
    assert max(took) < 8, took


def test_corrections_of_one_client_do_not_keep_others_from_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(InBucket, "_keep", lambda _, __, label, *___: label != "Egg" or over.wait(60))
    store, pixels = InBucket("s3://bucket/corrections"), np.zeros((8, 8, 3), np.uint8)

    def greedy() -> None:
        with contextlib.suppress(Overloaded):
            store.keep("food11", "Egg", pixels, Deadline(30, client="greedy"))

    threads = [threading.Thread(target=greedy) for _ in range(16)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    try:  # or it raises Overloaded
        store.keep("food11", "Soup", pixels, Deadline(30, client="honest"))
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_learn_more_fetches_what_lies_in_a_bucket_before_it_reads(place: str, tmp_path: Path) -> None:
    for seed in (1, 2):
        correct(client(keep_corrections=place), "Egg", made_up(seed))
    out = tmp_path / "run"
    (out / "pictures" / "Soup").mkdir(parents=True)
    (out / "pictures" / "Soup" / "of-before.jpg").write_bytes(b"")
    done = CliRunner().invoke(main, ["learn-more", "food11", f"{place}/food11", "--out", str(out)])
    assert f"2 objects, 0 MB, fetched from {place}/food11 into {out / 'pictures'}" in done.output
    assert f"Error: {out / 'pictures'} has " in done.output, "so few are refused, once they are here"
    assert [path.parent.name for path in (out / "pictures").rglob("*.jpg")] == ["Egg", "Egg"]
    nothing = CliRunner().invoke(main, ["learn-more", "food11", f"{place}/none", "--out", str(out)])
    assert "nothing found below" in nothing.output


@pytest.mark.parametrize("given", ["s3://", "s3:///corrections"])
def test_a_name_without_a_bucket_is_refused_at_the_start(given: str) -> None:
    with pytest.raises(SettingsError, match=r"KEEP_CORRECTIONS: .* names no bucket: write s3://BUCKET"):
        Settings.from_env({"KEEP_CORRECTIONS": given})
    assert Settings.from_env(os.environ | {"KEEP_CORRECTIONS": "s3://a/b"}).keep_corrections == "s3://a/b"
