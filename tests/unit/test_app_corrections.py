"""What visitors say a photo really shows: kept only where the operator wants it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.fake_classifier import client, form
from werkzeug.test import TestResponse

from app.features import corrections
from gourmet.systems.food11.contract import SYSTEM
from gourmet.tasks.classification.labelled_pictures import LabelledPictures

ADDRESS = "/api/v1/corrections"


def correct(browser: Any, label: str, photo: bytes = SYSTEM.sample()) -> TestResponse:
    return browser.post(ADDRESS, query_string={"label": label}, data=form(photo, name="my holiday.jpg"))  # type: ignore[no-any-return]


def kept(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_nothing_is_kept_unless_the_operator_switched_it_on() -> None:
    browser = client(keep_corrections=None)
    assert correct(browser, "Egg").status_code == 404
    page = browser.get("/").text
    assert "correction.js" not in page
    assert "not stored on the server" in page
    assert ADDRESS not in browser.get("/api/v1/openapi.json").get_json()["paths"]


def test_the_page_says_that_corrected_photos_are_kept(tmp_path: Path) -> None:
    page = client(keep_corrections=tmp_path).get("/").text
    assert "correction.js" in page
    assert "only those that you correct are kept on the server" in page


def test_a_correction_is_a_small_square_in_the_folder_of_its_label(tmp_path: Path) -> None:
    answered = correct(client(keep_corrections=tmp_path), "Noodles/Pasta")
    assert (answered.status_code, answered.get_json()) == (200, {"label": "Noodles/Pasta"})
    (path,) = kept(tmp_path)
    assert path.parent == tmp_path / "food11" / "Noodles-Pasta"
    assert "holiday" not in path.name
    with Image.open(path) as picture:
        assert picture.size == (224, 224)
        assert not picture.getexif()
    assert path.stat().st_mode & 0o077 == 0
    (photo,) = LabelledPictures(SYSTEM.labels).listing(tmp_path / "food11", "train") or [None]
    assert photo is None or photo.class_id == 6


def test_who_thinks_again_moves_the_photo(tmp_path: Path) -> None:
    browser = client(keep_corrections=tmp_path)
    for label in ("Egg", "Egg", "Soup"):
        assert correct(browser, label).status_code == 200
    assert [path.parent.name for path in kept(tmp_path)] == ["Soup"]


@pytest.mark.parametrize(
    ("label", "photo"), [("Pizza", SYSTEM.sample()), ("", SYSTEM.sample()), ("Egg", b"no photo")]
)
def test_what_cannot_be_learned_from_is_refused(tmp_path: Path, label: str, photo: bytes) -> None:
    answered = correct(client(keep_corrections=tmp_path), label, photo)
    assert answered.status_code == 400
    assert kept(tmp_path) == []


def test_a_full_folder_takes_no_more_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrections, "MOST", 1)
    browser = client(keep_corrections=tmp_path)
    assert correct(browser, "Egg").status_code == 200
    assert correct(browser, "Soup").status_code == 200, "the same photo takes no further place"
    other = io.BytesIO()
    Image.new("RGB", (300, 300), "red").save(other, "PNG")
    refused = correct(browser, "Meat", other.getvalue())
    assert (refused.status_code, refused.get_json()["error"]["code"]) == (507, "corrections_full")
    assert len(kept(tmp_path)) == 1
