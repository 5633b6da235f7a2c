"""The model repository on disk against the contract, with Triton's own protobuf as the judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from gourmet.repository.models import DEFAULT_REPOSITORY, RepositoryError, model_names, read_config
from gourmet.repository.versions import version_numbers
from gourmet.systems import registry

MODELS = [DEFAULT_REPOSITORY / name for name in model_names(DEFAULT_REPOSITORY)]

STRING, FP32, UINT8, INT32, INT64 = 13, 11, 2, 8, 9
_TRANSLATION = {
    "TRANSLATION": (STRING, [1]),
    "TOKENS": (INT32, [1]),
    "SCORE": (FP32, [1]),
    "SENTENCES": (STRING, [1]),
}
# Of the shipped network: layers of the decoder, keys and values, heads, words, numbers.
_KEPT = (FP32, [2, 2, 4, -1, 64])
_PICTURE = {"IMAGE": (STRING, [1]), "PROMPT": (STRING, [1]), "MAX_TOKENS": (INT32, [1])}
_CAPTION = {"CAPTION": (STRING, [1]), "TOKENS": (INT32, [1]), "SCORE": (FP32, [1])}
# name -> inputs, outputs, rows of a batch
PUBLIC = {
    "food_classifier": (
        {"INPUT_IMAGE": (STRING, [1])},
        {
            "FOOD_LABEL": (STRING, [1]),
            "PROBABILITY": (FP32, [1]),
            "PROBABILITIES": (FP32, [11]),
            "FOOD": (FP32, [1]),
            "DISHES": (STRING, [3]),
            "DISH_PROBABILITIES": (FP32, [3]),
        },
        16,
    ),
    "food_classifier_onnx": ({"input": (FP32, [3, 224, 224])}, {"output": (FP32, [11])}, 16),
    "food_classifier_int8": ({"image": (UINT8, [224, 224, 3])}, {"probabilities": (FP32, [11])}, 16),
    "digits": ({"input": (FP32, [1, 28, 28])}, {"logits": (FP32, [10])}, 64),
    "onnx-mnist-cpu": ({"input.1": (FP32, [1, 1, 28, 28])}, {"26": (FP32, [1, 10])}, 0),
    "translator": (
        {"TEXT": (STRING, [1]), "MAX_TOKENS": (INT32, [1]), "BEAMS": (INT32, [1])},
        _TRANSLATION,
        32,
    ),
    "translator_stream": ({"TEXT": (STRING, [1]), "MAX_TOKENS": (INT32, [1])}, _TRANSLATION, 0),
    "translator_bls": ({"TEXT": (STRING, [1])}, _TRANSLATION, 32),
    "translator_encoder": (
        {"ids": (INT64, [-1]), "mask": (INT32, [-1])},
        {"hidden": (FP32, [-1, 256]), "memory": _KEPT},
        16,
    ),
    "translator_decoder": (
        {
            "token": (INT64, [1]),
            "length": (INT64, [1]),
            "cache": _KEPT,
            "memory": _KEPT,
            "mask": (INT32, [-1]),
        },
        {"tokens": (INT32, [8]), "scores": (FP32, [8]), "added": (FP32, [2, 2, 4, 1, 64])},
        16,
    ),
    "captioner": ({**_PICTURE, "BEAMS": (INT32, [1])}, {**_CAPTION, "ALTERNATIVES": (STRING, [1])}, 16),
    "captioner_stream": (_PICTURE, _CAPTION, 0),
    "captioner_vision": (
        {"pixels": (UINT8, [128, 128, 3])},
        {"hidden": (FP32, [49, 256]), "memory": (FP32, [2, 2, 4, 49, 64])},
        1,
    ),
    "captioner_decoder": (
        {
            "token": (INT64, [-1]),
            "length": (INT64, [1]),
            "cache": _KEPT,
            "memory": _KEPT,
            "mask": (INT32, [-1]),
        },
        {"tokens": (INT32, [8]), "scores": (FP32, [8]), "added": _KEPT},
        16,
    ),
    "onnx-model": ({"source": (INT32, [50]), "target": (INT32, [50])}, {"output": (FP32, [-1, 6000])}, 4),
}


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.name)
def test_a_model_folder_is_loadable(model: Path) -> None:
    config = read_config(model)
    assert config.name == model.name
    assert version_numbers(model), f"{model} has no version folder like 1/"
    assert config.backend in {"python", "onnxruntime"}
    if config.backend == "python":
        assert all((model / str(version) / "model.py").is_file() for version in version_numbers(model))
    else:
        assert all((model / str(version) / "model.onnx").is_file() for version in version_numbers(model))


def classifies(model: Path) -> bool:
    name = read_config(model).parameters["system"].string_value
    return bool(name) and registry.load(name).task == "classification"


@pytest.mark.parametrize("model", [*filter(classifies, MODELS)], ids=lambda path: path.name)
def test_the_labels_are_those_of_the_systems_contract(model: Path) -> None:
    config = read_config(model)
    labels = registry.classification(config.parameters["system"].string_value).labels
    for output in config.output:
        if output.label_filename:
            assert tuple((model / output.label_filename).read_text().splitlines()) == labels
    assert any(output.label_filename for output in config.output)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_names_and_shapes_match_the_documented_ones(name: str) -> None:
    config = read_config(DEFAULT_REPOSITORY / name)
    inputs, outputs, rows = PUBLIC[name]
    assert {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in config.input} == inputs
    assert {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in config.output} == outputs
    assert config.max_batch_size == rows


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_one_config_serves_with_and_without_a_gpu(name: str) -> None:
    kinds = [group.kind for group in read_config(DEFAULT_REPOSITORY / name).instance_group]
    auto, cpu = 0, 2
    assert kinds == [auto if name in ("food_classifier", "food_classifier_onnx") else cpu]


@pytest.mark.parametrize("system", registry.names())
def test_the_default_model_of_every_system_is_served(system: str) -> None:
    assert registry.load(system).default_model in model_names(DEFAULT_REPOSITORY)


def test_a_config_that_triton_cannot_read_is_named_with_its_fault(tmp_path: Path) -> None:
    (tmp_path / "soup").mkdir()
    (tmp_path / "soup" / "config.pbtxt").write_text('name: "soup"\nmax_batchsize: 4\n')
    with pytest.raises(RepositoryError, match=r"soup/config\.pbtxt .*max_batchsize"):
        read_config(tmp_path / "soup")


@pytest.mark.parametrize(
    "config", sorted(DEFAULT_REPOSITORY.glob("*/configs/*.pbtxt")), ids=lambda path: str(path)[-40:]
)
def test_a_config_for_another_device_has_the_calibration_of_the_models_own(config: Path) -> None:
    mark = "# Generated with each version"
    own = (config.parents[1] / "config.pbtxt").read_text(encoding="utf-8")
    assert config.read_text(encoding="utf-8").partition(mark)[2] == own.partition(mark)[2]
