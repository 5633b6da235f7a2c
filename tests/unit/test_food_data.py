"""Every layout that the food loader reads, every fault that it names, and what a check selects."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from gourmet.errors import UsageError
from gourmet.evaluation.calibration import read_evaluation
from gourmet.evaluation.labelled_pictures import ALL, OTHER_TRAIN, decode
from gourmet.evaluation.picture_check import CheckedPictures, find_pictures
from gourmet.evaluation.system_parts import BadData
from gourmet.systems.food11 import contract
from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.food11.data import DATA
from gourmet.systems.food11.train import TRAINING
from gourmet.training.files import load_tensors
from gourmet.training.task import TrainOptions

CLASSES = range(len(contract.SYSTEM.labels))


def jpeg(colour: tuple[int, int, int] = (200, 80, 20), side: int = 16) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(buffer, "JPEG")
    return buffer.getvalue()


def write_zip(path: Path, names: list[str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, jpeg())


def write_folder(path: Path, names: list[str]) -> None:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(jpeg())


def test_zips_of_classes_and_dishes(tmp_path: Path) -> None:
    names = [f"{c:02d}/dish{d}/{i}.jpg" for c in CLASSES for d in range(2) for i in range(30)]
    write_zip(tmp_path / "train.zip", names)
    write_zip(tmp_path / "test.zip", names[:60])
    train, held = DATA.listing(tmp_path, "train"), DATA.listing(tmp_path, "validation")
    assert {p.name for p in train} | {p.name for p in held} == set(names)
    assert not {p.name for p in train} & {p.name for p in held}
    assert len(held) == pytest.approx(len(names) / 20, rel=0.8)
    assert len(DATA.listing(tmp_path, "test")) == 60
    assert sorted(p.class_id for p in DATA.listing(tmp_path, "train", limit=22)) == sorted([*CLASSES] * 2)
    assert DATA.parts(tmp_path) == ("validation", "test")


@pytest.mark.parametrize(
    "name",
    ["training/{0}_7.jpg", "training/{1}/7.jpg", "training/class_{0:02d}/7.jpg", "train/{0}/7.jpg"],
    ids=["flat, as Food-11 comes", "folders named like labels", "class_00", "numbers"],
)
def test_the_layouts_of_food11(name: str, tmp_path: Path) -> None:
    folders = [label.replace("/", "-") for label in contract.SYSTEM.labels]
    write_folder(tmp_path, [name.format(c, folders[c]) for c in CLASSES])
    write_folder(tmp_path, ["validation/0_1.jpg", "evaluation/3_1.jpg"])
    assert sorted(p.class_id for p in DATA.listing(tmp_path, "train")) == list(CLASSES)
    assert [p.class_id for p in DATA.listing(tmp_path, "validation")] == [0]
    assert [p.class_id for p in DATA.listing(tmp_path, "test")] == [3]


def test_a_plain_folder_of_class_folders_is_divided_once_and_for_all(tmp_path: Path) -> None:
    write_folder(tmp_path, [f"{c}/photo{c}_{i}.jpg" for c in CLASSES for i in range(20)])
    split = {part: {p.name for p in DATA.listing(tmp_path, part)} for part in ("train", "validation", "test")}
    assert sum(map(len, split.values())) == len(set.union(*split.values())) == 220
    assert min(map(len, split.values())) > 0
    write_folder(tmp_path, [f"{c}/more{i}.jpg" for c in CLASSES for i in range(5)])
    assert split["test"] <= {p.name for p in DATA.listing(tmp_path, "test")}


def test_a_file_name_that_is_not_utf_8_belongs_to_a_part(tmp_path: Path) -> None:
    write_folder(tmp_path, [os.fsdecode(b"Egg/%d\xf6.jpg" % number) for number in range(40)])
    parts = [DATA.listing(tmp_path, part) for part in ("train", "validation", "test")]
    assert sum(map(len, parts)) == 40


def test_hidden_files_and_notes_are_not_read_as_photos(tmp_path: Path) -> None:
    write_folder(tmp_path, ["test/0/a.jpg", "test/0/._a.jpg", "test/__MACOSX/0/a.jpg"])
    (tmp_path / "test/0/notes.txt").write_text("x")
    assert [p.name for p in DATA.listing(tmp_path, "test")] == ["0/a.jpg"]


def test_one_zip_holds_the_classes_and_pictures_of_none(tmp_path: Path) -> None:
    names = [f"{c:02d}/web/recipes_{i:04d}.webp" for c in CLASSES for i in range(9)]
    names += [f"other/animal/zoo_{i}.jpg" for i in range(20)]
    write_zip(tmp_path / "photos.zip", names)
    data = tmp_path / "photos.zip"
    photos = DATA.listing(data, ALL)
    assert len(photos) == 9 * len(CLASSES)
    assert {photo.origin for photo in photos} == {"recipes"}
    others = [*DATA.listing(data, OTHER_TRAIN), *DATA.listing(data, "other")]
    assert {photo.origin for photo in others} == {"zoo"}
    assert {photo.class_id for photo in others} == {len(CLASSES)}
    assert len(others) == 20
    assert "other" in DATA.parts(data)


def test_a_missing_class_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path, [f"train/{c}/{i}.jpg" for c in CLASSES if c != 9 for i in range(3)])
    with pytest.raises(BadData, match=r"has no photos of Soup: training needs all 11"):
        TRAINING.solve(tmp_path, TrainOptions(tmp_path / "out"), print)


@pytest.mark.slow
def test_training_measures_sources_not_learned_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gourmet.systems.food11.train._MADE_UP", 12)
    monkeypatch.setattr("gourmet.systems.food11.train._FOLDS", 2)
    data = tmp_path / "photos"
    names = [f"{c:02d}/{source}_{i}.jpg" for c in CLASSES for source in ("farm", "shop") for i in range(3)]
    for number, name in enumerate([*names, *(f"other/room_{i}.jpg" for i in range(4))]):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(jpeg((number % 255, 5 * number % 255, 90), side=32))
    report = TRAINING.solve(data, TrainOptions(tmp_path / "run"), lambda share, words="": None)
    assert re.search(r"^farm +33 +0\.\d+", report, re.M)
    assert "<svg" in (tmp_path / "run" / "confusions.svg").read_text()
    _, about = load_tensors(tmp_path / "run" / "last.safetensors")
    assert about["sources"] == ["farm", "room", "shop"]
    assert about["accuracy"]["sources held out"]["by_source"]["shop"]["photos"] == 33
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert sorted(line["photos"] for line in log[:-1]) == [33, 37]
    calibration, accuracy = read_evaluation(tmp_path / "run" / "last.safetensors")
    assert vars(calibration) == about["calibration"]
    assert accuracy == about["accuracy"]


@pytest.mark.parametrize("name", ["11/a.jpg", "Pizza/a.jpg", "class_12/a.jpg", "a.jpg"])
def test_a_class_too_many_is_named(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "test", [name])
    with pytest.raises(BadData, match=f"{name} is in none of the 11 classes"):
        DATA.listing(tmp_path, "test")


def test_a_corrupt_zip_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.zip").write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(BadData, match=r"train\.zip is not a zip that can be read"):
        DATA.listing(tmp_path, "train")


def test_a_zip_damaged_in_the_middle_names_the_photo(tmp_path: Path) -> None:
    write_zip(tmp_path / "test.zip", ["0/a.jpg", "0/b.jpg"])
    data = bytearray((tmp_path / "test.zip").read_bytes())
    start = data.index(b"0/b.jpg") + 60
    data[start : start + 40] = bytes(40)
    (tmp_path / "test.zip").write_bytes(data)
    with pytest.raises(BadData, match=r"test\.zip is damaged at 0/b\.jpg"):
        list(DATA.read(DATA.listing(tmp_path, "test")))


def test_an_unreadable_picture_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path, ["test/0/good.jpg"])
    (tmp_path / "test/0/bad.jpg").write_bytes(jpeg()[:200])
    with pytest.raises(BadData, match=r"test: 0/bad\.jpg: "):
        decode([DATA.listing(tmp_path, "test")], 16)


@pytest.mark.parametrize(("part", "error"), [("sharp", BadData), ("weekend", UsageError)])
def test_a_missing_part_is_an_error(part: str, error: type[Exception], tmp_path: Path) -> None:
    write_folder(tmp_path, ["train/0/a.jpg"])
    with pytest.raises(error, match=part):
        DATA.listing(tmp_path, part)


# What a check selects
@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Ten pictures a class, in class folders and not divided into parts."""
    return fill(tmp_path / "labelled", [f"{c:02d}/{c}_{n}.jpg" for c in CLASSES for n in range(10)])


