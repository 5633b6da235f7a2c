"""A system that only the tests have: the verbs do for it what they do for any system that generates."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.life import verb
from support.triton import ROOT, some_models
from support.up import Up

pytestmark = pytest.mark.smoke

SYSTEMS = ROOT / "tests" / "support" / "systems"
MODELS = ROOT / "tests" / "support" / "models"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("text")
    models = some_models(folder / "models", "food_classifier_onnx", "digits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOURMET_SYSTEMS", os.path.relpath(SYSTEMS))  # relative, as one types it
        patch.setenv("GOURMET_KEYS", str(folder / "keys"))
        patch.setenv("FOOD11_MODEL_NAME", "food_classifier_onnx")
        repositories = (f"--model-repository={models}", f"--model-repository={MODELS}")
        with Up(*repositories, tmp=folder / "tmp") as running:
            yield running


def test_up_and_doctor_check_its_sample_and_find_the_stack(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 'name: "digits"' in verb("config", "digits", "--raw")
    doctor = verb("doctor")
    for port in (up.port, up.http, up.grpc, up.metrics):
        assert f"{port} held by the running stack" in doctor
    answers = "echo{} answers: «one two three» → three two one"
    assert answers.format("") in up.output
    assert answers.format("") in doctor
    monkeypatch.setenv("ECHO_MODEL_NAME", "echo_stream")
    assert answers.format("_stream") in verb("doctor")


def test_the_health_check_of_the_containers_checks_the_text_samples(up: Up) -> None:
    script = (ROOT / "scripts" / "containers" / "ask_models.py").read_text()
    here = re.sub(r'ADDRESS = ".*"', f'ADDRESS = "127.0.0.1:{up.http}"', script)

    def check(**env: str) -> tuple[int, str]:
        command = [sys.executable, "-c", here]
        done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    assert check(ECHO_MODEL_NAME="echo_stream") == (0, "")
    # The models are really asked.
    assert "nobody is not ready" in check(ECHO_MODEL_NAME="nobody")[1]


@pytest.mark.parametrize("model", ["echo", "echo_stream"])
def test_check_sends_the_examples_whole_and_streamed(up: Up, model: str, tmp_path: Path) -> None:
    verb("check", model, f"--url=localhost:{up.http}", "--limit=20", f"--json={tmp_path / 'report'}")
    report = json.loads((tmp_path / "report").read_text())
    assert (report["answered"], report["faults"]) == (20, [])
    assert report["streams"] is model.endswith("_stream")
    assert report["compared_with"] == (model.removesuffix("_stream") if report["streams"] else None)
    assert report["pieces"] > 20 if report["streams"] else report["pieces"] == 20
