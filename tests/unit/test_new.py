"""`gourmet new`: each form of a network is served, what is assumed is shown, and a refusal leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file
from support import small_network
from support.cli import said
from support.onnx_network import BYTE, HALF, WEIGHTS, network
from support.small_network import ARCHITECTURE, LABELS
from support.stopping import files
from torch import nn

from gourmet.contracts import ModelInfo
from gourmet.errors import GourmetError, UsageError
from gourmet.export.picture_export import open_onnx
from gourmet.export.torchvision_network import build, fitted
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.made_up import clouds
from gourmet.repository.models import read_config
from gourmet.systems import described_pictures, registry
from gourmet.systems.parts import SystemParts

New = Callable[..., str]


@pytest.fixture
def new(systems_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> New:
    """Runs `gourmet new` with folders of its own, and returns its output without line ends."""
    monkeypatch.setenv("GOURMET_KEYS", str(tmp_path / "keys"))

    def run(
        given: Path | onnx.ModelProto | None,
        *words: object,
        labels: str = "a,b,c",
        name: str = "flowers",
        status: int = 0,
    ) -> str:
        if isinstance(given, onnx.ModelProto):
            onnx.save(given, given := tmp_path / "given.onnx")
        command = ["new", name, "--labels", labels, "--to", tmp_path / "models", *words]
        command += ["--weights", given] if given else []
        return " ".join(said(*command, status=status).split())

    return run


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_network.saved(tmp_path_factory.mktemp("theirs") / "best.pth")


def test_plain_weights_become_a_system_and_its_served_model(new: New, weights: Path, tmp_path: Path) -> None:
    assert "gourmet up" in new(weights, "--architecture", ARCHITECTURE, labels=",".join(LABELS))
    names = ("config.pbtxt", "labels.txt", "1/model.onnx", "1/manifest.json")
    assert files(tmp_path / "models") == {f"flowers_onnx/{name}" for name in names}
    model = tmp_path / "models" / "flowers_onnx"
    manifest = json.loads((model / "1" / "manifest.json").read_text())
    assert manifest["verified_on"] == "made-up pictures"
    assert manifest["network"]["architecture"] == ARCHITECTURE
    config = read_config(model)
    assert config.input[0].format == config.input[0].FORMAT_NCHW
    assert json.loads(config.parameters["labels"].string_value) == list(LABELS)

    system = registry.classification("flowers")
    assert (system.title, system.labels, system.model_variable) == ("Flowers", LABELS, "FLOWERS_MODEL_NAME")
    session = open_onnx(model / "1" / "model.onnx", "input", "output")
    answer = {"output": session(system.encode(system.sample(), "FP32"))}
    assert system.describe_answer(answer, ModelInfo("flowers_onnx", (), ())).startswith("the sample is ")
    parts = SystemParts("flowers")
    assert parts.export.formats == ("onnx",)
    assert parts.training.bundled_data() is None
    assert parts.evaluation
    made = {f"flowers/{name}" for name in ("system.toml", "sample.jpg", "MODEL_CARD.md")}
    assert files(tmp_path / "systems") == made, "data, and no code"


def threshold_of(models: Path) -> float:
    return float(read_config(models / "flowers_onnx").parameters["threshold"].string_value)


def test_a_new_system_has_a_threshold_only_with_labelled_pictures(new: New, tmp_path: Path) -> None:
    model, labels = network(), LABELS[:3]
    photos, models = tmp_path / "photos", tmp_path / "models"
    for number, label in enumerate(labels):
        (photos / label).mkdir(parents=True)
        for seed in range(10):
            (photos / label / f"{seed}.png").write_bytes(clouds(seed=10 * number + seed))
    assert "not calibrated: no answer is called sure" in new(model, labels=",".join(labels))
    assert threshold_of(models) == 0
    later = said("check", "flowers", "--calibrate", "--data", photos, "--model-repository", models)
    assert "written to flowers_onnx" in later
    chosen = threshold_of(models)
    curve = json.loads(read_config(models / "flowers_onnx").parameters["coverage"].string_value)
    assert chosen in [threshold for threshold, _, _ in curve]
    assert chosen > 0
    shutil.rmtree(tmp_path / "systems" / "flowers")
    shutil.rmtree(models)
    assert "not calibrated" not in new(model, "--data", photos, labels=",".join(labels))
    assert threshold_of(models) == pytest.approx(chosen, abs=1e-3)
    manifest = json.loads((models / "flowers_onnx/1/manifest.json").read_text())
    assert manifest["accuracy"]["given"]["photos"] == 10 * len(labels)


def test_without_weights_the_output_says_how_to_train(new: New, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("rose\n\ntulip\n")
    assert "gourmet train flowers --data" in new(None, labels=str(labels))
    assert registry.classification("flowers").labels == ("rose", "tulip")
    assert not files(tmp_path / "models")


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ("rose", "neither a file nor a list"),
        ("rose,", "names 1 label"),
        ("rose,tulip,rose", "names rose twice"),
        ("{weights}", "is not a text file"),
    ],
)
def test_invalid_labels_are_refused(
    labels: str, complaint: str, new: New, weights: Path, tmp_path: Path
) -> None:
    assert complaint in new(None, labels=labels.format(weights=weights), status=2)
    assert files(tmp_path) == set()


def test_an_existing_folder_stays_unchanged(new: New, tmp_path: Path) -> None:
    notes = tmp_path / "systems" / "flowers" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    assert f"{notes.parent} is there already" in new(None, status=2)
    assert files(tmp_path) == {"systems/flowers/notes.txt"}


def test_a_title_and_labels_are_kept_as_they_were_written(new: New) -> None:
    title = 'Flowers "of\\the field"\n\x7f'
    labels = ("three \"\"\" '''", '"] x = ["', "C++", "${HOME}", "пион 🌸")
    new(None, "--title", title, labels=", ".join(labels[:3]) + ",\n" + ",".join(labels[3:]))
    system = registry.classification("flowers")
    assert (system.title, system.labels) == (title, labels)


def with_output(name: str) -> onnx.ModelProto:
    model = network()
    model.graph.output[0].name = model.graph.node[-1].output[0] = name
    return model


@pytest.mark.parametrize("output", ['",); import os; os.mkdir("owned")  #', "two\nlines", "s" * 129])
def test_a_tensor_s_name_that_is_more_than_a_name_is_refused(new: New, tmp_path: Path, output: str) -> None:
    assert "a name may have at most 128 letters" in new(with_output(output), status=1)
    assert files(tmp_path) == {"given.onnx"}


def test_a_tensor_s_ordinary_name_is_served(new: New, tmp_path: Path) -> None:
    new(with_output("head/scores:0"))
    assert read_config(tmp_path / "models" / "flowers_onnx").output[0].name == "head/scores:0"
    with pytest.raises(UsageError, match="names no architecture"):
        _ = SystemParts("flowers").training


@pytest.mark.parametrize(
    ("line", "instead", "reason"),
    [
        ('task = "classification"', 'task = "generation"', "its task is 'generation'"),
        ("[outputs]", "[out]", "lacks 'outputs'"),
        ("size = 224", "size = 0", "impossible size"),
        ("size = 224", "size = [", "does not describe a system"),
        ('title = "Flowers"', "title = 3", "3 is not a text"),
    ],
)
def test_an_invalid_description_is_reported(
    new: New, tmp_path: Path, line: str, instead: str, reason: str
) -> None:
    new(None)
    path = tmp_path / "systems" / "flowers" / "system.toml"
    assert line in path.read_text()
    path.write_text(path.read_text().replace(line, instead))
    with pytest.raises(GourmetError, match=rf"{path}.*{reason}"):
        registry.load("flowers")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("food11", "is there already"),
        ("../up", "is not a valid name"),
        ("class", "is not a valid name"),
        # A folder of this name would hide the module that looks for systems, and with it every verb.
        ("registry", "registry.py is there already"),
    ],
)
def test_invalid_names_are_refused(name: str, complaint: str, new: New, tmp_path: Path) -> None:
    assert complaint in new(None, name=name, status=2)
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    ("theirs", "status", "complaint"),
    [
        (nn.Linear(2, 2), 1, "tensors differ, such as no conv1.0.weight and no conv1.1.weight"),
        (build(ARCHITECTURE, 5), 2, "theirs.safetensors has 5 classes, and there are 2 labels"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_leave_nothing(
    theirs: nn.Module, status: int, complaint: str, new: New, tmp_path: Path
) -> None:
    path = tmp_path / "theirs.safetensors"
    save_file(theirs.state_dict(), path)
    assert complaint in new(path, "--architecture", ARCHITECTURE, labels="rose,tulip", status=status)
    assert files(tmp_path) == {"theirs.safetensors"}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--architecture", "torchvision:resnet81"], "such as torchvision:resnet18"),
        (["--architecture", "torchvision:fcn_resnet50"], "is a network of torchvision.models.segmentation"),
        ([], "add --architecture"),
        (["--architecture", ARCHITECTURE, "--like", "digits"], "prepares its inputs in its own way"),
    ],
)
def test_missing_options_are_named(words: list[str], complaint: str, new: New, weights: Path) -> None:
    assert complaint in new(weights, *words, status=2)


# Networks as others export them


def served(tmp_path: Path) -> tuple[PictureClassifier, npt.NDArray[np.float32]]:
    """The system that was made, and what its model answers to the sample as the web app asks it."""
    system = registry.classification("flowers")
    path = tmp_path / "models" / "flowers_onnx"
    config = read_config(path)
    session = onnxruntime.InferenceSession(path / "1" / "model.onnx")
    tensor = system.encode(system.sample(), system.datatypes[0])
    dims = list(config.input[0].dims)
    assert list(tensor.shape) == (dims if not config.max_batch_size else [1, *dims])
    (scores,) = session.run(["y"], {"x": tensor})
    assert system.describe_answer({"y": scores}, ModelInfo("m", (), ())).startswith("the sample is ")
    return system, np.asarray(scores, np.float32)


@pytest.mark.parametrize(
    ("model", "datatype", "layout", "channels", "batch"),
    [
        (network(("n", 8, 8, 3)), "FP32", "NHWC", 3, 16),
        (network(("n", 8, 8, 3), BYTE), "UINT8", "NHWC", 3, 16),
        (network(("n", 3, 8, 8), BYTE), "UINT8", "NCHW", 3, 16),
        (network(kind=HALF), "FP16", "NCHW", 3, 16),
        (network(("n", 1, 8, 8)), "FP32", "NCHW", 1, 16),
        (network(("n", 8, 8, 1), BYTE), "UINT8", "NHWC", 1, 16),
        (network((1, 3, 8, 8), scores=(1, 3)), "FP32", "NCHW", 3, 0),
        (network((4, 3, 8, 8), scores=(4, 3)), "FP32", "NCHW", 3, 16),
    ],
    ids=["last", "pixels", "pixels first", "half", "grey", "grey pixels", "one at a time", "freed batch"],
)
def test_each_form_of_pictures_is_served_as_the_network_takes_it(
    model: onnx.ModelProto, datatype: str, layout: str, channels: int, batch: int, new: New, tmp_path: Path
) -> None:
    assert f"{datatype} {layout}" in new(model)
    assert read_config(tmp_path / "models" / "flowers_onnx").max_batch_size == batch
    system, scores = served(tmp_path)
    assert (system.datatypes, system.layout, len(system.mean)) == ((datatype,), layout, channels)
    # The same pixels by hand.
    pixels = system.pixels(system.sample()).astype(np.float32)
    if channels == 1:
        pixels = (pixels @ np.array([0.299, 0.587, 0.114], np.float32))[..., None]
    pixels /= 255
    if datatype != "UINT8":
        pixels = (pixels - np.array(system.mean)) / np.array(system.std)
    np.testing.assert_allclose(scores[0], pixels.mean(axis=(0, 1)) @ WEIGHTS[:channels], rtol=0.01, atol=0.01)


def with_weights_beside(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(network(), path, save_as_external_data=True, location="w.data", size_threshold=0)
    assert (folder / "w.data").stat().st_size >= WEIGHTS.nbytes
    return path


def test_weights_beside_the_file_are_taken_in(new: New, tmp_path: Path) -> None:
    new(with_weights_beside(tmp_path / "theirs"))
    version = tmp_path / "models" / "flowers_onnx" / "1"
    assert {path.name for path in version.iterdir()} == {"model.onnx", "manifest.json"}, "one file, one hash"
    manifest = json.loads((version / "manifest.json").read_text())
    assert manifest["bytes"] == (version / "model.onnx").stat().st_size
    served(tmp_path)


@pytest.mark.parametrize("how", ["above", "absolute", "a link", "not there", "cut short", "its folder"])
def test_weights_outside_of_its_folder_are_refused(how: str, new: New, tmp_path: Path) -> None:
    path = with_weights_beside(tmp_path / "theirs")
    weights, outside = path.with_name("w.data"), tmp_path / "w.data"
    model = onnx.load(path, load_external_data=False)
    (tensor,) = model.graph.initializer
    location = next(entry for entry in tensor.external_data if entry.key == "location")
    named = {"above": "../w.data", "absolute": str(outside), "its folder": "."}
    location.value = named.get(how, "w.data")
    if how in ("above", "absolute", "a link"):
        weights.rename(outside)
    if how == "a link":
        weights.symlink_to(outside)
    if how == "not there":
        weights.unlink()
    if how == "cut short":
        os.truncate(weights, 8)
    onnx.save(model, path)
    assert "its weights lie in other files, which are refused" in new(path, status=1)
    assert not files(tmp_path / "models")


def test_an_ambiguous_channel_dimension_is_an_error_that_names_the_option(new: New, tmp_path: Path) -> None:
    model = network(("n", "c", "h", "w"))
    assert "say it with --layout NCHW or --layout NHWC" in new(model, status=1)
    new(model, "--layout", "NCHW", "--size", 96)
    assert served(tmp_path)[0].input_size == 96


@pytest.mark.parametrize(
    ("words", "mean", "std"),
    [
        ([], (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        (["--scale", "1"], (0.0,) * 3, (1 / 255,) * 3),
        (["--scale", "1/127.5", "--mean", "1"], (0.5,) * 3, (0.5,) * 3),
        (["--mean", "0.1,0.2,0.3"], (0.1, 0.2, 0.3), (1.0,) * 3),
        (["--like", "food11", "--size", "8"], (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ],
)
def test_the_chosen_preprocessing_is_used_and_shown(
    words: list[str], mean: tuple[float, ...], std: tuple[float, ...], new: New
) -> None:
    shown = new(network(), *words).partition("check")[0]
    system = registry.classification("flowers")
    np.testing.assert_allclose([system.mean, system.std], [mean, std])
    assert ", ".join(f"{value:.4g}" for value in mean) in shown
    assert ("like food11" if "--like" in words else "asked for" if words else "assumed") in shown


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--mean", "0.1,0.2", "one for each of 3 channels"),
        ("--std", "0", "no standard deviation is 0"),
        ("--mean", "nan", "is not a list of numbers"),
        ("--scale", "-1", "is not one number above 0"),
        ("--scale", "1/0", "is not a list of numbers"),
    ],
)
def test_invalid_preprocessing_numbers_are_refused(option: str, value: str, complaint: str, new: New) -> None:
    assert complaint in new(network(), option, value, status=2)


def test_the_file_s_own_statistics_are_taken(new: New) -> None:
    model = network()
    helper.set_model_props(model, {"mean": "[127.5, 127.5, 127.5]", "std": "[51.0, 51.0, 51.0]"})
    assert "of values from 0 to 1; the file" in new(model)
    system = registry.classification("flowers")
    np.testing.assert_allclose([system.mean, system.std], [[0.5] * 3, [0.2] * 3])


@pytest.mark.nightly
def test_inception_takes_299_pixels_as_torchvision_trained_it(new: New) -> None:
    assert "299×299, RGB" in new(None, "--architecture", "torchvision:inception_v3", labels="a,b")
    system = registry.classification("flowers")
    assert system.input_size == 299
    with torch.device("meta"):
        theirs, network = (build(system.architecture, 2, aux_logits=aux) for aux in (True, False))
    assert network.transform_input
    # What helped it learn is left out.
    assert fitted(theirs.state_dict(), network).keys() == network.state_dict().keys()


def ending(kind: str, **options: Any) -> onnx.ModelProto:
    return network(last=[helper.make_node(kind, ["z"], ["y"], **options)])


NO_CLASSIFIER = "a classifier of pictures takes one float tensor"
SHAPE, RESHAPE = (
    helper.make_node("Constant", [], ["s"], value_ints=[4, 3]),
    helper.make_node("Reshape", ["z", "s"], ["y"]),
)


@pytest.mark.parametrize(
    ("model", "words", "status", "reason"),
    [
        (network(), ("--size", 96), 2, "takes pictures of 8 pixels, and no others"),
        (network(), ("--outputs", "probabilities"), 2, "gives numbers that are none"),
        (network((4, 3, 8, 8), scores=(4, 3), last=[SHAPE, RESHAPE]), (), 1, "takes 4 pictures at a time"),
        (network(scores=("n", 1), head=WEIGHTS[:, :1]), (), 1, NO_CLASSIFIER),
        (network(("n", 3, 8, 8), scores=("n", 84, 100)), (), 1, NO_CLASSIFIER),
        (network(("n", 12), TensorProto.INT64, scores=("n", 3)), (), 1, NO_CLASSIFIER),
    ],
)
def test_a_file_that_cannot_be_served_is_refused_with_the_reason(
    model: onnx.ModelProto, words: tuple[object, ...], status: int, reason: str, new: New, tmp_path: Path
) -> None:
    assert reason in new(model, *words, status=status)
    assert not files(tmp_path / "models")


def test_probabilities_are_recognised_and_not_softmaxed(new: New, tmp_path: Path) -> None:
    assert "y, probabilities already: shown as they are" in new(ending("Softmax", axis=1))
    deployed = tmp_path / "models" / "flowers_onnx" / "1" / "model.onnx"
    assert deployed.read_bytes() == (tmp_path / "given.onnx").read_bytes()
    system, scores = served(tmp_path)
    np.testing.assert_allclose(system.probabilities_from({"y": scores}), scores)


def test_logits_are_softmaxed_and_the_output_says_so(new: New, tmp_path: Path) -> None:
    assert "y, logits: shown is their softmax" in new(network())
    assert served(tmp_path)[0].logit_outputs == ("y",)


def test_outputs_that_may_be_logits_or_probabilities_need_an_option(new: New, tmp_path: Path) -> None:
    model = ending("Sigmoid")
    assert "that do not sum to 1: say --multi-label" in new(model, status=2)
    assert not files(tmp_path / "models")
    new(model, "--outputs", "logits")


@pytest.mark.parametrize(("model", "is_logits"), [(network(), True), (ending("Sigmoid"), False)])
def test_several_labels_have_a_probability_each(
    model: onnx.ModelProto, is_logits: bool, new: New, tmp_path: Path
) -> None:
    output = new(model, "--multi-label")
    assert ("a sigmoid of each" if is_logits else "probabilities already") in output
    system, scores = served(tmp_path)
    assert system.multi_label
    expected = 1 / (1 + np.exp(-scores)) if is_logits else scores
    np.testing.assert_allclose(system.probabilities_from({"y": scores}), expected, atol=1e-6)
    assert threshold_of(tmp_path / "models") == 0.5
    with pytest.raises(UsageError, match="may have several labels"):
        _ = SystemParts("flowers").training


CONSTANT = [
    helper.make_node("Constant", [], ["b"], value_floats=[0.1, 0.7, 0.2]),
    helper.make_node("Sub", ["z", "z"], ["o"]),
    helper.make_node("Add", ["o", "b"], ["y"]),
]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (network(head=WEIGHTS * 0), "all labels the same score"),
        (network(last=CONSTANT), "all the same"),
        (network(head=WEIGHTS * 1e6), "its answers are saturated"),
    ],
    ids=["zeros", "constant", "saturated"],
)
def test_answers_of_an_untrained_network_are_refused_without_yes(
    model: onnx.ModelProto, reason: str, new: New, tmp_path: Path
) -> None:
    output = new(model, "--outputs", "logits", status=2)
    assert reason in output
    assert "give --yes" in output
    assert files(tmp_path) == {"given.onnx"}
    new(model, "--outputs", "logits", "--yes")


def test_the_next_version_is_prepared_as_the_description_says(new: New, tmp_path: Path) -> None:
    new(network(), "--scale", "1/127.5", "--mean", "1")
    export = described_pictures.export(registry.classification("flowers"))
    assert export.open(tmp_path / "given.onnx", None, lambda *_: None).targets["onnx"].model == "flowers_onnx"
    onnx.save(network(("n", 8, 8, 3)), tmp_path / "given.onnx")
    with pytest.raises(UsageError, match=r"layout 'NHWC', not 'NCHW'"):
        export.open(tmp_path / "given.onnx", None, lambda *_: None)


def test_a_missing_timm_is_reported_with_the_command(
    new: New, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setitem(sys.modules, "timm.models", None)
    output = new(weights, "--architecture", "timm:resnet18", status=2)
    assert "needs the package timm, which is not installed here: run `pip install -c " in output
    assert (Path(__file__).parents[2] / "requirements" / "timm.txt").read_text().count("\ntimm==") == 1


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In place of the package, with one network; what it was asked to make."""
    made: list[str] = []

    def create_model(name: str, num_classes: int) -> torch.nn.Module:
        made.append(name)
        return build(ARCHITECTURE, num_classes)

    about = SimpleNamespace(input_size=(3, 64, 64), mean=(0.5,) * 3, std=(0.25,) * 3)
    models = ModuleType("timm.models")
    models.__dict__.update(
        list_models=lambda: ["small"],
        list_pretrained=lambda: ["small.in1k"],
        get_pretrained_cfg=lambda _name: about,
        create_model=create_model,
    )
    monkeypatch.setitem(sys.modules, "timm", ModuleType("timm"))
    monkeypatch.setitem(sys.modules, "timm.models", models)
    return made


def test_weights_and_pictures_of_timm_are_as_timm_s(new: New, weights: Path, timm: list[str]) -> None:
    assert "timm:small.in1k, as" in new(None, "--architecture", "timm:small.in1k", labels=",".join(LABELS))
    system = registry.classification("flowers")
    assert (system.input_size, system.mean, system.std) == (64, (0.5,) * 3, (0.25,) * 3)
    SystemParts("flowers").evaluation.load(weights, "")
    assert timm == ["small.in1k"]


@pytest.mark.parametrize("name", ["hf_hub:somebody/something", "local-dir:/tmp/x", "tiny"])
def test_only_networks_of_timm_itself_are_made(name: str, new: New, weights: Path, timm: list[str]) -> None:
    assert "timm has no network" in new(weights, "--architecture", f"timm:{name}", status=2)
    assert timm == []