def fill(folder: Path, names: list[str]) -> Path:
    write_folder(folder, names)
    return folder


def chosen(data: Path, limit: int | None = None) -> CheckedPictures:
    return find_pictures(DATA, SYSTEM.labels, data, limit)


def test_the_test_part_is_asked_about_with_names_classes_and_bytes_in_one_order(labelled: Path) -> None:
    result = chosen(labelled)
    assert result.names == [photo.name for photo in DATA.listing(labelled, "test")]
    assert 10 < len(result) < 110
    assert result.classes is not None
    assert [int(name.split("/")[0]) for name in result.names] == result.classes.tolist()
    assert list(result.read([3, 4, 5])) == [jpeg()] * 3
    assert len(chosen(labelled, limit=3)) == 3


def test_classes_without_pictures_are_named(labelled: Path) -> None:
    for picture in (labelled / "09").iterdir():
        picture.unlink()
    result = chosen(labelled)
    assert 0 < len(result) < 100
    assert "no pictures of " in result.note
    assert "Soup" in result.note


def test_a_folder_of_loose_pictures_has_no_labels_and_says_so(tmp_path: Path) -> None:
    result = chosen(fill(tmp_path / "loose", ["b.jpg", "a.png", "c.JPG", "notes.txt"]))
    assert result.classes is None
    assert result.names == ["a.png", "b.jpg", "c.JPG"]
    assert "carry no labels" in result.note
    assert list(result.read(range(3))) == [jpeg()] * 3


def test_every_picture_of_a_plain_folder_is_checked(tmp_path: Path) -> None:
    """It is not divided into parts, even if its pictures are named as Food-11 names them."""
    result = chosen(fill(tmp_path / "loose", [f"{n % 11}_{n}.jpg" for n in range(25)]))
    assert (len(result), result.note) == (25, "")
    assert result.classes is not None


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("nowhere", "does not exist"), ("empty", "holds no pictures: a picture's name ends in .*.jpg")],
)
def test_a_folder_without_pictures_is_refused(tmp_path: Path, name: str, complaint: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadData, match=complaint):
        chosen(tmp_path / name)
