"""`gourmet tune` on a real Triton, with a model of which one knows what is best for it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cli import gourmet, said
from support.made_models import python_model, tensors
from support.up import restore_signals

from gourmet.bench import sweep, tuning, validity
from gourmet.repository.models import read_config

# An execution takes 40 ms and no CPU: a second instance pays for certain, on a busy machine too.
MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.04)
        rows = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", 2 * x)]) for x in rows]
"""
CONFIG = tensors("input", "x", dims=[4]) + tensors("output", "y", dims=[4])
NAME = "waiter"
# With one count of instances there is one candidate: nothing to batch, no other threads.
NARROW = ["--threads", "1", "--instances", "2"]
QUICK = ["--rows", "4", "--window", "0.6", "--windows", "2", "--warm-up", "0.2", "--steady", "95"]
PATIENT = ["--attempts", "8", "--turns", "3", "--concurrency", "8"]


@pytest.fixture(scope="module")
def served(onnx_lab: Any, lab_triton: Any) -> str:
    python_model(lab_triton.repository / NAME, MODEL, CONFIG)
    onnx_lab.client.load_model(NAME)
    return NAME


@pytest.fixture
def arguments(lab_triton: Any, served: str) -> list[str]:
    to = ["--url", lab_triton.http_url, "--grpc-url", lab_triton.grpc_url]
    return ["tune", served, *to, *NARROW, *QUICK, *PATIENT]


@pytest.fixture
def config(onnx_lab: Any, served: str) -> Iterator[Callable[[], Any]]:
    """Asks the config that serves; afterwards the first one serves again."""

    def ask() -> Any:
        return onnx_lab.client.get_model_config(served)

    before = ask()
    yield ask
    if ask() != before:
        onnx_lab.client.load_model(served, config=json.dumps(before))


@pytest.mark.slow
def test_the_best_config_is_explained_written_and_applied(
    arguments: list[str], config: Callable[[], Any], tmp_path: Path
) -> None:
    # On a machine that stands still now and then a few short turns may not tell: then it says so, and loads
    # nothing, and is asked again.
    for _ in range(3):
        result = gourmet(*arguments, "--apply", "--save", tmp_path)
        report = json.loads((tmp_path / "tune.json").read_text())
        assert result.exit_code == (report["verdict"] == "undecided"), result.output
        assert report["applied"] == (report["verdict"] == "better")
        if report["applied"]:
            break
    assert report["applied"], report["sentence"]
    assert report["duel"]["gain"]["low"] > 1
    assert report["sentence"] in result.output
    assert config()["instance_group"][0]["count"] == 2
    assert read_config(tmp_path).instance_group[0].count == 2
    assert "<svg" in (tmp_path / "chart.svg").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("goal", "verdict", "recommended", "says"),
    [
        (["--p95", "1ms"], "out of reach", None, "No config that was tried reaches a p95 of 1 ms; the"),
        ([], "undecided", "present", "not be compared with it, since too few turns could be believed"),
    ],
)
def test_a_search_without_a_winner_gives_the_reason_and_changes_nothing(
    arguments: list[str],
    config: Callable[[], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    goal: list[str],
    verdict: str,
    recommended: str | None,
    says: str,
) -> None:
    before = config()

    # A real server cannot be made to be disturbed in every turn and in nothing before them.
    def disturb(*_: object) -> None:
        raise validity.Disturbed("somebody else asked as well")

    if verdict == "undecided":
        monkeypatch.setattr(tuning, "sweep", SimpleNamespace(**{**vars(sweep), "measure": disturb}))
    short = ["--window", "0.2", "--turns", "3", "--apply", "--json", "--save", str(tmp_path)]
    assert said(*arguments, *goal, *short, status=1)
    report = json.loads((tmp_path / "tune.json").read_text())
    assert (report["verdict"], report["recommended"], report["applied"]) == (verdict, recommended, False)
    assert says in report["sentence"]
    assert (tmp_path / "config.pbtxt").exists() == (recommended is not None)
    assert config() == before


def interrupted(running: subprocess.Popen[str], goes_on: Callable[[], bool]) -> str:
    """Press Ctrl-C, again while the search goes on, and return the output."""
    for _ in range(12):  # Python drops one that arrives while it runs a finalizer
        running.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return running.communicate(timeout=10)[0]
        if not goes_on():
            break
    return running.communicate(timeout=120)[0]


def test_an_interrupted_search_leaves_the_config_of_before(
    arguments: list[str], config: Callable[[], Any], tmp_path: Path
) -> None:
    before = config()
    save = ["--save", str(tmp_path / "no"), "--window", "3"]  # so that it is not over before it is stopped
    running = subprocess.Popen(
        [sys.executable, "-c", "from gourmet.cli import main; main()", *arguments, *save],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=restore_signals,
    )
    try:
        deadline = time.monotonic() + 120
        while config() == before:
            assert running.poll() is None, running.stdout and running.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        output = interrupted(running, lambda: config() != before)
    finally:
        running.kill()
    assert running.returncode == 1, output
    assert output.strip().endswith("Aborted!")
    assert config() == before
    assert not (tmp_path / "no").exists()
