"""`gourmet new --from`: classifiers of Hugging Face's transformers answer as its own pipeline does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from gourmet.cli import main
from gourmet.errors import GourmetError, UsageError
from gourmet.export import hugging_face
from gourmet.export.picture_export import open_onnx
from gourmet.pictures.classifier import PictureClassifier
from gourmet.systems import registry
from gourmet.training.files import torchvision

LABELS = ["ant, red", "bee", "cat"]


def saved(folder: Path, kind: str) -> Path:
    """A small model with random weights, and its image processor, as transformers saves them."""
    torchvision()
    import transformers

    library: Any = transformers
    torch.manual_seed(0)
    common = {"id2label": dict(enumerate(LABELS)), "label2id": {name: at for at, name in enumerate(LABELS)}}
    small = {"hidden_sizes": [8, 16], "depths": [1, 1], **common}
    square, edge = {"size": {"height": 32, "width": 32}}, {"size": {"shortest_edge": 72}}
    config, processor = {
        "vit": (
            library.ViTConfig(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=32,
                image_size=32,
                patch_size=8,
                **common,
            ),
            library.ViTImageProcessor(**square),
        ),
        "swin": (
            library.SwinConfig(
                image_size=32,
                patch_size=2,
                embed_dim=16,
                depths=[1, 1],
                num_heads=[2, 2],
                window_size=4,
                **common,
            ),
            library.ViTImageProcessor(**square, resample=3, image_mean=[0.4] * 3),
        ),
        "resnet": (
            library.ResNetConfig(embedding_size=8, layer_type="basic", **small),
            library.ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.875),
        ),
        "convnext": (
            library.ConvNextConfig(num_stages=2, **small),
            library.ConvNextImageProcessor(size={"shortest_edge": 48}),
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


@pytest.mark.parametrize("kind", ["vit", "swin", "resnet", "convnext", "mobilenet"])
def test_pictures_are_prepared_exactly_as_transformers_prepares_them(kind: str, tmp_path: Path) -> None:
    given = hugging_face.open_folder(hugging_face.find(str(saved(tmp_path, kind))))
    assert given.labels == tuple(LABELS)
    assert "as transformers' pipeline on 20 pictures" in compared(given, tmp_path)


def test_a_preparation_that_is_not_known_is_refused(tmp_path: Path) -> None:
    given = hugging_face.open_folder(saved(tmp_path, "convnext"))
    with pytest.raises(GourmetError, match=r"transformers' pipeline says .* is not known here"):
        compared(replace(given, pictures={**given.pictures, "mean": (0.0,) * 3}), tmp_path)


def test_a_folder_becomes_a_served_system(
    systems_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOURMET_KEYS", str(tmp_path / "keys"))
    folder = saved(tmp_path / "theirs", "vit")
    command = ["new", "insects", "--from", str(folder), "--to", str(tmp_path / "models")]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert "as transformers' pipeline on 20 pictures" in done.output
    system = registry.classification("insects")
    assert (system.labels, system.input_size, system.squash) == (tuple(LABELS), 32, True)
    manifest = json.loads((tmp_path / "models/insects_onnx/1/manifest.json").read_text())
    assert manifest["network"]["labels"] == LABELS
    refused = CliRunner().invoke(main, [*command[:1], "others", *command[2:], "--size", "64"])
    assert "drop --size" in refused.output


def test_what_is_no_classifier_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"lacks config\.json, preprocessor_config\.json, model\.safetensors"
    ):
        hugging_face.find(str(tmp_path))
    with pytest.raises(GourmetError, match="no such/name cannot be downloaded from the hub"):
        hugging_face.find("hf:no such/name")
    folder = saved(tmp_path / "theirs", "resnet")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    with pytest.raises(GourmetError, match="a model of the type 'bert', which classifies no pictures"):
        hugging_face.open_folder(folder)
