"""`gourmet new` with photos or a folder of Hugging Face's transformers: it answers, and is served."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.cli import said
from support.life import verb

from gourmet.errors import GourmetError, UsageError
from gourmet.evaluation.rehearsal import load_rehearsal
from gourmet.export import hugging_face
from gourmet.export.picture_export import open_onnx
from gourmet.learning.from_photos import BODIES, Body, Photos, describe, make, own_body
from gourmet.pictures.certainty import relevance
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.made_up import views
from gourmet.systems import registry
from gourmet.training.files import torchvision
from gourmet.training.linear_layer import Layer, OnnxLayer

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
def test_a_folder_becomes_a_classifier_like_any_other_without_torch(home: Path, tmp_path: Path) -> None:
    photos, others = draw(tmp_path / "photos"), draw(tmp_path / "more", seed=2)
    program = (
        "import sys; sys.modules.update(torch=None, onnx=None, safetensors=None)\n"
        "from gourmet.cli import main; main(sys.argv[1:])"
    )
    words = [sys.executable, "-c", program, "new", "drawn", "--data", str(photos)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "body: " in done.stdout
    assert re.search(r"all +24", done.stdout)
    assert "/classify/drawn     its page" in done.stdout
    model = home / "models" / "drawn_onnx"
    assert registry.classification("drawn").labels == KINDS
    assert answers(model / "1", "drawn", others) > 0.9

    assert "`gourmet check drawn_onnx" in verb("evaluate", "drawn", succeeds=False)
    run = tmp_path / "run"
    words = [sys.executable, "-c", program, "learn-more", "drawn", str(others), "--out", str(run)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every class alike" in done.stdout, "compared on photos that were held out of both layers"
    assert str(model / "2") in verb("deploy", "drawn", "--weights", run / "learned.npz")
    assert answers(model / "2", "drawn", others) > 0.9
    assert "version 2 is withdrawn" in verb("rollback", "drawn")
    assert "drawn_onnx" in verb("list")
    verb("remove", "drawn", "--yes")
    assert not model.exists()
    assert "drawn" not in registry.names()


class Confused(Body):
    """A body that sees nothing of its photos."""

    @cached_property
    def network(self) -> Any:
        random = np.random.default_rng(0)
        return SimpleNamespace(activations=lambda images, tick: random.normal(size=(len(images), 1280)))


def test_the_best_body_is_taken_and_other_pictures_teach_what_none_of_the_labels_is(tmp_path: Path) -> None:
    photos = Photos.read(draw(tmp_path / "photos"), (), lambda *_: None)
    system = PictureClassifier("it", "It", "IT", "it", photos.labels, tmp_path, datatypes=("UINT8",))
    own = own_body()
    bodies = [Confused("confused", own.file, own.others), own]
    made, tried = make(describe(system), photos, bodies, lambda *_: None)
    assert (made.body.title, len(tried)) == (own.title, 2)
    others = np.flatnonzero(made.rows.classes == len(KINDS))
    assert len(others) > 0.8 * len(own.of_others())
    assert np.mean(relevance(made.layer(made.rows.views[0][others])) < 0.5) > 0.9


@pytest.mark.parametrize(
    ("kinds", "count", "more", "complaint"),
    [
        (("eggs",), 8, (), "has 1 folders with photos: eggs. A classifier needs"),
        (KINDS, 7, (), "eggs has 7, fruit has 7, noodles has 7; a class needs at least 8"),
        (KINDS, 8, ("--labels", "eggs,fruit,soup"), "are not the folders of"),
    ],
    ids=["one class", "few photos", "other labels"],
)
def test_a_folder_that_is_not_enough_is_refused_in_a_sentence(
    home: Path, tmp_path: Path, kinds: tuple[str, ...], count: int, more: tuple[str, ...], complaint: str
) -> None:
    output = verb("new", "drawn", "--data", draw(tmp_path / "photos", kinds, count), *more, succeeds=False)
    assert complaint in " ".join(output.split())
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


# Folders of Hugging Face
LABELS = ["ant, red", "bee", "cat"]


def saved(folder: Path, kind: str) -> Path:
    """A small model with random weights, and its image processor, as transformers saves them."""
    torchvision()
    import transformers

    library: Any = transformers
    torch.manual_seed(0)
    common = {"id2label": dict(enumerate(LABELS)), "label2id": {name: at for at, name in enumerate(LABELS)}}
    small = {"embedding_size": 8, "layer_type": "basic", "hidden_sizes": [8, 16], "depths": [1, 1]}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "hidden_size": 32}
    windows = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
    square, edge = {"size": {"height": 32, "width": 32}}, {"size": {"shortest_edge": 72}}
    config, processor = {
        "vit": (
            library.ViTConfig(image_size=32, patch_size=8, **heads, **common),
            library.ViTImageProcessor(**square),
        ),
        "swin": (
            library.SwinConfig(image_size=32, patch_size=2, **windows, **common),
            library.ViTImageProcessor(**square, resample=3, image_mean=[0.4] * 3),
        ),
        "resnet": (
            library.ResNetConfig(**small, **common),
            library.ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.875),
        ),
        "mobilenet": (
            library.MobileNetV2Config(depth_multiplier=0.35, image_size=64, **common),
            library.MobileNetV2ImageProcessor(**edge, crop_size={"height": 64, "width": 64}),
        ),
    }[kind]
    network = library.AutoModelForImageClassification.from_config(config).eval()
    with torch.no_grad():  # so that its answers differ from picture to picture
        for parameter in network.classifier.parameters():
            parameter.normal_(0, 3)
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def compared(given: hugging_face.Given, folder: Path) -> str:
    file = folder / "model.onnx"
    given.write(file)
    system = PictureClassifier(
        "it", "It", "IT", "it", given.labels, folder, datatypes=("FP32",), **given.pictures
    )
    answers = open_onnx(file, "input", "output")
    return given.compare(system, lambda pixels: answers(system.normalise(pixels)))


@pytest.mark.parametrize("kind", ["vit", "swin", "resnet", "mobilenet"])
def test_pictures_are_prepared_exactly_as_transformers_prepares_them(kind: str, tmp_path: Path) -> None:
    given = hugging_face.open_folder(hugging_face.find(str(saved(tmp_path, kind))))
    assert given.labels == tuple(LABELS)
    assert "as transformers' pipeline on 20 pictures" in compared(given, tmp_path)


def test_a_preparation_that_is_not_known_is_refused(tmp_path: Path) -> None:
    given = hugging_face.open_folder(saved(tmp_path, "resnet"))
    with pytest.raises(GourmetError, match=r"transformers' pipeline says .* is not known here"):
        compared(replace(given, pictures={**given.pictures, "mean": (0.0,) * 3}), tmp_path)


def test_a_folder_becomes_a_served_system(
    systems_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOURMET_KEYS", str(tmp_path / "keys"))
    folder = saved(tmp_path / "theirs", "vit")
    command = ["new", "insects", "--from", folder, "--to", tmp_path / "models"]
    assert "as transformers' pipeline on 20 pictures" in said(*command)
    system = registry.classification("insects")
    assert (system.labels, system.input_size, system.squash) == (tuple(LABELS), 32, True)
    manifest = json.loads((tmp_path / "models/insects_onnx/1/manifest.json").read_text())
    assert manifest["network"]["labels"] == LABELS
    assert "drop --size" in said("new", "others", *command[2:], "--size", 64, status=2)


def test_what_is_no_classifier_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"lacks config\.json, preprocessor_config\.json, model\.safetens"):
        hugging_face.find(str(tmp_path))
    with pytest.raises(GourmetError, match="no such/name cannot be downloaded from the hub"):
        hugging_face.find("hf:no such/name")
    folder = saved(tmp_path / "theirs", "resnet")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    with pytest.raises(GourmetError, match="a model of the type 'bert', which classifies no pictures"):
        hugging_face.open_folder(folder)
