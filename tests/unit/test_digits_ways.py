"""The served digits network on drawings in the ways of several countries; and what is more than one digit."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from support import drawn_digits

from gourmet.pictures.certainty import certain_subject_threshold, relevance, softmax
from gourmet.pictures.decode import PictureError
from gourmet.systems.digits import contract, data
from gourmet.systems.food11 import contract as food11

PENS = (0.02, 0.05, 0.08, 0.12, 0.16)
PAGES_PEN = 22 / 280  # of digits.js, however small the digit


@pytest.fixture(scope="module")
def network() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(Path("triton/models/digits/1/model.onnx"))


def read(network: onnxruntime.InferenceSession, pictures: list[bytes]) -> list[int]:
    tensors = np.concatenate([contract.SYSTEM.encode(picture, "FP32") for picture in pictures])
    digits: list[int] = network.run(None, {"input": tensors})[0].argmax(axis=1).tolist()
    return digits


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


def test_a_small_digit_in_a_corner_is_read(network: onnxruntime.InferenceSession) -> None:
    corners = [(0.03, 0.03), (0.7, 0.05), (0.05, 0.7), (0.7, 0.7)]
    pictures = [
        drawn_digits.png(digit, brush=PAGES_PEN, at=corner, scale=0.25)
        for digit in range(10)
        for corner in corners
    ]
    assert read(network, pictures) == [digit for digit in range(10) for _ in corners]


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


def test_a_letter_a_scribble_and_a_photo_are_never_a_sure_digit(
    network: onnxruntime.InferenceSession,
) -> None:
    config = Path("triton/models/digits/config.pbtxt").read_text(encoding="utf-8")
    threshold = float(
        re.findall(r'"subject_threshold"\n  value \{\n    string_value: "([0-9.]+)"', config)[0]
    )
    photos = [path.read_bytes() for path in sorted(food11.SAMPLES.glob("*.jpg"))]
    drawings = data.no_digits(10, seed=1)
    rows = [contract.SYSTEM.pixels(photo) for photo in photos] + [picture.image for picture in drawings]
    logits = network.run(None, {"input": contract.SYSTEM.normalise(np.stack(rows))})[0]
    sure = (relevance(logits) >= certain_subject_threshold(threshold)) & (softmax(logits).max(axis=1) > 0.85)
    assert not sure[: len(photos)].any()
    assert sure.mean() < 0.02
