"""`gourmet new`: each form of a network is served, what is assumed is shown, and a refusal leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
import torch
from click.testing import CliRunner, Result
from onnx import TensorProto, helper
from safetensors.torch import save_file
from support import small_network
from support.onnx_network import BYTE, HALF, WEIGHTS, network
from support.small_network import ARCHITECTURE, LABELS
from support.stopping import files
from torch import nn

from gourmet.cli import main
from gourmet.contracts import BadAnswer, ModelInfo
from gourmet.errors import GourmetError, UsageError
from gourmet.export.picture_export import open_onnx
from gourmet.export.torchvision_network import build, fitted
from gourmet.pictures.certainty import RankedLabels
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.made_up import clouds
from gourmet.repository.models import read_config
from gourmet.systems import described_pictures, registry
from gourmet.systems.parts import SystemParts

New = Callable[..., Result]


@pytest.fixture
def new(systems_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> New:
    """Runs `gourmet new` with folders of its own; no stack runs that could take what it makes."""
    monkeypatch.setenv("GOURMET_KEYS", str(tmp_path / "keys"))

    def run(
        weights: Path | None = None, *arguments: object, labels: str = "a,b,c", name: str = "flowers"
    ) -> Result:
        command = ["new", name, "--labels", labels, "--to", tmp_path / "models"]
        command += ["--weights", weights] if weights else []
        return CliRunner().invoke(main, [str(word) for word in (*command, *arguments)])

    return run


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_network.saved(tmp_path_factory.mktemp("theirs") / "best.pth")


def saved(path: Path, model: onnx.ModelProto, *, location: str = "") -> Path:
    if location:
        onnx.save(model, path, save_as_external_data=True, location=location, size_threshold=0)
    else:
        onnx.save(model, path)
    return path


def test_plain_weights_become_a_system_and_its_served_model(new: New, weights: Path, tmp_path: Path) -> None:
    done = new(weights, "--architecture", ARCHITECTURE, labels=",".join(LABELS))
    assert done.exit_code == 0, done.output
    assert "gourmet up" in done.output
    assert files(tmp_path / "models") == {
        "flowers_onnx/config.pbtxt",
        "flowers_onnx/labels.txt",
        "flowers_onnx/1/model.onnx",
        "flowers_onnx/1/manifest.json",
    }
    manifest = json.loads((tmp_path / "models/flowers_onnx/1/manifest.json").read_text())
    assert manifest["verified_on"] == "made-up pictures"
    assert manifest["network"]["architecture"] == ARCHITECTURE
    config = read_config(tmp_path / "models" / "flowers_onnx")
    assert config.input[0].format == config.input[0].FORMAT_NCHW
    assert json.loads(config.parameters["labels"].string_value) == list(LABELS)

    system = registry.classification("flowers")
    assert (system.title, system.labels, system.model_variable) == ("Flowers", LABELS, "FLOWERS_MODEL_NAME")
    session = open_onnx(tmp_path / "models/flowers_onnx/1/model.onnx", "input", "output")
    answer = {"output": session(system.encode(system.sample(), "FP32"))}
    assert system.describe_answer(answer, ModelInfo("flowers_onnx", (), ())).startswith("the sample is ")
    # What it was given is loaded as the verbs load it.
    parts = SystemParts("flowers")
    assert parts.export.formats == ("onnx",)
    assert parts.training.bundled_data() is None
    assert parts.evaluation
    assert files(tmp_path / "systems") == {
        f"flowers/{name}" for name in ("system.toml", "sample.jpg", "MODEL_CARD.md")
    }, "data, and no code"


def threshold_of(models: Path) -> float:
    return float(read_config(models / "flowers_onnx").parameters["threshold"].string_value)


def test_a_new_system_has_a_threshold_only_with_labelled_pictures(new: New, tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "theirs.onnx")
    labels = LABELS[:3]
    photos, models = tmp_path / "photos", tmp_path / "models"
    for number, label in enumerate(labels):
        (photos / label).mkdir(parents=True)
        for seed in range(10):
            (photos / label / f"{seed}.png").write_bytes(clouds(seed=10 * number + seed))
    done = new(tmp_path / "theirs.onnx", labels=",".join(labels))
    assert done.exit_code == 0, done.output
    assert "not calibrated: no answer is called sure" in done.output
    assert threshold_of(models) == 0
    later = ["check", "flowers", "--calibrate", "--data", str(photos), "--model-repository", str(models)]
    done = CliRunner().invoke(main, later)
    assert done.exit_code == 0, done.output
    assert "written to flowers_onnx" in done.output
    chosen = threshold_of(models)
    curve = json.loads(read_config(models / "flowers_onnx").parameters["coverage"].string_value)
    assert chosen in [threshold for threshold, _, _ in curve]
    assert chosen > 0
    shutil.rmtree(tmp_path / "systems" / "flowers")
    shutil.rmtree(models)
    done = new(tmp_path / "theirs.onnx", "--data", photos, labels=",".join(labels))
    assert done.exit_code == 0, done.output
    assert "not calibrated" not in done.output
    assert threshold_of(models) == pytest.approx(chosen, abs=1e-3)
    manifest = json.loads((models / "flowers_onnx/1/manifest.json").read_text())
    assert manifest["accuracy"]["given"]["photos"] == 10 * len(labels)


def test_without_weights_the_output_says_how_to_train(new: New, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("rose\n\ntulip\n")
    done = new(None, "--title", "Garden flowers", labels=str(labels))
    assert done.exit_code == 0, done.output
    assert "gourmet train flowers --data" in done.output
    assert registry.classification("flowers").labels == ("rose", "tulip")
    assert not files(tmp_path / "models")


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ("rose", "neither a file nor a list"),
        ("rose,", "names 1 label"),
        ("rose,tulip,rose", "names rose twice"),
        ("{weights}", "is not a text file, with a label a line"),
    ],
)
def test_invalid_labels_are_refused(
    labels: str, complaint: str, new: New, weights: Path, tmp_path: Path
) -> None:
    done = new(labels=labels.format(weights=weights))
    assert done.exit_code == 2
    assert complaint in done.output
    assert files(tmp_path) == set()


def test_an_existing_folder_stays_unchanged(new: New, tmp_path: Path) -> None:
    notes = tmp_path / "systems" / "flowers" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    done = new()
    assert done.exit_code == 2
    assert f"{notes.parent} is there already" in done.output
    assert files(tmp_path) == {"systems/flowers/notes.txt"}


def test_a_title_and_labels_are_kept_as_they_were_written(new: New) -> None:
    title, labels = (
        'Flowers "of\\the field"\n\x7f',
        ("three \"\"\" '''", '"] x = ["', "C++", "${HOME}", "пион 🌸"),
    )
    assert (
        new(None, "--title", title, labels=", ".join(labels[:3]) + ",\n" + ",".join(labels[3:])).exit_code
        == 0
    )
    system = registry.classification("flowers")
    assert (system.title, system.labels) == (title, labels)


def scoring(path: Path, output: str) -> Path:
    """A classifier in ONNX whose output has this name."""
    model = network()
    model.graph.output[0].name = model.graph.node[-1].output[0] = output
    return saved(path, model)


@pytest.mark.parametrize(
    "output", ['",); import os; os.mkdir("owned")  #', "two\nlines", 'a" data_type: TYPE_INT8 } #', "s" * 129]
)
def test_a_tensor_s_name_that_is_more_than_a_name_is_refused(new: New, tmp_path: Path, output: str) -> None:
    done = new(scoring(tmp_path / "given.onnx", output))
    assert done.exit_code == 1
    assert "a name may have at most 128 letters, digits and _ . : / - in it" in done.output
    assert files(tmp_path) == {"given.onnx"}


def test_a_tensor_s_ordinary_name_is_served(new: New, tmp_path: Path) -> None:
    done = new(scoring(tmp_path / "given.onnx", "head/scores:0"))
    assert done.exit_code == 0, done.output
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
        ("std = [0.229, 0.224, 0.225]", "std = [1.0]", "does not describe a system"),
    ],
)
def test_an_invalid_description_is_reported(
    new: New, tmp_path: Path, line: str, instead: str, reason: str
) -> None:
    assert new().exit_code == 0
    path = tmp_path / "systems" / "flowers" / "system.toml"
    assert line in path.read_text()
    path.write_text(path.read_text().replace(line, instead))
    with pytest.raises(GourmetError, match=reason) as refused:
        registry.load("flowers")
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("food11", "is there already"),
        ("Flowers", "is not a valid name"),
        ("../up", "is not a valid name"),
        ("class", "is not a valid name"),
        # A folder of this name would hide the module that looks for systems, and with it every verb.
        ("registry", "registry.py is there already"),
    ],
)
def test_invalid_names_are_refused(name: str, complaint: str, new: New, tmp_path: Path) -> None:
    done = new(name=name)
    assert done.exit_code != 0
    assert complaint in done.output
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    ("theirs", "complaints"),
    [
        (
            nn.Linear(2, 2),
            (
                "is of another network, or of one with other labels: ",
                " of its tensors differ, such as no conv1.0.weight and no conv1.1.weight\n",
            ),
        ),
        (
            build(ARCHITECTURE, 5),
            ("theirs.safetensors has 5 classes, and there are 2 labels: name as many\n",),
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_leave_nothing(
    theirs: nn.Module, complaints: tuple[str, ...], new: New, tmp_path: Path
) -> None:
    path = tmp_path / "theirs.safetensors"
    save_file(theirs.state_dict(), path)
    done = new(path, "--architecture", ARCHITECTURE, labels="rose,tulip")
    assert done.exit_code in (1, 2)
    for complaint in complaints:
        assert complaint in done.output
    assert files(tmp_path) == {"theirs.safetensors"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--architecture", "torchvision:resnet81"], "such as torchvision:resnet18"),
        (["--architecture", "torchvision:fcn_resnet50"], "is a network of torchvision.models.segmentation"),
        ([], "add --architecture"),
        (["--architecture", ARCHITECTURE, "--like", "digits"], "prepares its inputs in its own way"),
        (["--architecture", ARCHITECTURE, "--like", "nobody"], "no system 'nobody'"),
    ],
)
def test_missing_options_are_named(arguments: list[str], complaint: str, new: New, weights: Path) -> None:
    done = new(weights, *arguments)
    assert done.exit_code != 0
    assert complaint in done.output


# ---- networks as others export them


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
    done = new(saved(tmp_path / "given.onnx", model))
    assert done.exit_code == 0, done.output
    assert read_config(tmp_path / "models" / "flowers_onnx").max_batch_size == batch
    system, scores = served(tmp_path)
    assert (system.datatypes, system.layout, len(system.mean)) == ((datatype,), layout, channels)
    assert f"{datatype} {layout}" in done.output
    # The same pixels by hand.
    pixels = system.pixels(system.sample()).astype(np.float32)
    if channels == 1:
        pixels = (pixels @ np.array([0.299, 0.587, 0.114], np.float32))[..., None]
    pixels /= 255
    if datatype != "UINT8":
        pixels = (pixels - np.array(system.mean)) / np.array(system.std)
    mine = pixels.mean(axis=(0, 1)) @ WEIGHTS[:channels]
    np.testing.assert_allclose(scores[0], mine, rtol=0.01, atol=0.01)


def test_weights_beside_the_file_are_taken_in(new: New, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    path = saved(theirs / "model.onnx", network(opset=17), location="model.onnx.data")
    assert (theirs / "model.onnx.data").stat().st_size >= WEIGHTS.nbytes
    done = new(path)
    assert done.exit_code == 0, done.output
    version = tmp_path / "models" / "flowers_onnx" / "1"
    assert {path.name for path in version.iterdir()} == {"model.onnx", "manifest.json"}, "one file, one hash"
    manifest = json.loads((version / "manifest.json").read_text())
    assert manifest["bytes"] == (version / "model.onnx").stat().st_size
    served(tmp_path)


@pytest.mark.parametrize("how", ["above", "absolute", "a link", "not there", "cut short", "its folder"])
def test_weights_outside_of_its_folder_are_refused(how: str, new: New, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    path = saved(theirs / "model.onnx", network(), location="w.data")
    weights, outside = theirs / "w.data", tmp_path / "w.data"
    model = onnx.load(path, load_external_data=False)
    (tensor,) = model.graph.initializer
    location = next(entry for entry in tensor.external_data if entry.key == "location")
    if how in ("above", "absolute", "a link"):
        weights.rename(outside)
        location.value = {"above": "../w.data", "absolute": str(outside), "a link": "w.data"}[how]
        if how == "a link":
            weights.symlink_to(outside)
    elif how == "not there":
        weights.unlink()
    elif how == "its folder":
        location.value = "."
    else:
        os.truncate(weights, 8)
    onnx.save(model, path)
    done = new(path)
    assert done.exit_code == 1
    assert "its weights lie in other files, which are refused: put all of them into its folder" in done.output
    assert not files(tmp_path / "models")


def test_an_ambiguous_channel_dimension_is_an_error_that_names_the_option(new: New, tmp_path: Path) -> None:
    path = saved(tmp_path / "given.onnx", network(("n", "c", "h", "w")))
    done = new(path)
    assert done.exit_code == 1
    assert "say it with --layout NCHW or --layout NHWC" in done.output
    done = new(path, "--layout", "NCHW", "--size", 96)
    assert done.exit_code == 0, done.output
    assert served(tmp_path)[0].input_size == 96
    assert list(read_config(tmp_path / "models" / "flowers_onnx").input[0].dims) == [3, 96, 96]


@pytest.mark.parametrize(
    ("asked", "mean", "std"),
    [
        ([], (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        (["--mean", "0.5", "--std", "0.5"], (0.5,) * 3, (0.5,) * 3),
        (["--scale", "1"], (0.0,) * 3, (1 / 255,) * 3),
        (["--scale", "1/127.5", "--mean", "1"], (0.5,) * 3, (0.5,) * 3),
        (["--mean", "0.1,0.2,0.3"], (0.1, 0.2, 0.3), (1.0,) * 3),
        (["--like", "food11", "--size", "8"], (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ],
)
def test_the_chosen_preprocessing_is_used_and_shown(
    asked: list[str], mean: tuple[float, ...], std: tuple[float, ...], new: New, tmp_path: Path
) -> None:
    done = new(saved(tmp_path / "given.onnx", network()), *asked)
    assert done.exit_code == 0, done.output
    system = registry.classification("flowers")
    np.testing.assert_allclose([system.mean, system.std], [mean, std])
    shown = done.output.partition("check")[0]
    assert ", ".join(f"{value:.4g}" for value in mean) in shown
    assert ("like food11" if "--like" in asked else "asked for" if asked else "assumed") in shown


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (["--mean", "0.1,0.2"], "one for each of 3 channels"),
        (["--std", "0"], "no standard deviation is 0"),
        (["--mean", "nan"], "is not a list of numbers"),
        (["--mean", "1e400"], "is not a list of numbers"),
        (["--scale", "-1"], "is not one number above 0"),
        (["--scale", "1/0"], "is not a list of numbers"),
    ],
)
def test_invalid_preprocessing_numbers_are_refused(
    asked: list[str], complaint: str, new: New, tmp_path: Path
) -> None:
    done = new(saved(tmp_path / "given.onnx", network()), *asked)
    assert done.exit_code == 2
    assert complaint in done.output


def test_the_file_s_own_statistics_are_taken(new: New, tmp_path: Path) -> None:
    model = network()
    helper.set_model_props(model, {"mean": "[127.5, 127.5, 127.5]", "std": "[51.0, 51.0, 51.0]"})
    done = new(saved(tmp_path / "given.onnx", model))
    assert done.exit_code == 0, done.output
    system = registry.classification("flowers")
    np.testing.assert_allclose([system.mean, system.std], [[0.5] * 3, [0.2] * 3])
    assert "of values from 0 to 1; the file" in done.output


@pytest.mark.nightly
def test_inception_takes_299_pixels_as_torchvision_trained_it(new: New, tmp_path: Path) -> None:
    done = new(None, "--architecture", "torchvision:inception_v3", labels="a,b")
    assert done.exit_code == 0, done.output
    assert "299×299, RGB" in done.output
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
FIXED_WITHIN = network(
    (4, 3, 8, 8),
    scores=(4, 3),
    last=[
        helper.make_node("Constant", [], ["s"], value_ints=[4, 3]),
        helper.make_node("Reshape", ["z", "s"], ["y"]),
    ],
)


@pytest.mark.parametrize(
    ("model", "asked", "reason"),
    [
        (network(), ("--size", 96), "takes pictures of 8 pixels, and no others"),
        (network(), ("--outputs", "probabilities"), "gives numbers that are none"),
        (
            FIXED_WITHIN,
            (),
            "takes 4 pictures at a time, also within the network: export it again",
        ),
        (
            network(scores=("n", 1), head=WEIGHTS[:, :1]),
            (),
            NO_CLASSIFIER,
        ),
        (
            network(("n", 3, 8, 8), scores=("n", 84, 100)),
            (),
            NO_CLASSIFIER,
        ),
        (
            network(("n", 12), TensorProto.INT64, scores=("n", 3)),
            (),
            NO_CLASSIFIER,
        ),
    ],
)
def test_a_file_that_cannot_be_served_is_refused_with_the_reason(
    model: onnx.ModelProto, asked: tuple[object, ...], reason: str, new: New, tmp_path: Path
) -> None:
    done = new(saved(tmp_path / "given.onnx", model), *asked)
    assert done.exit_code in (1, 2)
    assert reason in " ".join(done.output.split())
    assert not files(tmp_path / "models")


def test_probabilities_are_recognised_and_not_softmaxed(new: New, tmp_path: Path) -> None:
    done = new(saved(tmp_path / "given.onnx", ending("Softmax", axis=1)))
    assert done.exit_code == 0, done.output
    assert "y, probabilities already: shown as they are" in done.output
    deployed = tmp_path / "models" / "flowers_onnx" / "1" / "model.onnx"
    assert deployed.read_bytes() == (tmp_path / "given.onnx").read_bytes()
    system, scores = served(tmp_path)
    np.testing.assert_allclose(system.probabilities_from({"y": scores}), scores)


def test_logits_are_softmaxed_and_the_output_says_so(new: New, tmp_path: Path) -> None:
    done = new(saved(tmp_path / "given.onnx", network()))
    assert "y, logits: shown is their softmax" in done.output
    assert served(tmp_path)[0].logit_outputs == ("y",)


def test_outputs_that_may_be_logits_or_probabilities_need_an_option(new: New, tmp_path: Path) -> None:
    path = saved(tmp_path / "given.onnx", ending("Sigmoid"))
    done = new(path)
    assert done.exit_code == 2
    assert "that do not sum to 1: say --multi-label" in done.output
    assert not files(tmp_path / "models")
    assert new(path, "--outputs", "logits").exit_code == 0


@pytest.mark.parametrize(("model", "is_logits"), [(network(), True), (ending("Sigmoid"), False)])
def test_several_labels_have_a_probability_each(
    model: onnx.ModelProto, is_logits: bool, new: New, tmp_path: Path
) -> None:
    done = new(saved(tmp_path / "given.onnx", model), "--multi-label")
    assert done.exit_code == 0, done.output
    assert ("a sigmoid of each" if is_logits else "probabilities already") in done.output
    system, scores = served(tmp_path)
    assert system.multi_label
    expected = 1 / (1 + np.exp(-scores)) if is_logits else scores
    np.testing.assert_allclose(system.probabilities_from({"y": scores}), expected, atol=1e-6)
    config = read_config(tmp_path / "models" / "flowers_onnx")
    assert float(config.parameters["threshold"].string_value) == 0.5
    with pytest.raises(UsageError, match="may have several labels"):
        _ = SystemParts("flowers").training


def test_a_multi_label_answer_has_the_labels_above_the_threshold(new: New, tmp_path: Path) -> None:
    assert new(saved(tmp_path / "given.onnx", network()), "--multi-label").exit_code == 0
    system = registry.classification("flowers")
    prediction = RankedLabels(system, ("a", "b", "c"), (0.6, 0.1, 0.9), 0.5)
    assert prediction.applying == [("c", 0.9), ("a", 0.6)]
    assert (prediction.verdict.text, prediction.label, prediction.sure) == ("c, a", "c", True)
    none = RankedLabels(system, ("a", "b", "c"), (0.4, 0.1, 0.2), 0.5)
    assert (none.applying, none.verdict.text, none.sure) == ([], "a", False)
    with pytest.raises(BadAnswer, match="not between 0 and 1"):
        replace(system, probability_outputs=("y",)).probabilities(
            {"y": np.array([[0.1, 1.5, 0.2]], np.float32)}, ModelInfo("m", (), ())
        )


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            network(head=WEIGHTS * 0),
            "all labels the same score, as a network does whose last layer is all zeros",
        ),
        (
            network(last=[helper.make_node("Constant", [], ["b"], value_floats=[0.1, 0.7, 0.2])]),
            "all the same",
        ),
        (network(head=WEIGHTS * 1e6), "its answers are saturated"),
    ],
    ids=["zeros", "constant", "saturated"],
)
def test_answers_of_an_untrained_network_are_refused_without_yes(
    model: onnx.ModelProto, reason: str, new: New, tmp_path: Path
) -> None:
    if reason == "all the same":
        zero = helper.make_node("Sub", ["z", "z"], ["o"])
        model.graph.node.extend([zero, helper.make_node("Add", ["o", "b"], ["y"])])
    path = saved(tmp_path / "given.onnx", model)
    done = new(path, "--outputs", "logits")
    assert done.exit_code == 2, done.output
    assert reason in done.output
    assert "give --yes" in done.output
    assert not files(tmp_path / "models")
    assert not list((tmp_path / "systems").iterdir())
    done = new(path, "--outputs", "logits", "--yes")
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_weights_whose_last_layer_is_zeros_are_refused_too(new: New, tmp_path: Path) -> None:
    path = small_network.saved(tmp_path / "theirs.pth")
    tensors = torch.load(path)["state_dict"]
    for name in ("module.fc.weight", "module.fc.bias"):
        tensors[name] *= 0
    torch.save(tensors, path)
    done = new(path, "--architecture", ARCHITECTURE, labels=",".join(LABELS))
    assert done.exit_code == 2, done.output
    assert "all labels the same score" in done.output


def test_the_next_version_is_prepared_as_the_description_says(new: New, tmp_path: Path) -> None:
    assert new(saved(tmp_path / "given.onnx", network()), "--scale", "1/127.5", "--mean", "1").exit_code == 0
    system = registry.classification("flowers")
    export = described_pictures.export(system)
    assert export.open(tmp_path / "given.onnx", None, lambda *_: None).targets["onnx"].model == "flowers_onnx"
    with pytest.raises(UsageError, match=r"layout 'NHWC', not 'NCHW'"):
        export.open(saved(tmp_path / "last.onnx", network(("n", 8, 8, 3))), None, lambda *_: None)


def test_a_missing_timm_is_reported_with_the_command(
    new: New, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setitem(sys.modules, "timm.models", None)
    done = new(small_network.saved(tmp_path / "theirs.pth"), "--architecture", "timm:resnet18")
    assert done.exit_code == 2
    assert "needs the package timm, which is not installed here: run `pip install -c " in done.output
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


def test_weights_of_timm_are_read_and_pictures_prepared_as_timm_does(
    new: New, tmp_path: Path, timm: list[str]
) -> None:
    done = new(None, "--architecture", "timm:small.in1k", labels=",".join(LABELS))
    assert done.exit_code == 0, done.output
    system = registry.classification("flowers")
    assert (system.input_size, system.mean, system.std) == (64, (0.5,) * 3, (0.25,) * 3)
    assert "timm:small.in1k, as" in done.output
    SystemParts("flowers").evaluation.load(small_network.saved(tmp_path / "theirs.pth"), "")
    assert timm == ["small.in1k"]


@pytest.mark.parametrize("name", ["hf_hub:somebody/something", "local-dir:/tmp/x", "hf-hub:a/b", "", "tiny"])
def test_only_networks_that_timm_has_itself_are_made(
    name: str, new: New, tmp_path: Path, timm: list[str]
) -> None:
    done = new(small_network.saved(tmp_path / "theirs.pth"), "--architecture", f"timm:{name}")
    assert done.exit_code == 2
    assert "timm has no network" in done.output
    assert timm == []
