"""From photos to answers through a real server, as typed: train, evaluate, deploy, check."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton_http
from PIL import Image
from support.cli import said

from gourmet.learning import rehearsal_set
from gourmet.systems.food11 import contract, train

MODEL = "food_classifier_onnx"
PARTS = {"train": 2, "validation": 1, "test": 2}  # photos a class


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few photos a class, of colours that a network soon tells apart."""
    folder = tmp_path_factory.mktemp("photos")
    for part, count in PARTS.items():
        file = "test.zip" if part == "test" else "train.zip"
        with zipfile.ZipFile(folder / file, "a") as archive:
            for name, blob in _coloured(part, count):
                archive.writestr(name, blob)
    return folder


def _coloured(part: str, count: int) -> Iterator[tuple[str, bytes]]:
    generator = np.random.default_rng(len(part))
    for class_id in range(len(contract.SYSTEM.labels)):
        for number in range(count):
            colour = np.array([(class_id * step) % 256 for step in (67, 131, 29)])
            coarse = generator.normal(0, 30, (2 + class_id, 2 + class_id, 3)) + colour
            image = Image.fromarray(np.clip(coarse, 0, 255).astype(np.uint8))
            buffer = io.BytesIO()
            image.resize((64, 64), Image.Resampling.NEAREST).save(buffer, "JPEG")
            yield f"{class_id:02d}/{class_id}_{part}{number}.jpg", buffer.getvalue()


@pytest.mark.slow
def test_train_evaluate_deploy_check(
    data: Path, tmp_path: Path, models_copy: Path, lab_triton: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "_MADE_UP", 22)  # pictures of nothing; a hundred times as many photos need 400
    monkeypatch.setattr(rehearsal_set, "LEARNED", 22)
    monkeypatch.setattr(rehearsal_set, "HELD", 11)
    trained = said("train", "food11", "--data", data, "--threads", "1")
    assert "last.safetensors" in trained

    evaluated = json.loads(said("evaluate", "food11", "--json"))["test"]

    # A network that saw a few coloured pictures is worse than the shipped one, and refused without --force.
    deployed = said("deploy", "food11", "--format", "onnx", "--to", models_copy, "--force")
    assert f"{MODEL}/2" in deployed.replace("\\", "/")
    assert "FAIL" not in deployed

    # The running Triton takes the deployed version into service out of its own repository.
    served = lab_triton.repository / MODEL
    (models_copy / MODEL).rename(served)
    with triton_http.InferenceServerClient(lab_triton.http_url, network_timeout=120) as client:
        client.load_model(MODEL)
        try:
            options = ("--data", data, "--url", lab_triton.http_url)
            options += ("--model-repository", lab_triton.repository)
            report = json.loads(said("check", MODEL, *options, "--json", "-"))
        finally:
            client.unload_model(MODEL)
            served.rename(models_copy / MODEL)
    assert report["complete"] is True
    assert report["versions"] == ["2"]
    assert report["answered"] == evaluated["photos"] == PARTS["test"] * len(contract.SYSTEM.labels)
    # The served model's accuracy is that of the weights.
    assert report["quality"]["top1"] == evaluated["top1"]
    assert report["quality"]["per_class"] == evaluated["per_class"]
