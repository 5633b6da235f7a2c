"""The contenders: the served model, the server, the decoding, and how each server is started."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

import psutil

from gourmet.measure.task import MeasureOptions, ask_each
from gourmet.measure.transports import Http, RawReply, Request, photo_request
from gourmet.measure.validity import WrongAnswers
from gourmet.serving.preflight import free_ports
from gourmet.systems.food11 import contract
from harness.no_server import full_layouts, no_server
from harness.run import Contender, Measure, gourmet_up, started
from harness.windows import BenchLoad, BenchWindow, window
from peers.photos import MODEL, SERVERS, Decoder, Expected, PhotoSet, checked, complaint, served

Role = Literal["ours", "peers", "no server"]


@dataclass(frozen=True)
class PhotoArm:
    """A contender: the command of a peer, with its threads and workers, or the model that our app asks."""

    key: str
    words: str
    role: Role
    command: tuple[str, ...] = ()
    threads: int = 1
    workers: int = 2
    asks: str = ""

    @property
    def decoder(self) -> Decoder:
        return "peers" if self.role == "peers" else "ours"


_UVICORN: Final = ("uvicorn", "fastapi_app:app", "--host", "127.0.0.1", "--no-access-log", "--port")
_LITSERVE: Final = ("python", "litserve_server.py")
_BENTOML: Final = ("bentoml", "serve", "bentoml_service:FoodService", "--host", "127.0.0.1", "--port")

# The peers' threads and workers are those that did best of what two cores offer (docs/measuring.md).
ARMS: Final = {
    arm.key: arm
    for arm in (
        PhotoArm("limit", "limit: ONNX Runtime, no server", "no server"),
        PhotoArm("ours", "ours, food_classifier", "ours", asks="food_classifier"),
        PhotoArm("ours-int8", f"ours, {MODEL}", "ours", asks=MODEL),
        PhotoArm("fastapi", "FastAPI, in its thread pool", "peers", _UVICORN, 2, 1),
        PhotoArm("litserve", "LitServe, two workers", "peers", _LITSERVE),
        PhotoArm("bentoml", "BentoML, two workers", "peers", _BENTOML),
    )
}


@dataclass(frozen=True)
class PhotoBench:
    """The photos that all contenders get, and the expected answers."""

    sets: Mapping[str, PhotoSet]
    expected: Expected
    levels: Sequence[int]
    options: MeasureOptions
    programs: Path | None  # of the peers' environment

    def contender(self, arm: PhotoArm) -> Contender:
        # Which layout of the limit is best may differ by turn, so that it has no level.
        levels = [0] if arm.role == "no server" else self.levels
        loads = [BenchLoad(arm.key, photos, level) for photos in self.sets for level in levels]
        return Contender(arm.words, loads, partial(self._start, arm))

    @contextmanager
    def _start(self, arm: PhotoArm) -> Iterator[Measure]:
        if arm.role == "no server":
            yield lambda load: max(
                (
                    no_server(
                        load,
                        layout,
                        self.options,
                        *(checked, self.sets[load.inputs].photos, self.expected[load.inputs, "ours"]),
                    )
                    for layout in full_layouts()
                ),
                key=lambda window: window.per_s,
            )
            return
        with tempfile.TemporaryDirectory(prefix="gourmet-peers-") as home:
            (port,) = free_ports(1)
            command, env, cwd = self._command(arm, port, Path(home))
            wire = partial(Http, f"127.0.0.1:{port}", "/predict")
            sample = photo_request((), contract.SYSTEM.sample())
            with started(arm.words, command, env, cwd, lambda: ask_each(wire(), [sample])) as pid:
                groups = _groups(arm, pid)

                def measure(load: BenchLoad) -> BenchWindow:
                    photos, right = self.sets[load.inputs].photos, self.expected[load.inputs, arm.decoder]
                    forms = [photo_request((number,), photo) for number, photo in enumerate(photos)]

                    def check(request: Request, reply: RawReply) -> None:
                        (number,) = request.rows
                        if wrong := complaint(reply.body, right[number]):
                            raise WrongAnswers(f"{arm.words} answers photo {number} wrongly: {wrong}")

                    return window(load, wire(), forms, check, self.options, groups=groups)

                yield measure

    def _command(self, arm: PhotoArm, port: int, home: Path) -> tuple[list[str], dict[str, str], Path]:
        """Return the command, its environment variables, and its working directory."""
        if arm.role == "ours":
            return gourmet_up(port), {contract.SYSTEM.model_variable: arm.asks}, home
        assert self.programs
        env = {
            "MODEL": str(served()),
            "LABELS": str(served().parents[1] / "labels.txt"),
            "THREADS": str(arm.threads),
            "WORKERS": str(arm.workers),
            "PORT": str(port),
            "PATH": os.pathsep.join([str(self.programs), os.environ.get("PATH", os.defpath)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "BENTOML_HOME": str(home),
            "BENTOML_DO_NOT_TRACK": "True",
        }
        command = [str(self.programs / arm.command[0]), *arm.command[1:]]
        return command + ([str(port)] if command[-1] == "--port" else []), env, SERVERS


def _groups(arm: PhotoArm, pid: int) -> dict[str, int]:
    """Return the processes to account for separately: our web app and our Triton, or the whole server."""
    if arm.role != "ours":
        return {"server": pid}
    return {
        "Triton" if "tritonserver" in child.name() else "web app": child.pid
        for child in psutil.Process(pid).children()
    }
