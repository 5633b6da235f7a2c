"""The digits models on the real server: right digits, and every row its own answer."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as triton_http
from PIL import Image
from support import drawn_digits

from gourmet.systems.digits import contract, data

NAMES = {"digits": ("input", "logits"), "onnx-mnist-cpu": ("input.1", "26")}


@pytest.fixture(scope="module")
def client(triton) -> Iterator[triton_http.InferenceServerClient]:
    with triton_http.InferenceServerClient(triton.http_url, concurrency=16) as client:
        yield client


def tensor(model: str, values: np.ndarray) -> list[triton_http.InferInput]:
    tensor_input = triton_http.InferInput(NAMES[model][0], list(values.shape), "FP32")
    tensor_input.set_data_from_numpy(values)
    return [tensor_input]


def logits(client: triton_http.InferenceServerClient, model: str, values: np.ndarray) -> np.ndarray:
    return client.infer(model, tensor(model, values)).as_numpy(NAMES[model][1])


@pytest.fixture(scope="module")
def held_out() -> tuple[np.ndarray, np.ndarray]:
    digits = data.DATA.listing(data.bundled()[0], "test")
    return np.stack([contract.SYSTEM.normalise(digit.image) for digit in digits]), np.array(
        [d.class_id for d in digits]
    )


@pytest.mark.parametrize("digit", [0, 8])
def test_a_0_and_an_8_are_read_in_the_original_input_format(client, digit) -> None:
    image = drawn_digits.png(digit, size=28)
    # Their client sends the grey values of a 28×28 picture, 0 to 255, as they are.
    values = np.asarray(Image.open(io.BytesIO(image)), np.float32).reshape(1, 1, 28, 28)
    answer = logits(client, "onnx-mnist-cpu", values)
    assert answer.shape == (1, 10)
    assert np.argmax(np.squeeze(answer)) == digit, f"Test for image of {digit} class failed."
    print(f"Test for image of {digit} class is done.")  # noqa: T201


@pytest.mark.smoke
@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize(("ink", "paper"), [(255, 0), (0, 255)], ids=["white on black", "black on white"])
def test_drawn_digits_are_recognised(client, model, ink, paper) -> None:
    for digit in range(10):
        values = contract.SYSTEM.encode(drawn_digits.png(digit, ink=ink, paper=paper), "FP32")
        assert logits(client, model, values).argmax() == digit


def test_held_out_digits_in_full_batches_are_nearly_all_right(client, held_out) -> None:
    images, classes = held_out
    answers = np.concatenate(
        [logits(client, "digits", images[first : first + 64]) for first in range(0, len(images), 64)]
    )
    assert np.mean(answers.argmax(axis=1) == classes) >= 0.985
