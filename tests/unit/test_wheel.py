from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gourmet.errors import GourmetError
from gourmet.stack import triton_server


def test_models_use_this_environment_s_packages_and_send_no_telemetry() -> None:
    environment = triton_server.find_wheel().environment()
    first = Path(environment["PATH"].split(os.pathsep)[0])
    assert (first / "python3").samefile(sys.executable)
    assert environment["ORT_DISABLE_TELEMETRY"] == "1"


def test_numpy_2_in_the_servers_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_server, "version", lambda name: "2.1.0")
    with pytest.raises(GourmetError, match=r"numpy 2\.1\.0 .*pip install 'numpy<2'"):
        triton_server.find_wheel()


def test_a_missing_wheel_is_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_server, "find_spec", lambda name: None)
    with pytest.raises(GourmetError, match=r"nvidia-pytriton is missing. Run `make setup`.*glibc 2\.35"):
        triton_server.find_wheel()


def test_the_python_backend_makes_its_folders_where_its_server_works(tmp_path: Path) -> None:
    """Those of killed servers stayed in /tmp: there were 112."""
    result = triton_server.find_wheel()
    original = (result.server / "backends" / "python" / "libtriton_python.so").read_bytes()
    made = (result.assemble_backends(tmp_path / "backends") / "python" / "libtriton_python.so").read_bytes()
    assert original.count(b"/tmp/python_env_") == 1
    assert b"/tmp/python_env_" not in made
    assert len(made) == len(original)
    assert sum(a != b for a, b in zip(original, made, strict=True)) == 4
