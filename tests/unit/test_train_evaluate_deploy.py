"""The verbs one after another, as a user types them, on photos drawn by the test."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gourmet.systems.food11 import contract
from gourmet.training.files import read_about

GOURMET = Path(sys.executable).with_name("gourmet")
MODELS = Path(__file__).parents[2] / "triton" / "models"


def photo(class_id: int, number: int) -> bytes:
    """A picture that its class's colour and grain give away."""
    generator = np.random.default_rng((class_id, number))
    colour = np.array([(class_id * 67) % 256, (class_id * 131) % 256, (class_id * 29) % 256])
    coarse = generator.normal(0, 30, (2 + class_id, 2 + class_id, 3)) + colour
    image = Image.fromarray(np.clip(coarse, 0, 255).astype(np.uint8)).resize(
        (64, 64), Image.Resampling.NEAREST
    )
    buffer = io.BytesIO()
    image.save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for part, first, count in (("train", 0, 44), ("test", 1000, 4)):
        with zipfile.ZipFile(folder / f"{part}.zip", "w") as archive:
            for class_id in range(len(contract.LABELS)):
                for number in range(first, first + count):
                    name = f"{class_id:02d}/dish{number % 2}/{class_id}_{number}.jpg"
                    archive.writestr(name, photo(class_id, number))
    return folder


def gourmet(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(GOURMET), *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.parametrize(
    ("system", "options", "measured", "model"),
    [
        ("food11", ["--epochs", "1", "--limit", "400"], 44, "food_classifier_onnx"),
        ("digits", ["--epochs", "1"], 359, "digits"),
    ],
)
def test_train_killed_and_resumed_then_evaluate_and_deploy(
    system: str, options: list[str], measured: int, model: str, data: Path, tmp_path: Path
) -> None:
    given = ["--data", data] if system == "food11" else []
    train = ["train", system, *given, *options, "--threads", "1"]
    process = subprocess.Popen(
        [str(GOURMET), *map(str, train)], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    run = tmp_path / "runs" / system
    _wait_until(lambda: _catches_sigterm(process.pid), "the training loop did not begin")
    process.send_signal(signal.SIGTERM)
    _, words = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "--resume goes on from there" in words
    position = read_about(run / "checkpoint.safetensors")["position"]
    assert position["epoch"] == 0
    assert position["seen"] > 0

    again = gourmet(*train, folder=tmp_path)
    assert again.returncode == 1
    assert "holds a run already" in again.stderr

    resumed = gourmet(*train, "--resume", folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    epochs = int(options[1])
    assert f"after {epochs} epochs" in resumed.stdout
    assert len((run / "log.jsonl").read_text().splitlines()) == epochs

    evaluated = gourmet("evaluate", system, "--json", folder=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    numbers = json.loads(evaluated.stdout)
    assert numbers["test"]["photos"] == measured
    assert (run / "last.report.html").stat().st_size > 10_000

    repository = tmp_path / "models"
    (repository / model).mkdir(parents=True)
    shutil.copy(MODELS / model / "config.pbtxt", repository / model)
    deployed = gourmet("deploy", system, "--format", "onnx", "--to", repository, folder=tmp_path)
    assert deployed.returncode == 0, deployed.stderr
    manifest = json.loads((repository / model / "1" / "manifest.json").read_text())
    assert manifest["accuracy"]["test"] == numbers["test"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["train", "food11", "--data", "nowhere"], "nowhere does not exist"),
        (["train", "food11"], "food11 brings no data along: name a folder or file"),
        (["train", "digits", "--data", "nowhere"], "nowhere does not exist"),
        (["evaluate", "food11", "--data", "."], "last.safetensors does not exist: train first"),
        (
            ["deploy", "food11", "--format", "floppy"],
            "--format floppy is none of torchscript, onnx, int8, all",
        ),
        (["deploy", "food11", "--format", "onnx"], "name them with --data"),
    ],
)
def test_what_is_missing_is_named_in_one_sentence(
    arguments: list[str], complaint: str, tmp_path: Path
) -> None:
    done = gourmet(*arguments, folder=tmp_path)
    assert done.returncode in (1, 2)
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def _catches_sigterm(pid: int) -> bool:
    """Whether a process has a handler of its own, as it does while it trains."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(re.findall(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def _wait_until(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"{complaint} in 120 s"
        time.sleep(0.05)
