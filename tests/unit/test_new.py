"""`gourmet new`: what it writes, and that a refusal leaves nothing behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result
from safetensors.torch import save_file
from support.onnx_network import network
from support.small_network import ARCHITECTURE, LABELS, saved
from support.stopping import files
from torch import nn

from gourmet.cli import main
from gourmet.contracts import ModelInfo
from gourmet.errors import GourmetError, UsageError
from gourmet.pictures.drawn import made_up
from gourmet.repository import read_config
from gourmet.systems import registry
from gourmet.tasks.classification.export import open_onnx
from gourmet.tasks.classification.torchvision_network import build
from gourmet.tasks.system_parts import SystemParts

New = Callable[..., Result]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("theirs") / "best.pth")


@pytest.fixture
def new(systems_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> New:
    """Runs `gourmet new` with folders of its own; no stack runs that could take what it makes."""
    monkeypatch.setenv("GOURMET_KEYS", str(tmp_path / "keys"))

    def run(*arguments: object, labels: str = ",".join(LABELS), name: str = "flowers") -> Result:
        command = ["new", name, "--labels", labels, "--to", str(tmp_path / "models"), *map(str, arguments)]
        return CliRunner().invoke(main, command)

    return run


def test_plain_weights_become_a_system_and_its_served_model(new: New, weights: Path, tmp_path: Path) -> None:
    done = new("--weights", weights, "--architecture", ARCHITECTURE)
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
    parts = SystemParts("flowers", registry.piece)
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
    brought, labels = ("--weights", tmp_path / "theirs.onnx"), LABELS[:3]
    photos, models = tmp_path / "photos", tmp_path / "models"
    for number, label in enumerate(labels):
        (photos / label).mkdir(parents=True)
        for seed in range(10):
            (photos / label / f"{seed}.png").write_bytes(made_up(seed=10 * number + seed))
    done = new(*brought, labels=",".join(labels))
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
    done = new(*brought, "--data", photos, labels=",".join(labels))
    assert done.exit_code == 0, done.output
    assert "not calibrated" not in done.output
    assert threshold_of(models) == pytest.approx(chosen, abs=1e-3)
    manifest = json.loads((models / "flowers_onnx/1/manifest.json").read_text())
    assert manifest["accuracy"]["given"]["photos"] == 10 * len(labels)


def test_without_weights_the_output_says_how_to_train(new: New, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("rose\n\ntulip\n")
    done = new("--title", "Garden flowers", labels=str(labels))
    assert done.exit_code == 0, done.output
    assert "gourmet train flowers --data" in done.output
    assert registry.classification("flowers").labels == ("rose", "tulip")
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ("rose", "neither a file nor a list"),
        ("rose,", "names 1 label"),
        ("rose,tulip,rose", "names rose twice"),
    ],
)
def test_invalid_labels_are_refused(labels: str, complaint: str, new: New, tmp_path: Path) -> None:
    done = new(labels=labels)
    assert done.exit_code != 0
    assert complaint in done.output
    assert files(tmp_path) == set()


def test_a_file_without_a_list_of_labels_is_refused(new: New, weights: Path) -> None:
    done = new(labels=str(weights))
    assert done.exit_code == 2
    assert "is not a text file, with a label a line" in done.output


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
    assert new("--title", title, labels=", ".join(labels[:3]) + ",\n" + ",".join(labels[3:])).exit_code == 0
    system = registry.classification("flowers")
    assert (system.title, system.labels) == (title, labels)


def scoring(path: Path, output: str) -> Path:
    """A classifier in ONNX whose output has this name."""
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    nodes = [onnx.helper.make_node("ReduceMean", ["x"], [output], axes=[2, 3], keepdims=0)]
    pixels, scores = value("x", kind, ["n", 3, 8, 8]), value(output, kind, ["n", 3])
    graph = onnx.helper.make_graph(nodes, "g", [pixels], [scores])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.parametrize(
    "output", ['",); import os; os.mkdir("owned")  #', "two\nlines", 'a" data_type: TYPE_INT8 } #', "s" * 129]
)
def test_a_tensor_s_name_that_is_more_than_a_name_is_refused(new: New, tmp_path: Path, output: str) -> None:
    done = new("--weights", scoring(tmp_path / "given.onnx", output), labels="a,b,c")
    assert done.exit_code == 1
    assert "a name may have at most 128 letters, digits and _ . : / - in it" in done.output
    assert files(tmp_path) == {"given.onnx"}


def test_a_tensor_s_ordinary_name_is_served(new: New, tmp_path: Path) -> None:
    done = new("--weights", scoring(tmp_path / "given.onnx", "head/scores:0"), labels="a,b,c")
    assert done.exit_code == 0, done.output
    assert read_config(tmp_path / "models" / "flowers_onnx").output[0].name == "head/scores:0"
    with pytest.raises(UsageError, match="names no architecture"):
        _ = SystemParts("flowers", registry.piece).training


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
    done = new("--weights", path, "--architecture", ARCHITECTURE, labels="rose,tulip")
    assert done.exit_code in (1, 2)
    for complaint in complaints:
        assert complaint in done.output
    assert files(tmp_path) == {"theirs.safetensors"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--architecture", "torchvision:resnet81"], "such as torchvision:resnet18"),
        ([], "add --architecture"),
        (["--architecture", ARCHITECTURE, "--like", "digits"], "prepares its inputs in its own way"),
        (["--architecture", ARCHITECTURE, "--like", "nobody"], "no system 'nobody'"),
    ],
)
def test_missing_options_are_named(arguments: list[str], complaint: str, new: New, weights: Path) -> None:
    done = new("--weights", weights, *arguments)
    assert done.exit_code != 0
    assert complaint in done.output
