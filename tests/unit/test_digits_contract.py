"""The digits' contract: ink of either colour, anywhere and of any size, laid out as MNIST's."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from support import drawn_digits

from gourmet.pictures.decode import PictureError
from gourmet.systems.digits import contract


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def wide() -> bytes:
    canvas = np.zeros((280, 900), np.uint8)
    canvas[:, 600:880] = np.asarray(Image.open(io.BytesIO(drawn_digits.png(2))))
    return png(canvas)


def noisy() -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(drawn_digits.png(7))).save(buffer, "JPEG", quality=40)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("sent", "plain", "most"),
    [
        (drawn_digits.png(8, brush=0.02, at=(0.3, 0.2), scale=0.5), drawn_digits.png(8, brush=0.04), 6),
        (wide(), drawn_digits.png(2), 6),
        (noisy(), drawn_digits.png(7), 3),
    ],
    ids=["place and size", "a wide picture is not cropped", "a JPEG's noise is not ink"],
)
def test_the_margin_around_a_digit_does_not_matter(sent: bytes, plain: bytes, most: int) -> None:
    apart = np.abs(contract.SYSTEM.pixels(sent).astype(int) - contract.SYSTEM.pixels(plain))
    assert apart.mean() < most


@pytest.mark.parametrize(("ink", "paper"), [(0, 255), (255, 0), (40, 190), (200, 120)])
def test_ink_may_be_darker_or_lighter_than_the_border(ink: int, paper: int) -> None:
    pixels = contract.SYSTEM.pixels(drawn_digits.png(4, ink=ink, paper=paper))
    np.testing.assert_allclose(pixels, contract.SYSTEM.pixels(drawn_digits.png(4)), atol=2)


def test_ink_on_a_transparent_canvas_is_dark_ink_on_white() -> None:
    drawn = np.asarray(Image.open(io.BytesIO(drawn_digits.png(5))))
    canvas = np.dstack([np.zeros((*drawn.shape, 3), np.uint8), drawn])
    np.testing.assert_allclose(
        contract.SYSTEM.pixels(png(canvas)), contract.SYSTEM.pixels(drawn_digits.png(5)), atol=2
    )


@pytest.mark.parametrize("colour", [0, 128, 255])
def test_a_blank_picture_is_refused_as_blank(colour: int) -> None:
    with pytest.raises(PictureError, match="draw a digit") as raised:
        contract.SYSTEM.pixels(png(np.full((280, 280), colour, np.uint8)))
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
    np.testing.assert_array_equal(
        values[0], contract.SYSTEM.normalise(contract.SYSTEM.pixels(contract.SYSTEM.sample()))
    )


def test_the_examples_are_the_ten_digits_in_turn_and_the_same_for_the_same_seed() -> None:
    examples = contract.SYSTEM.examples(20, seed=3)
    assert len(set(examples)) == 20
    assert contract.SYSTEM.examples(20, seed=3) == examples
    model = onnxruntime.InferenceSession(Path("triton/models/digits/1/model.onnx"))
    tensors = np.concatenate([contract.SYSTEM.encode(example, "FP32") for example in examples])
    logits = model.run(None, {model.get_inputs()[0].name: tensors})[0]
    assert logits.argmax(axis=1).tolist() == [*range(10)] * 2
