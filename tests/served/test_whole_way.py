"""From photos, or from a network of NVIDIA's list, to answers through a real server, as typed."""

from __future__ import annotations

import io
import json
import re
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton_http
from PIL import Image
from support.cli import gourmet, said
from support.triton import RunningTriton
from support.up import GOURMET

from gourmet.learning import rehearsal_set
from gourmet.systems.food11 import contract, train

pytestmark = pytest.mark.slow

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


ROOT = Path(__file__).parents[2]
_, _, PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8").partition("flags of NVIDIA")
COMMANDS = re.findall(r"^\$ gourmet (.*)", PAGE, re.MULTILINE)
SMALL = "torchvision:squeezenet1_1"


@pytest.fixture
def models(lab_triton: RunningTriton) -> Iterator[set[str]]:
    """The names of models that a test deploys; they are unloaded at its end."""
    names: set[str] = set()
    yield names
    for name in names:
        gourmet("remove", name, "--yes", "--url", lab_triton.http_url, "--repository", lab_triton.repository)


def test_the_commands_of_the_docs_run_as_they_stand(lab_triton: RunningTriton, models: set[str]) -> None:
    """The networks are smaller ones, and the Triton and its repository are those of the tests."""
    models |= {"rnxt-onnx", "small"}
    verbs = []
    for command in COMMANDS:
        words = re.sub(r"--config \S+", f"--config {SMALL}", command)
        words = words.replace("localhost:8001", lab_triton.grpc_url).replace(
            "localhost:8000", lab_triton.http_url
        )
        words = re.sub(r"(?<![\w/])repository(?![\w-])", str(lab_triton.repository), words)
        verbs.append(words.split()[0])
        if verbs[-1] == "deployer":
            *flags, network = words.partition(" -- ")
            output = said(*flags[0].split(), "--triton-server-url", lab_triton.grpc_url, *network.split())
            assert re.search(r"^\S+ answers$", output, re.MULTILINE), output
        elif verbs[-1] != "up":
            subprocess.run([GOURMET, *words.split()], check=True, timeout=250)
    assert verbs == ["deployer", "up", "bench", "deployer"]


def test_a_server_of_another_repository_is_reported_and_nothing_stays(
    lab_triton: RunningTriton, tmp_path: Path
) -> None:
    to = ("--triton-server-url", lab_triton.http_url, "--save-dir", tmp_path / "models")
    output = said("deployer", "--onnx", *to, "--config", SMALL, "--batch_size", 2, status=1)
    assert "nothing was written" in output
    left = [path.name for path in (tmp_path / "models").rglob("*") if path.is_file()]
    assert set(left) <= {".gourmet.lock"}
