"""Everybody who takes part: what is served, by whom, decoded how, and how the server is started."""

from __future__ import annotations

import contextlib
import os
import sysconfig
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil

from gourmet import repository
from gourmet.errors import GourmetError
from gourmet.measure import server_probe
from gourmet.serving.preflight import free_ports
from gourmet.serving.processes import Child
from gourmet.systems.food11 import contract
from peers.expected import SERVERS, Model
from peers.traffic import Endpoint, ask

FP32: Final = "food_classifier_onnx"
INT8: Final = "food_classifier_int8"

Role = Literal["ours", "peer", "limit"]

_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 12.0
_LOG_LINES: Final = 30


class DidNotStart(GourmetError):
    """A server gave no answer in time; its last lines say why."""


@dataclass(frozen=True)
class Contender:
    """One who takes part; `model` is the ONNX file whose answers are right, `asks` another served model."""

    key: str
    words: str
    role: Role
    model: str
    command: tuple[str, ...] = ()
    path: str = "/predict"
    threads: int = 1
    workers: int = 2
    asks: str = ""

    @property
    def decodes_plainly(self) -> bool:
        return self.role == "peer"


_UVICORN: Final = ("uvicorn", "fastapi_app:app", "--host", "127.0.0.1", "--no-access-log", "--port")
_LITSERVE: Final = ("python", "litserve_server.py")
_BENTOML: Final = ("bentoml", "serve", "bentoml_service:Food", "--host", "127.0.0.1", "--port")

# The peers' threads and workers are those that did best of what two cores offer (docs/performance.md).
CONTENDERS: Final = {
    arm.key: arm
    for arm in (
        Contender("limit-fp32", "limit: ONNX Runtime, no server", "limit", FP32),
        Contender("ours-fp32", "ours, food_classifier_onnx", "ours", FP32),
        Contender("ours-python", "ours, food_classifier", "ours", FP32, asks="food_classifier"),
        Contender(
            "fastapi-loop", "FastAPI, in its event loop", "peer", FP32, _UVICORN, "/predict-in-loop", 2, 1
        ),
        Contender("fastapi-pool", "FastAPI, in its thread pool", "peer", FP32, _UVICORN, "/predict", 2, 1),
        Contender("litserve", "LitServe, two workers", "peer", FP32, _LITSERVE),
        Contender("bentoml", "BentoML, two workers", "peer", FP32, _BENTOML),
        Contender("limit-int8", "limit at int8: ONNX Runtime, no server", "limit", INT8),
        Contender("ours-int8", "ours, food_classifier_int8", "ours", INT8),
        Contender(
            "fastapi-int8", "FastAPI at int8, in its thread pool", "peer", INT8, _UVICORN, "/predict", 2, 1
        ),
    )
}


@contextlib.contextmanager
def serving(arm: Contender, programs: Path | None, models: Path = repository.DEFAULT) -> Iterator[Endpoint]:
    """Start the arm's servers, wait until they answer the sample, stop them and leave none behind."""
    lines: deque[str] = deque(maxlen=_LOG_LINES)
    with tempfile.TemporaryDirectory(prefix="gourmet-peers-") as home:
        port, *others = free_ports(4)
        command, env, cwd = _start(arm, programs, models, port, others, Path(home))
        child = Child(command, env={**os.environ, **env}, cwd=cwd, on_line=lines.append)
        try:
            _wait_until_answering(arm, Endpoint(port, arm.path), child, lines)
            yield Endpoint(port, arm.path, _groups(arm, child.pid))
        finally:
            _stop(child)


def _start(
    arm: Contender, programs: Path | None, models: Path, port: int, others: list[int], home: Path
) -> tuple[list[str], dict[str, str], Path]:
    """The command, what it needs of the environment, and the folder it runs in."""
    if arm.role == "ours":
        http, grpc, metrics = (str(other) for other in others)
        up = [str(Path(sysconfig.get_path("scripts"), "gourmet")), "up", "--port", str(port)]
        up += ["--http-port", http, "--grpc-port", grpc, "--metrics-port", metrics]
        up += ["--model-repository", str(models)]
        return up, {contract.SYSTEM.model_variable: arm.asks or arm.model}, home
    if programs is None:
        raise DidNotStart(f"{arm.words} needs the peers' environment")
    model = Model.served(arm.model, models)
    env = {
        "MODEL": str(model.path),
        "LABELS": str(model.labels),
        "TEMPERATURE": str(model.temperature),
        "THREADS": str(arm.threads),
        "WORKERS": str(arm.workers),
        "PORT": str(port),
        "PATH": os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "BENTOML_HOME": str(home),
        "BENTOML_DO_NOT_TRACK": "True",
    }
    command = [str(programs / arm.command[0]), *arm.command[1:]]
    return command + ([str(port)] if command[-1] == "--port" else []), env, SERVERS


def _wait_until_answering(arm: Contender, endpoint: Endpoint, child: Child, lines: deque[str]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            ask(endpoint, contract.SYSTEM.sample())
            return
        except (OSError, ValueError) as exc:
            status = child.exit_status()
            if status is None and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            ended = f"ended with status {status}" if status is not None else f"did not answer ({exc})"
            last = " | ".join([line.strip() for line in lines if line.strip()][-5:])
            raise DidNotStart(f"{arm.words} {ended}; its last lines: {last}") from exc


def _groups(arm: Contender, pid: int) -> dict[str, int]:
    """The processes to account for separately: our web app and our Triton, or the server as a whole."""
    if arm.role != "ours":
        return {"server": pid}
    return {
        "Triton" if "tritonserver" in child.name() else "web app": child.pid
        for child in psutil.Process(pid).children()
    }


def _stop(child: Child) -> None:
    """Also what has left the child's session, as BentoML's workers do."""
    below = server_probe.tree(child.pid)[1:]
    child.stop(_STOP_TIMEOUT_S)
    _, left = psutil.wait_procs(below, timeout=2)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
