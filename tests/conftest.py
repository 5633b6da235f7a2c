"""Tiers and servers that all tests share.

A test's tier is the folder it lies in, so that none can be forgotten. Servers are real, are started
once a run, and listen on free ports of loopback.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gourmet.serving.ports import free_ports
from gourmet.serving.triton_server import TritonOptions, TritonServer

# Before anything imports onnxruntime, which reports its use over the network unless told not to.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

TIERS = {"unit", "served", "web", "hard", "containers"}
HERE = Path(__file__).parent
MODELS = HERE.parent / "triton" / "models"


def pytest_configure() -> None:
    if {"", str(HERE.parent)} & set(sys.path):
        pytest.exit(
            "the checkout is on sys.path, where its folder triton/ passes for torch's compiler: "
            "run `make test`, or `pytest` and not `python -m pytest`",
            returncode=4,
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = item.path.relative_to(HERE).parts[0]
        if tier in TIERS:
            item.add_marker(tier)


@dataclass(frozen=True)
class RunningTriton:
    """A real Triton that tests may talk to, and its log so far."""

    options: TritonOptions
    repository: Path
    log: list[str]

    @property
    def http_url(self) -> str:
        return self.options.http_url

    @property
    def grpc_url(self) -> str:
        return self.options.grpc_url


def run_triton(*repositories: Path, **more: Any) -> Iterator[RunningTriton]:
    """Start a Triton, yield it live, stop it."""
    http, grpc, metrics = free_ports(3)
    options = TritonOptions(repositories, http_port=http, grpc_port=grpc, metrics_port=metrics, **more)
    log: list[str] = []
    with TritonServer(options, log.append) as server:
        server.wait_until_live(180)
        yield RunningTriton(options, repositories[0], log)


@pytest.fixture(scope="session")
def triton() -> Iterator[RunningTriton]:
    """The product's models as they are in the checkout. Tests that change a config put it back."""
    yield from run_triton(MODELS, response_cache_bytes=64 << 20)


@pytest.fixture(scope="session")
def lab_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    """A Triton with an empty, writable repository: tests put models there and load them by name."""
    yield from run_triton(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def food_photos() -> Path:
    """The folder of real food photos, for tests that say more with them than with drawn ones."""
    folder = Path(os.environ.get("GOURMET_FOOD11", HERE.parents[1] / "shared" / "food11"))
    if not (folder / "test.zip").is_file():
        pytest.skip(f"no real photos at {folder}: set GOURMET_FOOD11 to a folder with Food-11 style zips")
    return folder


@pytest.fixture
def models_copy(tmp_path: Path) -> Path:
    """A copy of the product's model repository that a test may break."""
    return Path(shutil.copytree(MODELS, tmp_path / "models"))
