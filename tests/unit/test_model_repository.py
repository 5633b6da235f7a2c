"""The model repository against the contract and Triton's protobuf, and files against their manifest."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import onnx
import pytest

from gourmet.repository.models import DEFAULT_REPOSITORY, RepositoryError, model_names, read_config
from gourmet.repository.versions import version_numbers
from gourmet.served import manifest
from gourmet.systems import registry

MODELS = [DEFAULT_REPOSITORY / name for name in model_names(DEFAULT_REPOSITORY)]

STRING, FP32, UINT8, INT32, INT64 = 13, 11, 2, 8, 9
_NUMBERS = {"TOKENS": (INT32, [1]), "SCORE": (FP32, [1])}
_TRANSLATION = {"TRANSLATION": (STRING, [1]), **_NUMBERS, "SENTENCES": (STRING, [1])}
# Of the shipped network: layers of the decoder, keys and values, heads, words, numbers.
_KEPT = (FP32, [2, 2, 4, -1, 64])
_STEP = {"length": (INT64, [1]), "cache": _KEPT, "memory": _KEPT, "mask": (INT32, [-1])}
_PICTURE = {"IMAGE": (STRING, [1]), "PROMPT": (STRING, [1]), "MAX_TOKENS": (INT32, [1])}
_CAPTION = {"CAPTION": (STRING, [1]), "TOKENS": (INT32, [1]), "SCORE": (FP32, [1])}
# name -> inputs, outputs, rows of a batch
PUBLIC = {
    "food_classifier": (
        {"INPUT_IMAGE": (STRING, [1])},
        {
            **{"FOOD_LABEL": (STRING, [1]), "PROBABILITY": (FP32, [1]), "PROBABILITIES": (FP32, [11])},
            **{"FOOD": (FP32, [1]), "DISHES": (STRING, [3]), "DISH_PROBABILITIES": (FP32, [3])},
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
        {"token": (INT64, [1]), **_STEP},
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
        {"token": (INT64, [-1]), **_STEP},
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


# Files and their manifest
REQUIRED, ASKED = (
    {"name": "soup", "parameters": {"manifest": {"string_value": value}}} for value in ("required", "yes")
)


def version(folder: Path, content: bytes = b"weights", **says: Any) -> Path:
    """A version folder with a file and its manifest, which says something else where told to."""
    file = folder / "model.onnx"
    file.write_bytes(content)
    right = {"file": "model.onnx", "sha256": manifest.sha256(file)}
    (folder / manifest.MANIFEST).write_text(json.dumps({**right, **says}))
    return file


def test_another_file_is_refused_with_both_hashes(tmp_path: Path) -> None:
    file = version(tmp_path)
    assert manifest.check_files(file, REQUIRED)
    deployed = manifest.sha256(file)
    file.write_bytes(b"weightz")
    says = f"has sha256 {manifest.sha256(file)}, its manifest says {deployed}"
    with pytest.raises(manifest.ManifestError, match=says):
        manifest.check_files(file, {})


def test_all_files_of_a_version_are_checked_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "1"
    folder.mkdir()
    more = folder / "model_int8.onnx"
    more.write_bytes(b"small")
    version(folder, also={more.name: {"sha256": manifest.sha256(more)}})
    assert manifest.check_files(None, {}, folder)
    for content in (b"smalL", b"", b"small\0", b"s"):
        more.write_bytes(content)
        with pytest.raises(manifest.ManifestError, match="this is not the deployed file"):
            manifest.check_files(None, {}, folder)
    (tmp_path / "outside").write_bytes(b"small")
    version(folder, also={"../outside": {"sha256": manifest.sha256(tmp_path / "outside")}})
    with pytest.raises(manifest.ManifestError, match="is not a file of the version"):
        manifest.check_files(None, {}, folder)


def test_without_a_manifest_the_config_decides(tmp_path: Path) -> None:
    file = version(tmp_path)
    (tmp_path / manifest.MANIFEST).unlink()
    assert not manifest.check_files(file, {})
    for config in (REQUIRED, ASKED):
        with pytest.raises(
            manifest.ManifestError, match=r"manifest\.json is missing, and the model.s config re"
        ):
            manifest.check_files(file, config)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"file": "model.onnx"}', "\xff"])
def test_an_empty_manifest_is_refused(tmp_path: Path, text: str) -> None:
    file = version(tmp_path)
    (tmp_path / manifest.MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(manifest.ManifestError, match="cannot be read"):
        manifest.check_files(file, {})


def test_a_version_of_a_later_release_is_refused_with_that_release(tmp_path: Path) -> None:
    file = version(tmp_path, format=manifest.FORMAT, release="1.0.0")
    assert manifest.check_files(file, REQUIRED)
    file = version(tmp_path, format=manifest.FORMAT + 1, release="9.1.0")
    with pytest.raises(manifest.ManifestError, match=r"written by release 9\.1\.0.*install that release"):
        manifest.check_files(file, REQUIRED)


def test_a_manifest_of_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(manifest.ManifestError, match=r"lists 'model\.pt', not 'model\.onnx'"):
        manifest.check_files(version(tmp_path, file="model.pt"), {})


def test_another_listed_file_that_is_missing_is_noticed(tmp_path: Path) -> None:
    file = version(tmp_path, also={"model_int8.onnx": {"sha256": "0"}})
    with pytest.raises(manifest.ManifestError, match=r"lacks model_int8\.onnx, which its manifest lists"):
        manifest.check_files(file, {})
    (tmp_path / "model_int8.onnx").touch()
    assert manifest.check_files(file, {})


def test_a_file_in_a_folder_of_its_version_is_named_with_it(tmp_path: Path) -> None:
    inner = tmp_path / "model.onnx"
    inner.mkdir()
    file = inner / "model.onnx"
    file.write_bytes(b"large")
    says = {"file": "model.onnx/model.onnx", "sha256": manifest.sha256(file)}
    (tmp_path / manifest.MANIFEST).write_text(json.dumps(says))
    assert manifest.check_files(file, REQUIRED, tmp_path)


# food_first opens the file of food_classifier_onnx, whose manifest it has not.
@pytest.mark.parametrize("name", [name for name in model_names(DEFAULT_REPOSITORY) if name != "food_first"])
def test_the_shipped_models_ask_for_their_manifest_and_are_the_deployed_files(name: str) -> None:
    model = DEFAULT_REPOSITORY / name
    for number in version_numbers(model):
        folder = model / str(number)
        file = folder / json.loads((folder / manifest.MANIFEST).read_text())["file"]
        assert manifest.check_files(file, {})
    assert read_config(model).parameters[manifest.PARAMETER].string_value == manifest.REQUIRED


@pytest.mark.parametrize(
    "file",
    sorted(file for file in DEFAULT_REPOSITORY.glob("*/1/*.onnx") if not file.is_symlink()),
    ids=lambda file: file.parts[-3],
)
def test_the_shipped_onnx_files_have_their_labels_licence_and_version(file: Path) -> None:
    about = json.loads((file.parent / manifest.MANIFEST).read_text())["network"]
    metadata = {prop.key: prop.value for prop in onnx.load(file).metadata_props}
    assert metadata["system"] == about["system"]
    assert json.loads(metadata.get("labels", "[]")) == about.get("labels", [])
    assert {"license", "version"} <= metadata.keys()


@pytest.mark.parametrize("name", ["digits", "food_classifier_onnx", "food_classifier_int8"])
def test_the_config_has_the_fields_that_nvidia_s_image_client_reads(name: str) -> None:
    (image,), (answer,) = read_config(DEFAULT_REPOSITORY / name).input, PUBLIC[name][1].values()
    assert answer[1] != [1], "one vector a picture"
    sizes = list(image.dims)
    channels = {image.FORMAT_NCHW: sizes[0], image.FORMAT_NHWC: sizes[2]}.get(image.format, 0)
    assert channels in (1, 3), "no format, or not the one of its shape"
    assert math.prod(sizes) == channels * max(sizes) ** 2


def test_a_version_without_its_file_says_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(manifest.ManifestError, match=r"1 has no model.onnx: put the model there"):
        manifest.deployed_file(tmp_path / "1", {}, "model.onnx")
