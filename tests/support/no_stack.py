"""No stack, no keys, no certificates and no address but a test's own, in each module that imports this."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.stack import run_file
from gourmet.stack.run_file import RunningStack


@pytest.fixture(autouse=True)
def no_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("TRITON_", "GOURMET_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("GOURMET_HOME", str(tmp_path / "home"))


def stack(port: int = 9100, **more: Any) -> RunningStack:
    """A stack of this process with four ports from `port` on, which serves the checkout's models."""
    addresses = {
        "pid": os.getpid(),
        "http_url": f"127.0.0.1:{port}",
        "grpc_url": f"127.0.0.1:{port + 1}",
        "metrics_url": f"http://127.0.0.1:{port + 2}/metrics",
        "web_url": f"http://127.0.0.1:{port + 3}",
        "repositories": [str(DEFAULT_REPOSITORY.resolve())],
        "model_control": "explicit",
    }
    return RunningStack(**{**addresses, **more})


def runs(running: RunningStack) -> AbstractContextManager[Path]:
    """Has verbs find that stack."""
    port = int(running.http_url.rpartition(":")[2])
    return run_file.run_file_for((port, port + 1), {"stack": asdict(running)})
