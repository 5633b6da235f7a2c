"""Two systems that only the tests have: what the product does for any that generates, it does for these."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.up import GOURMET, Up

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).parents[2]
SYSTEMS = Path("tests/support/systems")  # relative, as one types it
MODELS = ROOT / "tests" / "support" / "models"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    env = {"GOURMET_SYSTEMS": os.path.relpath(ROOT / SYSTEMS), "FOOD11_MODEL_NAME": "food_classifier_onnx"}
    models = tmp_path_factory.mktemp("models")
    for name in ("food_classifier_onnx", "digits"):
        (models / name).symlink_to(ROOT / "triton" / "models" / name)
    repositories = (f"--model-repository={models}", f"--model-repository={MODELS}")
    env["GOURMET_KEYS"] = str(tmp_path_factory.mktemp("keys") / "mine")
    running = Up(*repositories, tmp=tmp_path_factory.mktemp("tmp"), env=env)
    running.wait_for("ready after")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOURMET_KEYS", env["GOURMET_KEYS"])
        yield running
    running.stop()


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "GOURMET_SYSTEMS": str(ROOT / SYSTEMS), **env}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_up_checks_the_sample_of_a_text_system(up: Up) -> None:
    assert "echo answers: «one two three» → three two one" in up.output
    assert "captions answers: the sample shows a photograph of" in up.output


def test_every_verb_finds_the_stack_without_an_address(up: Up) -> None:
    assert 'name: "digits"' in run(GOURMET, "config", "digits", "--raw").stdout
    output = run(GOURMET, "doctor").stdout
    for port in (up.port, up.http, up.grpc, up.metrics):
        assert f"{port} held by the running stack" in output


def test_doctor_checks_the_sample_of_each_text_system(up: Up) -> None:
    doctor = run(GOURMET, "doctor")
    assert "echo answers: «one two three» → three two one" in doctor.stdout
    assert "captions answers: the sample shows a photograph of" in doctor.stdout


def test_doctor_checks_streaming_models(up: Up) -> None:
    doctor = run(GOURMET, "doctor", ECHO_MODEL_NAME="echo_stream", CAPTIONS_MODEL_NAME="captions_stream")
    assert "echo_stream answers: «one two three» → three two one" in doctor.stdout
    assert "captions_stream answers: the sample shows a photograph of" in doctor.stdout


def test_the_health_check_of_the_containers_checks_the_text_samples(up: Up) -> None:
    script = (ROOT / "scripts" / "containers" / "ask_models.py").read_text()
    here = re.sub(r'ADDRESS = ".*"', f'ADDRESS = "127.0.0.1:{up.http}"', script)
    healthy = run(sys.executable, "-c", here)
    assert (healthy.returncode, healthy.stderr) == (0, "")
    assert run(sys.executable, "-c", here, ECHO_MODEL_NAME="echo_stream").returncode == 0
    # It is really asked, and not passed over.
    absent = run(sys.executable, "-c", here, ECHO_MODEL_NAME="nobody")
    assert "nobody is not ready" in absent.stderr


@pytest.mark.parametrize("model", ["echo", "echo_stream", "captions", "captions_stream"])
def test_check_sends_the_examples_whole_and_streamed(up: Up, model: str) -> None:
    done = run(GOURMET, "check", model, f"--url=localhost:{up.http}", "--limit=20", "--json=-")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["answered"], report["faults"]) == (20, [])
    assert report["streams"] is model.endswith("_stream")
    assert report["compared_with"] == (model.removesuffix("_stream") if report["streams"] else None)
    assert report["pieces"] > 20 if report["streams"] else report["pieces"] == 20
