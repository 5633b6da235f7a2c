"""A real Triton for tests."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gourmet.stack.connect import connect
from gourmet.stack.preflight import asked_by, check_repositories, free_ports
from gourmet.stack.processes import LineSink
from gourmet.stack.triton_server import ALL, TritonOptions, TritonServer

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

    def load(self, *models: str) -> None:
        """Load models for study, and those that they ask; nothing happens to loaded ones."""
        served = check_repositories(self.options.repositories)
        with connect(self.http_url) as client:
            for model in models:
                for name in (*asked_by(served[model]), model):
                    client.load(name)

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


def run_triton(*repositories: Path, models: Sequence[str] = ALL, **more: Any) -> Iterator[RunningTriton]:
    """Start a Triton, yield it live, stop it."""
    log: list[str] = []
    with contextlib.closing(triton_server(*repositories, on_line=log.append, **more)) as server:
        server.start(models)
        server.wait_until_live(180)
        assert server.pid
        yield RunningTriton(server.options, repositories[0], log, server.pid)


def some_models(folder: Path, *names: str, instances: int = 1) -> Path:
    """A repository in `folder` with these of the product's models, of one instance each to start sooner."""
    for name in names:
        config = Path(shutil.copytree(MODELS / name, folder / name), "config.pbtxt")
        config.write_text(config.read_text().replace("count: 2", f"count: {instances}"))
    return folder
