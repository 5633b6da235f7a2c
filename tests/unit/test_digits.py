"""The digits: ink of either colour laid out as MNIST's, their data in every form, and the served network."""

from __future__ import annotations

import gzip
import importlib.util
import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from support import drawn_digits
from support.hostile import encoded

from gourmet.errors import UsageError
from gourmet.evaluation.system_parts import BadData
from gourmet.pictures.certainty import certain_subject_threshold, relevance, softmax
from gourmet.pictures.decode import PictureError
from gourmet.repository.models import DEFAULT_REPOSITORY, read_config
from gourmet.systems.digits import contract, data
from gourmet.systems.food11 import contract as food11


def opened(picture: bytes) -> Image.Image:
    return Image.open(io.BytesIO(picture))


def wide() -> bytes:
    canvas = np.zeros((280, 900), np.uint8)
    canvas[:, 600:880] = np.asarray(opened(drawn_digits.png(2)))
    return encoded(Image.fromarray(canvas), "PNG")


@pytest.mark.parametrize(
    ("sent", "plain", "most"),
    [
        (drawn_digits.png(8, brush=0.02, at=(0.3, 0.2), scale=0.5), drawn_digits.png(8, brush=0.04), 6),
        (wide(), drawn_digits.png(2), 6),
        (encoded(opened(drawn_digits.png(7)), "JPEG", quality=40), drawn_digits.png(7), 3),
    ],
    ids=["place and size", "a wide picture is not cropped", "a JPEG's noise is not ink"],
)
def test_the_margin_around_a_digit_does_not_matter(sent: bytes, plain: bytes, most: int) -> None:
    apart = np.abs(contract.SYSTEM.pixels(sent).astype(int) - contract.SYSTEM.pixels(plain))
    assert apart.mean() < most


@pytest.mark.parametrize(("ink", "paper"), [(0, 255), (40, 190), (200, 120)])
def test_ink_may_be_darker_or_lighter_than_the_border(ink: int, paper: int) -> None:
    pixels = contract.SYSTEM.pixels(drawn_digits.png(4, ink=ink, paper=paper))
    np.testing.assert_allclose(pixels, contract.SYSTEM.pixels(drawn_digits.png(4)), atol=2)


def test_ink_on_a_transparent_canvas_is_dark_ink_on_white() -> None:
    drawn = np.asarray(opened(drawn_digits.png(5)))
    canvas = np.dstack([np.zeros((*drawn.shape, 3), np.uint8), drawn])
    pixels = contract.SYSTEM.pixels(encoded(Image.fromarray(canvas), "PNG"))
    np.testing.assert_allclose(pixels, contract.SYSTEM.pixels(drawn_digits.png(5)), atol=2)


@pytest.mark.parametrize("colour", [0, 128, 255])
def test_a_blank_picture_is_refused_as_blank(colour: int) -> None:
    with pytest.raises(PictureError, match="draw a digit") as raised:
        contract.SYSTEM.pixels(encoded(Image.new("L", (280, 280), colour), "PNG"))
    assert raised.value.code == "blank"


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (3, 2)])
def test_the_smallest_ink_is_laid_out_too(shape: tuple[int, int]) -> None:
    canvas = np.zeros((400, 400), np.uint8)
    canvas[5 : 5 + shape[0], 9 : 9 + shape[1]] = 255
    assert contract.layout(canvas).max() == 255


def test_a_picture_becomes_the_tensor_that_both_models_take() -> None:
    values = contract.SYSTEM.encode(contract.SYSTEM.sample(), "FP32")
    assert (values.shape, values.dtype) == ((1, 1, 28, 28), np.float32)
    assert (values.min(), values.max()) == (0.0, 1.0)
    pixels = contract.SYSTEM.pixels(contract.SYSTEM.sample())
    np.testing.assert_array_equal(values[0], contract.SYSTEM.normalise(pixels))


def test_the_examples_are_the_ten_digits_in_turn_and_the_same_for_the_same_seed() -> None:
    examples = contract.SYSTEM.examples(20, seed=3)
    assert len(set(examples)) == 20
    assert contract.SYSTEM.examples(20, seed=3) == examples
    model = onnxruntime.InferenceSession(Path("triton/models/digits/1/model.onnx"))
    tensors = np.concatenate([contract.SYSTEM.encode(example, "FP32") for example in examples])
    logits = model.run(None, {model.get_inputs()[0].name: tensors})[0]
    assert logits.argmax(axis=1).tolist() == [*range(10)] * 2


# The served network
PENS = (0.02, 0.05, 0.08, 0.12, 0.16)
PAGES_PEN = 22 / 280  # of digits.js, however small the digit


MODEL = DEFAULT_REPOSITORY / "digits"


@pytest.fixture(scope="module")
def network() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(MODEL / "1" / "model.onnx")


def read(network: onnxruntime.InferenceSession, pictures: list[bytes]) -> list[int]:
    tensors = np.concatenate([contract.SYSTEM.encode(picture, "FP32") for picture in pictures])
    digits: list[int] = network.run(None, {"input": tensors})[0].argmax(axis=1).tolist()
    return digits


def test_every_sample_digit_of_the_page_is_read_correctly(network: onnxruntime.InferenceSession) -> None:
    samples = Path(__file__).parents[2] / "app" / "static" / "digits"
    assert read(network, [(samples / f"{digit}.png").read_bytes() for digit in range(10)]) == [*range(10)]


