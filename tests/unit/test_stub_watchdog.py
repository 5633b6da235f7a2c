"""Notices a model's process that died; tests/web/test_faults_short.py has a real Triton reload the model."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gourmet.serving.preflight import free_ports
from gourmet.serving.stub_watchdog import StubWatchdog
from gourmet.serving.waiting import wait_until


def stubs(parent: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(parent).children() if "stub" in child.cmdline()[0]]


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that starts two models as Triton does, and does not ask what became of them."""
    stub = tmp_path / "triton_python_backend_stub"
    stub.symlink_to(sys.executable)
    models = []
    for name in ("soup", "bread"):
        path = tmp_path / name / "1" / "model.py"
        path.parent.mkdir(parents=True)
        path.write_text("import time; time.sleep(60)")
        models.append(str(path))
    start = "[subprocess.Popen([sys.argv[1], model]) for model in sys.argv[2:]]"
    code = f"import subprocess, sys, time; {start}; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(stub), *models]) as process:
        wait_until(lambda: len(stubs(process.pid)) == 2, 60, "the models did not start")
        yield process
        for child in psutil.Process(process.pid).children():
            child.kill()
        process.kill()


def test_a_model_whose_process_dies_is_reloaded_and_no_other(parent: subprocess.Popen[bytes]) -> None:
    said: list[str] = []
    stopped = threading.Event()
    StubWatchdog(f"127.0.0.1:{free_ports(1)[0]}", said.append).start(lambda: parent.pid, stopped)
    for stub in stubs(parent.pid):
        if "soup" in stub.cmdline()[1]:
            stub.kill()
    wait_until(lambda: len(said) == 2, 60, "no death was noticed")
    stopped.set()
    assert said[0] == "a process of the model 'soup' died; reloading the model"
    assert said[1].startswith("the model 'soup' could not be reloaded: no Triton answers at 127.0.0.1:")
