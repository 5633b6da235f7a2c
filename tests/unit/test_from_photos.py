"""`gourmet new NAME --data FOLDER`: photos become a served classifier, without torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from support.life import home, verb

from gourmet.cli import main
from gourmet.evaluation.rehearsal import load_rehearsal
from gourmet.learning.from_photos import BODIES
from gourmet.pictures.made_up import views
from gourmet.systems import registry
from gourmet.training.linear_layer import Layer, OnnxLayer

__all__ = ["home"]  # the fixture
DRAWINGS = Path(__file__).parents[1] / "drawings"
KINDS = ("eggs", "fruit", "noodles")
EACH = 8


def draw(folder: Path, kinds: tuple[str, ...] = KINDS, count: int = EACH, seed: int = 1) -> Path:
    for kind in kinds:
        (folder / kind).mkdir(parents=True)
        drawn = (DRAWINGS / f"{kind}.jpg").read_bytes()
        for number, view in enumerate(views(drawn, count, size=(240, 200), seed=seed)):
            (folder / kind / f"{number}.jpg").write_bytes(view)
    return folder


def new(*words: object) -> Result:
    return CliRunner().invoke(main, ["new", *map(str, words)])


def answers(model: Path, system: str, folder: Path) -> float:
    """The share of the pictures in `folder` that a version answers rightly."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model / "model.onnx", providers=["CPUExecutionProvider"])
    classifier, right = registry.classification(system), []
    for path in folder.glob("*/*.jpg"):
        rows = classifier.tensor(classifier.pixels(path.read_bytes())[None], "UINT8")
        (logits,) = session.run(["output"], {"image": rows})
        right.append(classifier.labels[int(logits.argmax())] == path.parent.name)
    return float(np.mean(right))


@pytest.mark.promise("README: with a folder of photos for each class, makes the classifier itself")
@pytest.mark.slow
def test_a_folder_becomes_a_classifier_without_torch_and_lives_like_any_other(
    home: Path, tmp_path: Path
) -> None:
    photos, others = draw(tmp_path / "photos"), draw(tmp_path / "more", seed=2)
    program = (
        "import sys; sys.modules.update(torch=None, onnx=None, safetensors=None)\n"
        "from gourmet.cli import main; main(sys.argv[1:])"
    )
    words = ["new", "drawn", "--data", str(photos)]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "body: " in done.stdout
    assert re.search(r"all +24", done.stdout)
    assert "/classify/drawn     its page" in done.stdout
    model = home / "models" / "drawn_onnx"
    assert registry.classification("drawn").labels == KINDS
    assert answers(model / "1", "drawn", others) > 0.9

    assert "`gourmet check drawn_onnx" in verb("evaluate", "drawn", succeeds=False)
    run = tmp_path / "run"
    words = ["learn-more", "drawn", str(others), "--out", str(run)]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every class alike" in done.stdout, "compared on photos that were held out of both layers"
    assert str(model / "2") in verb("deploy", "drawn", "--weights", run / "learned.npz")
    assert answers(model / "2", "drawn", others) > 0.9
    assert "version 2 is withdrawn" in verb("rollback", "drawn")
    assert "drawn_onnx" in verb("list")
    verb("remove", "drawn", "--yes")
    assert not model.exists()
    assert "drawn" not in registry.names()


@pytest.mark.parametrize(
    ("kinds", "count", "more", "words"),
    [
        (("eggs",), 8, (), "has 1 folders with photos: eggs. A classifier needs"),
        (KINDS, 7, (), "eggs has 7, fruit has 7, noodles has 7; a class needs at least 8"),
        (KINDS, 8, ("--labels", "eggs,fruit,soup"), "are not the folders of"),
    ],
    ids=["one class", "few photos", "other labels"],
)
def test_a_folder_that_is_not_enough_is_refused_in_a_sentence(
    home: Path, tmp_path: Path, kinds: tuple[str, ...], count: int, more: tuple[str, ...], words: str
) -> None:
    done = new("drawn", "--data", draw(tmp_path / "photos", kinds, count), *more)
    assert done.exit_code != 0
    assert words in " ".join(done.output.split())
    assert not (home / "systems" / "drawn").exists()


def test_a_file_with_a_new_last_layer_gives_that_layers_answers(tmp_path: Path) -> None:
    body = OnnxLayer.read(BODIES / "efficientnet_lite0.onnx")
    random = np.random.default_rng(0)
    layer = Layer(random.normal(size=(300, 1280)).astype(np.float32), np.arange(300, dtype=np.float32))
    (tmp_path / "model.onnx").write_bytes(body.with_new_layer(layer, "logits"))
    again = OnnxLayer.read(tmp_path / "model.onnx")
    assert np.array_equal(again.layer.weight, layer.weight)
    assert np.array_equal(again.layer.bias, layer.bias)
    assert again.before == body.before
    pixels = random.integers(0, 256, (2, 224, 224, 3), np.uint8)
    assert np.array_equal(again.activations(pixels), body.activations(pixels))


def test_a_set_is_read_as_it_was_written() -> None:
    known = load_rehearsal(BODIES / "efficientnet_lite0.onnx")
    assert known.activations.shape == (len(known.classes), 1280)
    assert np.bincount(known.classes).argmax() == 11, "most are of none of food's classes"
