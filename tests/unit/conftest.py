"""What `gourmet doctor` looks at, for the files of its tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gourmet.doctor.findings import Examined
from gourmet.repository import DEFAULT
from gourmet.serving.ports import free_ports


@pytest.fixture
def subject() -> Examined:
    """The checkout on this machine, with nothing running."""
    ports = dict(zip(["--port", "--http-port", "--grpc-port", "--metrics-port"], free_ports(4), strict=True))
    return Examined((DEFAULT,), "127.0.0.1", ports, f"127.0.0.1:{ports['--http-port']}", False, {})


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a program of a name on PATH, given as the body of a shell script, and hides the machine's own."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name: str, body: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)

    return put
