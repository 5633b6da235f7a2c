"""Fixtures of several files: folders of systems, a listener, and the subject of `gourmet doctor`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flask import Flask
from jinja2 import FileSystemBytecodeCache
from support.life import home
from support.listener import listen

import gourmet.systems
from gourmet.doctor import Examined
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.stack.preflight import free_ports
from gourmet.systems import registry

__all__ = ["home", "listen"]  # fixtures


@pytest.fixture(scope="session", autouse=True)
def _templates(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compile the app's templates once, although nearly each test of the app makes an app of its own."""
    cached = FileSystemBytecodeCache(str(tmp_path_factory.mktemp("templates")))
    Flask.jinja_options = {"bytecode_cache": cached}


@pytest.fixture
def systems_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of systems, as in a process that was started with GOURMET_SYSTEMS; forgotten afterwards."""
    folder = tmp_path / "systems"
    folder.mkdir()
    monkeypatch.setattr(gourmet.systems, "__path__", list(gourmet.systems.__path__)[:1])
    monkeypatch.setenv("GOURMET_SYSTEMS", str(folder))
    yield folder
    for name in [path.name for path in folder.iterdir()]:
        for module in [
            module for module in sys.modules if f"{module}.".startswith(f"gourmet.systems.{name}.")
        ]:
            del sys.modules[module]
    registry.load.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture
def own(systems_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, as in a process that was started without GOURMET_SYSTEMS."""
    monkeypatch.setenv("GOURMET_HOME", str(tmp_path))  # whose systems/ the fixture forgets afterwards
    monkeypatch.setenv("GOURMET_KEYS", str(tmp_path / "keys"))
    monkeypatch.delenv("GOURMET_SYSTEMS")
    return tmp_path


@pytest.fixture
def subject() -> Examined:
    """The checkout on this machine, with nothing running."""
    ports = dict(zip(["--port", "--http-port", "--grpc-port", "--metrics-port"], free_ports(4), strict=True))
    return Examined((DEFAULT_REPOSITORY,), "127.0.0.1", ports, f"127.0.0.1:{ports['--http-port']}", False, {})


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