@pytest.mark.parametrize(
    ("digit", "way"),
    [(digit, way) for digit, _, way in drawn_digits.WAYS],
    ids=[f"{digit}, {name}" for digit, name, _ in drawn_digits.WAYS],
)
def test_a_digit_in_the_ways_of_several_countries_is_read_with_every_pen(
    network: onnxruntime.InferenceSession, digit: int, way: list[drawn_digits.Stroke]
) -> None:
    drawn = [drawn_digits.png(way, brush=pen) for pen in PENS]
    small = drawn_digits.png(way, brush=PAGES_PEN, at=(0.05, 0.6), scale=0.3)
    assert read(network, [*drawn, small]) == [digit] * (len(PENS) + 1)


def beside(left: int, right: int, gap: int) -> bytes:
    """Two digits of 112 pixels, with so many pixels between them."""
    inks = [
        np.asarray(Image.open(io.BytesIO(drawn_digits.png(digit, scale=0.5, at=(0.2, 0.2), brush=0.05))))
        for digit in (left, right)
    ]
    marks = [ink[:, np.flatnonzero(ink.any(axis=0))] for ink in inks]
    picture = np.pad(np.hstack([marks[0], np.zeros((280, gap), np.uint8), marks[1]]), ((0, 0), (20, 20)))
    return contract.png(Image.fromarray(picture))


def test_two_digits_in_one_picture_are_refused() -> None:
    for left in range(10):
        for right in range(0, 10, 3):
            with pytest.raises(PictureError, match="there are several digits") as raised:
                contract.SYSTEM.pixels(beside(left, right, gap=12))
            assert raised.value.code == "several_digits"


def test_two_digits_that_slant_over_each_other_are_two() -> None:
    leaning = Image.open(io.BytesIO(beside(1, 2, 30))).transform(
        (400, 280), Image.Transform.AFFINE, (1, 0.4, -112, 0, 1, 0)
    )
    with pytest.raises(PictureError, match="there are several digits"):
        contract.SYSTEM.pixels(contract.png(leaning))


@pytest.mark.parametrize(
    "broken",
    [
        [
            [(0.34, 0.1), (0.3, 0.46), *drawn_digits.arc(0.48, 0.66, 0.26, 0.24, 230, 500)],
            [(0.5, 0.08), (0.84, 0.04)],
        ],
        [drawn_digits.arc(0.5, 0.5, 0.26, 0.4, 100, 260), drawn_digits.arc(0.5, 0.5, 0.26, 0.4, -80, 80)],
        [[(0.32, 0.1), (0.24, 0.54), (0.56, 0.54)], [(0.7, 0.12), (0.66, 0.9)]],
        [drawn_digits.arc(0.5, 0.26, 0.18, 0.18, 0, 360), drawn_digits.arc(0.5, 0.76, 0.2, 0.16, 0, 360)],
        [[(0.5, 0.1), (0.5, 0.9)], [(0.8, 0.88), (0.8, 0.9)]],
    ],
    ids=["a 5 with a loose flag", "a broken 0", "an open 4", "an 8 of two rings", "a 1 and a dot"],
)
def test_a_digit_whose_strokes_do_not_meet_is_one(broken: list[drawn_digits.Stroke]) -> None:
    assert contract.SYSTEM.pixels(drawn_digits.png(broken, brush=0.05)).max() == 255


def test_no_digit_of_the_writers_and_of_the_strokes_is_taken_for_several() -> None:
    for digit in (*data.DATA.listing(data.bundled()[0], "test"), *data.drawn(5, seed=1)):
        assert not contract.shows_several(digit.image), digit.name


def test_a_letter_a_scribble_or_a_photo_is_never_a_sure_digit(network: onnxruntime.InferenceSession) -> None:
    threshold = float(read_config(MODEL).parameters["subject_threshold"].string_value)
    photos = [path.read_bytes() for path in sorted(food11.SAMPLES.glob("*.jpg"))]
    drawings = data.no_digits(10, seed=1)
    rows = [contract.SYSTEM.pixels(photo) for photo in photos] + [picture.image for picture in drawings]
    logits = network.run(None, {"input": contract.SYSTEM.normalise(np.stack(rows))})[0]
    sure = (relevance(logits) >= certain_subject_threshold(threshold)) & (softmax(logits).max(axis=1) > 0.85)
    assert not sure[: len(photos)].any()
    assert sure.mean() < 0.02


# The data
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


def test_few_digits_have_no_parts_to_measure_on(tmp_path: Path) -> None:
    assert sizes(mnist(tmp_path, "train")) == {"train": 70, "validation": 10, "test": 20}
    (tmp_path / "few").mkdir()
    few = mnist(tmp_path / "few", "train", count=20)
    assert data.DATA.parts(few) == ()
    with pytest.raises(BadData, match="too few digits for a test part"):
        data.DATA.listing(few, "test")
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
        (changed(lambda text: HEAD + "\n"), rf"{NOT_LINES} .* it holds no digits"),
        (changed(lambda text: text.replace("\n3,", "\n13,", 1)), r"train\.csv: number 4 is labelled 13"),
        (changed(lambda text: f"{HEAD}\n5{',0' * 784}\n"), r"train\.csv: number 1 .* ink is from 0 to 0"),
        (cut_gzip, r"digits\.csv\.gz cannot be read"),
        (broken_idx("images-idx3", idx(images(20))[:-5]), NOT_WHOLE),
        (broken_idx("labels-idx1", idx(images(20))), "idx1-ubyte is not a whole idx file .* 1 axes"),
        (broken_idx("labels-idx1", idx(labels(19))), "20×28×28 .* 19 labels"),
        (broken_idx("images-idx3", idx(images(20)[:, 1:])), "20×27×28 pixels"),
        (broken_idx("labels-idx1", None), "train-labels-idx1-ubyte cannot be read"),
    ],
)
def test_broken_data_is_refused(write: Callable[[Path], Path], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=complaint):
        data.DATA.listing(write(tmp_path), "train")
