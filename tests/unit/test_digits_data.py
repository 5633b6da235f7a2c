"""Digits in every form that they come in, and what is said of each form that is broken."""

from __future__ import annotations

import gzip
import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gourmet.errors import UsageError
from gourmet.evaluation.system_parts import BadData
from gourmet.systems.digits import contract, data

HEAD = "label," + ",".join(f"pixel{i}" for i in range(784))


def images(count: int) -> np.ndarray:
    """Blots that differ, each with some ink."""
    return np.random.default_rng(0).integers(1, 256, (count, 28, 28)).astype(np.uint8)


def labels(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint8) % 10


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def kaggle(path: Path, count: int = 100) -> Path:
    rows = np.concatenate([labels(count)[:, None], images(count).reshape(count, -1)], axis=1)
    path.write_text("\n".join([HEAD, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def mnist(folder: Path, *prefixes: str, count: int = 100) -> Path:
    for prefix in prefixes:
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(images(count)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels(count)))
    return folder


def sizes(path: Path) -> dict[str, int]:
    return {part: len(data.DATA.listing(path, part)) for part in data.PARTS}


def test_the_bundled_digits_are_scikit_learns_in_its_order() -> None:
    # Its file is read as it is: importing scikit-learn takes four seconds.
    (package,) = importlib.util.find_spec("sklearn").submodule_search_locations  # type: ignore[union-attr,misc]
    theirs = np.loadtxt(Path(package, "datasets", "data", "digits.csv.gz"), delimiter=",")
    path, words = data.bundled()
    photos = {digit.name: digit for part in data.PARTS for digit in data.DATA.listing(path, part)}
    assert len(photos) == len(theirs) == 1797
    assert "1,797" in words
    for row in (0, 7, 1796):
        mine = photos[f"digits.csv.gz:{row + 1}"]
        assert mine.class_id == theirs[row, -1]
        np.testing.assert_array_equal(mine.image, contract.layout(theirs[row, :-1].reshape(8, 8)))


def test_a_fifth_of_every_digit_is_held_out_and_a_tenth_of_the_rest() -> None:
    path, _ = data.bundled()
    counts = {part: Counter(digit.class_id for digit in data.DATA.listing(path, part)) for part in data.PARTS}
    for class_id in range(10):
        everything = sum(counts[part][class_id] for part in data.PARTS)
        assert counts["test"][class_id] == round(everything / 5)
        assert counts["validation"][class_id] == round((everything - counts["test"][class_id]) / 10)


def test_a_digit_of_the_data_comes_through_the_contract_as_it_is() -> None:
    digits = data.DATA.listing(data.bundled()[0], "test", limit=60)
    assert Counter(digit.class_id for digit in digits) == dict.fromkeys(range(10), 6)
    for digit, picture in zip(digits, data.DATA.read(digits), strict=True):
        np.testing.assert_array_equal(contract.SYSTEM.pixels(picture), digit.image)


def test_kaggles_csv_is_read_by_name_or_by_its_folder(tmp_path: Path) -> None:
    path = kaggle(tmp_path / "train.csv")
    assert sizes(path) == sizes(tmp_path) == {"train": 70, "validation": 10, "test": 20}
    digit = data.DATA.listing(path, "test")[0]
    row = int(digit.name.partition(":")[2]) - 1
    np.testing.assert_array_equal(digit.image, images(100)[row])
    assert digit.class_id == row % 10


@pytest.mark.parametrize("form", ["plain", "gz"])
def test_mnists_own_files_are_read_with_their_test_part(form: str, tmp_path: Path) -> None:
    mnist(tmp_path, "train", "t10k")
    for path in list(tmp_path.iterdir()) if form == "gz" else ():
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert sizes(tmp_path) == {"train": 90, "validation": 10, "test": 100}
    np.testing.assert_array_equal(data.DATA.listing(tmp_path, "test")[3].image, images(100)[3])


def test_mnists_training_files_alone_are_divided(tmp_path: Path) -> None:
    assert sizes(mnist(tmp_path, "train")) == {"train": 70, "validation": 10, "test": 20}


def test_few_digits_have_no_parts_to_measure_on(tmp_path: Path) -> None:
    mnist(tmp_path, "train", count=20)
    assert data.DATA.parts(tmp_path) == ()
    with pytest.raises(BadData, match="too few digits for a test part"):
        data.DATA.listing(tmp_path, "test")


def test_a_part_that_no_data_has_is_refused() -> None:
    with pytest.raises(UsageError, match="'tset' is not a part"):
        data.DATA.listing(data.bundled()[0], "tset")


def changed(change: Callable[[str], str]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = kaggle(folder / "train.csv", count=20)
        path.write_text(change(path.read_text()))
        return path

    return write


def broken_idx(what: str, content: bytes | None) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = mnist(folder, "train", count=20) / f"train-{what}-ubyte"
        path.unlink() if content is None else path.write_bytes(content)
        return folder

    return write


def cut_gzip(folder: Path) -> Path:
    path = folder / "digits.csv.gz"
    path.write_bytes(data.bundled()[0].read_bytes()[:9000])
    return path


NOT_LINES = r"train\.csv is not lines of 785 whole numbers"
NOT_WHOLE = "idx3-ubyte is not a whole idx file"


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        (lambda folder: folder / "gone.csv", r"gone\.csv cannot be read"),
        (lambda folder: folder, r"holds neither train\.csv nor train-images-idx3-ubyte"),
        (changed(lambda text: text.replace("label", "digit")), rf"{NOT_LINES} .*'digit'"),
        (changed(lambda text: text.partition("\n")[2]), rf"{NOT_LINES} .* it has 785 columns"),
        (changed(lambda text: text.replace("\n3,", "\n3.5,")), NOT_LINES),
        (changed(lambda text: text.replace("\n3,", "\n3,7,", 1)), rf"{NOT_LINES} .* changed from"),
        (changed(lambda text: HEAD + "\n"), rf"{NOT_LINES} .* it holds no digits"),
        (changed(lambda text: text.replace("\n3,", "\n13,", 1)), r"train\.csv: number 4 is labelled 13"),
        (changed(lambda text: text.replace("\n3,", "\n3,-", 1)), r"train\.csv: number 4 .* ink is from -"),
        (changed(lambda text: f"{HEAD}\n5{',0' * 784}\n"), r"train\.csv: number 1 .* ink is from 0 to 0"),
        (cut_gzip, r"digits\.csv\.gz cannot be read"),
        (broken_idx("images-idx3", idx(images(20))[:-5]), NOT_WHOLE),
        (broken_idx("images-idx3", b""), NOT_WHOLE),
        (broken_idx("labels-idx1", idx(images(20))), "idx1-ubyte is not a whole idx file .* 1 axes"),
        (broken_idx("labels-idx1", idx(labels(19))), "20×28×28 .* 19 labels"),
        (broken_idx("labels-idx1", idx(labels(20) + 20)), "idx3-ubyte: number 1 is labelled 20"),
        (broken_idx("images-idx3", idx(images(20)[:, 1:])), "20×27×28 pixels"),
        (broken_idx("labels-idx1", None), "train-labels-idx1-ubyte cannot be read"),
    ],
)
def test_broken_data_is_refused_with_the_place(
    write: Callable[[Path], Path], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(BadData, match=complaint):
        data.DATA.listing(write(tmp_path), "train")
