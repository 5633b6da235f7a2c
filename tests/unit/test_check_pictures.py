"""Selection of the pictures of a check, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from gourmet.evaluation.picture_check import CheckedPictures, find_pictures
from gourmet.evaluation.system_parts import BadData
from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.food11.data import DATA

CLASSES = range(len(SYSTEM.labels))


@pytest.fixture(scope="module")
def blob() -> bytes:
    return SYSTEM.examples(1, 1, (32, 32))[0]


@pytest.fixture
def labelled(tmp_path: Path, blob: bytes) -> Path:
    """Ten pictures a class, in class folders and not divided into parts."""
    return fill(tmp_path / "labelled", blob, [f"{c:02d}/{c}_{n}.jpg" for c in CLASSES for n in range(10)])


def fill(folder: Path, blob: bytes, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(blob)
    return folder


def chosen(data: Path, limit: int | None = None) -> CheckedPictures:
    return find_pictures(DATA, SYSTEM.labels, data, limit)


def test_the_test_part_is_asked_about_with_names_classes_and_bytes_in_one_order(
    labelled: Path, blob: bytes
) -> None:
    result = chosen(labelled)
    assert result.names == [photo.name for photo in DATA.listing(labelled, "test")]
    assert 10 < len(result) < 110
    assert result.classes is not None
    assert [int(name.split("/")[0]) for name in result.names] == result.classes.tolist()
    assert list(result.read([3, 4, 5])) == [blob] * 3
    assert len(chosen(labelled, limit=3)) == 3


def test_classes_without_pictures_are_named(labelled: Path) -> None:
    for picture in (labelled / "09").iterdir():
        picture.unlink()
    result = chosen(labelled)
    assert 0 < len(result) < 100
    assert "no pictures of " in result.note
    assert "Soup" in result.note


def test_a_folder_of_loose_pictures_has_no_labels_and_says_so(tmp_path: Path, blob: bytes) -> None:
    result = chosen(fill(tmp_path / "loose", blob, ["b.jpg", "a.png", "c.JPG", "notes.txt"]))
    assert result.classes is None
    assert result.names == ["a.png", "b.jpg", "c.JPG"]
    assert "carry no labels" in result.note
    assert list(result.read(range(3))) == [blob] * 3


def test_every_picture_of_a_plain_folder_is_checked(tmp_path: Path, blob: bytes) -> None:
    """It is not divided into parts, even if its pictures are named as Food-11 names them."""
    data = fill(tmp_path / "loose", blob, [f"{n % 11}_{n}.jpg" for n in range(25)])
    result = chosen(data)
    assert len(result) == 25
    assert result.classes is not None
    assert result.note == ""


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("nowhere", "does not exist"), ("empty", "holds no pictures: a picture's name ends in .*.jpg")],
)
def test_a_folder_without_pictures_is_refused_in_a_sentence(
    tmp_path: Path, name: str, complaint: str
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadData, match=complaint):
        chosen(tmp_path / name)
