"""The food contract: the numbers that every client, model and trainer must agree on."""

from __future__ import annotations

import numpy as np
import pytest

from gourmet.contracts import ModelInfo
from gourmet.pictures.certainty import softmax
from gourmet.pictures.classifier import PictureClassifier
from gourmet.systems.digits import contract as digits
from gourmet.systems.food11 import contract


def test_there_are_eleven_labels_in_food11_s_order() -> None:
    assert len(contract.SYSTEM.labels) == len(set(contract.SYSTEM.labels)) == 11
    assert list(contract.SYSTEM.labels) == sorted(contract.SYSTEM.labels)
    assert contract.SYSTEM.labels[3] == "Egg"


def test_a_photo_becomes_the_tensor_that_the_model_takes() -> None:
    photo = contract.SYSTEM.sample()
    raw = contract.SYSTEM.encode(photo, "BYTES")
    assert raw.shape == (1, 1)
    assert raw[0, 0] == photo
    pixels = contract.SYSTEM.encode(photo, "UINT8")
    assert (pixels.shape, pixels.dtype) == ((1, 224, 224, 3), np.uint8)
    values = contract.SYSTEM.encode(photo, "FP32")
    assert (values.shape, values.dtype) == ((1, 3, 224, 224), np.float32)
    np.testing.assert_array_equal(values, contract.SYSTEM.normalise(pixels))


LOGITS = np.random.default_rng(1).normal(size=(2, 11)).astype(np.float32)


def test_every_model_gives_the_probability_that_a_picture_shows_food() -> None:
    shares = softmax(np.array([np.arange(11.0), np.ones(11)], np.float32))
    food = np.array([[0.03], [0.9]], np.float32)
    forms = {
        "food_classifier": {"PROBABILITIES": shares, "FOOD": food},
        "food_classifier_onnx": {"output": np.log(shares) + np.log(food / (1 - food))},
        "food_classifier_int8": {"probabilities": shares * food},
    }
    for name, outputs in forms.items():
        model = ModelInfo(name, (), (), {"subject_threshold": "0.5"})
        relevance = contract.SYSTEM.relevance(outputs, model)
        assert relevance is not None
        np.testing.assert_allclose(relevance, food[:, 0], rtol=1e-4, err_msg=name)
        np.testing.assert_allclose(
            contract.SYSTEM.probabilities_from(outputs), shares, rtol=1e-4, err_msg=name
        )
        assert contract.SYSTEM.relevance(outputs, ModelInfo(name, (), ())) is None, "which does not tell"


@pytest.mark.parametrize(
    ("system", "takes", "answers"),
    [
        (contract.SYSTEM, "BYTES, UINT8, FP32", "PROBABILITIES, probabilities, output"),
        (digits.SYSTEM, "FP32", "logits, 26"),
    ],
)
def test_types_and_outputs_of_other_models_are_named(
    system: PictureClassifier, takes: str, answers: str
) -> None:
    with pytest.raises(ValueError, match=f"inputs of the types {takes}, not INT64"):
        system.encode(system.sample(), "INT64")
    with pytest.raises(ValueError, match=rf"\['translation'\] have none of {answers}"):
        system.probabilities_from({"translation": LOGITS})
