"""A real Triton for tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gourmet.stack.preflight import free_ports
from gourmet.stack.processes import LineSink
from gourmet.stack.triton_server import TritonOptions, TritonServer

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "triton" / "models"


@dataclass(frozen=True)
class RunningTriton:
    """A real Triton that tests may talk to, and its log so far."""

    options: TritonOptions
    repository: Path
    log: list[str]
    pid: int

    @property
    def http_url(self) -> str:
        return self.options.http_url

    @property
    def grpc_url(self) -> str:
        return self.options.grpc_url

    def stubs(self) -> set[int]:
        """Return the processes of its Python models, without those that decode for them."""
        return {child.pid for child in psutil.Process(self.pid).children()}


def triton_server(*repositories: Path, on_line: LineSink = lambda line: None, **more: Any) -> TritonServer:
    """A Triton on free ports that was not started yet; told to end, it gives nobody seconds to hang up."""
    http, grpc, metrics = free_ports(3)
    options = TritonOptions(
        repositories,
        http_port=http,
        grpc_port=grpc,
        metrics_port=metrics,
        extra=("--exit-timeout-secs=0",),
        **more,
    )
    return TritonServer(options, on_line)


def run_triton(*repositories: Path, **more: Any) -> Iterator[RunningTriton]:
    """Start a Triton, yield it live, stop it."""
    log: list[str] = []
    with triton_server(*repositories, on_line=log.append, **more) as server:
        server.wait_until_live(180)
        assert server.pid
        yield RunningTriton(server.options, repositories[0], log, server.pid)


def some_models(folder: Path, *names: str) -> Path:
    """A repository in `folder` with these of the product's models; food_classifier takes longest to start."""
    for name in names:
        shutil.copytree(MODELS / name, folder / name)
    return folder
