"""The contracts: numbers on which clients, models and trainers agree, and the files of a system."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gourmet.contracts import (
    WEB_PARAMETER,
    BadAnswer,
    BadModel,
    GeneratedText,
    ModelInfo,
    ScoredSentence,
    TensorSpec,
)
from gourmet.errors import GourmetError, UnknownSystem
from gourmet.pictures.certainty import softmax
from gourmet.pictures.classifier import PictureClassifier
from gourmet.systems import parts, registry
from gourmet.systems.digits import contract as digits
from gourmet.systems.food11 import contract
from gourmet.systems.parts import SystemParts
from gourmet.training.task import Solving, TrainOptions


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


IMAGES = np.random.default_rng(2).integers(0, 256, (2, 5, 4, 3), np.uint8)
TINTED = replace(contract.SYSTEM, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))


def test_pixels_are_normalised_by_channel_and_laid_out_as_the_network_wants() -> None:
    rows = (IMAGES / 255 - np.array(TINTED.mean)) / np.array(TINTED.std)
    channels_first = rows.transpose(0, 3, 1, 2)
    np.testing.assert_allclose(TINTED.tensor(IMAGES, "FP32"), channels_first, atol=1e-5)
    np.testing.assert_allclose(replace(TINTED, layout="NHWC").tensor(IMAGES, "FP32"), rows, atol=1e-5)
    half = TINTED.tensor(IMAGES, "FP16")
    assert half.dtype == np.float16
    np.testing.assert_array_equal(TINTED.tensor(IMAGES, "UINT8"), IMAGES)
    first = replace(TINTED, layout="NCHW").tensor(IMAGES, "UINT8")
    np.testing.assert_array_equal(first, IMAGES.transpose(0, 3, 1, 2))
    grey = replace(TINTED, mean=(0.0,), std=(1.0,)).tensor(IMAGES, "UINT8")
    np.testing.assert_array_equal(grey[0, :, :, 0], np.asarray(Image.fromarray(IMAGES[0]).convert("L")))


def test_labels_that_exclude_nothing_have_a_probability_each() -> None:
    several = replace(TINTED, multi_label=True, subject="")
    np.testing.assert_allclose(
        several.to_probabilities(LOGITS, 2.0), 1 / (1 + np.exp(-LOGITS / 2)), rtol=1e-5
    )
    with pytest.raises(BadAnswer, match="not between 0 and 1"):
        several.probabilities({"probabilities": np.full((1, 11), 1.5, np.float32)}, ModelInfo("m", (), ()))
    assert several.are_probabilities(np.array([[0.0, 1.0]], np.float32))
    assert not several.are_probabilities(np.array([[0.5, 1.01]], np.float32))
    assert TINTED.are_probabilities(np.array([[0.6, 0.4005]], np.float32))
    assert not TINTED.are_probabilities(np.array([[0.6, 0.41]], np.float32))
    assert not TINTED.are_probabilities(np.array([[np.nan, 0.4]], np.float32))


def model(scores: int, inputs: int = 1, **parameters: str) -> ModelInfo:
    taken = tuple(TensorSpec(f"input{number}", "FP32", (3, 224, 224)) for number in range(inputs))
    return ModelInfo("m", taken, (TensorSpec("output", "FP32", (-1, scores)),), parameters)


def test_a_model_has_a_score_for_each_of_its_labels_and_one_input() -> None:
    assert contract.SYSTEM.labels_of(model(11)) == contract.SYSTEM.labels
    assert contract.SYSTEM.labels_of(model(2, labels='["rose", "tulip"]')) == ("rose", "tulip")
    for wrong in (model(12), model(3, labels='["rose", "tulip"]'), model(11, labels='["rose", "tulip"]')):
        with pytest.raises(BadModel, match="scores a picture, but food11 has"):
            contract.SYSTEM.labels_of(wrong)
    assert contract.SYSTEM.takes(model(11))
    assert not contract.SYSTEM.takes(model(11, inputs=2))


@pytest.mark.parametrize(
    ("text", "number"), [("", 1.0), ("0.5", 0.5), ("0", None), ("nan", None), ("inf", None)]
)
def test_a_temperature_is_a_number_above_zero(text: str, number: float | None) -> None:
    served = model(11, temperature=text)
    if number is None:
        with pytest.raises(BadModel, match="it must be a number above 0"):
            assert served.temperature
    else:
        assert served.temperature == number


def test_the_newest_version_is_the_largest_number() -> None:
    metadata = {"name": "m", "inputs": [], "outputs": [], "versions": ["9", "10", "2"]}
    newest = ModelInfo.from_triton(metadata, {})
    assert (newest.version, newest.target) == ("10", "m")
    assert newest.at("9").target == "m/9"


def test_a_text_is_sure_from_the_threshold_on_if_each_sentence_is_and_nothing_warns() -> None:
    served = model(11, threshold="-0.5")
    assert [served.reaches(score) for score in (-0.5, -0.51, None)] == [True, False, None]
    assert model(11).reaches(-0.5) is None, "it has no threshold"
    sentences = [ScoredSentence(0, 3, -0.1), ScoredSentence(3, 6, -0.7)]
    assert served.is_sure(GeneratedText("a b", score=-0.4))
    assert not served.is_sure(GeneratedText("a b", score=-0.4, sentences=sentences))
    assert not served.is_sure(GeneratedText("a b", score=-0.4, warning="rare words"))
    assert not model(11, **{WEB_PARAMETER: "no"}).is_open_to_web


# The parts of a system
@pytest.mark.parametrize("system", ["digits", "food11"])
def test_the_parts_of_a_system_fulfil_their_protocols(system: str) -> None:
    parts = SystemParts(system)
    assert parts.export.formats
    if not isinstance(parts.training, Solving):
        assert parts.training.recipe(TrainOptions(epochs=1))
    assert callable(parts.evaluation.load)
    assert parts.data


def test_the_smallest_system_of_the_page_has_every_part_that_verbs_ask_for(systems_folder: Path) -> None:
    (systems_folder / "coins").mkdir()
    page = inspect.cleandoc(parts.__doc__ or "")
    files = re.findall(r"^    # src/gourmet/systems/(coins/\w+\.py)(.*?)(?=^    # src|\Z)", page, re.S | re.M)
    for path, code in files:
        (systems_folder / path).write_text(inspect.cleandoc(f"\n    #{code}"))
    coins = SystemParts("coins")
    assert registry.load("coins") == coins.classifier
    assert coins.data.parts(systems_folder) is not None
    assert coins.training.recipe(TrainOptions(epochs=1)).epochs == 1
    assert coins.evaluation.load
    assert coins.export.formats == ("onnx",)


@pytest.fixture
def folder(systems_folder: Path) -> Path:
    """A system whose folder is nearly empty."""
    (systems_folder / "unfinished").mkdir()
    (systems_folder / "unfinished" / "contract.py").write_text("SYSTEM = None\n")
    return systems_folder / "unfinished"


def test_a_file_that_is_missing_is_named(folder: Path) -> None:
    with pytest.raises(UnknownSystem, match=r"'unfinished' has no train\.py"):
        _ = SystemParts("unfinished").training


@pytest.mark.parametrize("content", ["", "TRAINING = 3\n"])
def test_an_object_that_is_missing_or_of_another_kind_is_named(content: str, folder: Path) -> None:
    (folder / "train.py").write_text(content)
    missing = r"train\.py has no TRAINING that fulfils gourmet\.training\.task\.Training"
    with pytest.raises(GourmetError, match=missing):
        _ = SystemParts("unfinished").training
    with pytest.raises(
        GourmetError, match=r"contract\.py has no SYSTEM that fulfils gourmet\.contracts\.Syst"
    ):
        registry.load("unfinished")
