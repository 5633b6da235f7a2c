"""The product as people run it, `gourmet up`, and its processes by what they are."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from support.up import Up

TRITON: Final = "Triton"
STUBS: Final = "stubs"
WEB: Final = "web"
_KINDS: Final = {"tritonserver": TRITON, "triton_python_backend_stub": STUBS}


@dataclass(frozen=True)
class Product:
    """A running `gourmet up --unlocked`, whose models may be loaded and unloaded without a key."""

    up: Up
    models: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.up.port}"

    @property
    def triton_url(self) -> str:
        return f"127.0.0.1:{self.up.http}"

    def processes(self) -> dict[str, list[psutil.Process]]:
        """All that it runs all the time, by kind; what decodes pictures comes when it is needed."""
        by_kind: dict[str, list[psutil.Process]] = {TRITON: [], STUBS: [], WEB: []}
        for process in psutil.Process(self.up.process.pid).children(recursive=True):
            try:
                command = process.cmdline()  # empty for those that are over
            except psutil.Error:  # it ended meanwhile
                continue
            if command and "gourmet.pictures.decode" not in command:
                by_kind[_KINDS.get(command[0].rpartition("/")[2], WEB)].append(process)
        return by_kind

    def stubs(self, model: str) -> list[psutil.Process]:
        """The processes in which the Python backend runs `model`, one an instance."""
        results = []
        for stub in self.processes()[STUBS]:
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                if f"/{model}/" in " ".join(stub.cmdline()):
                    results.append(stub)
        return results

    def counts(self) -> dict[str, int]:
        return {kind: len(processes) for kind, processes in self.processes().items()}

    def strays(self) -> list[int]:
        """Processes of it that run on without belonging to it any more."""
        ours = {process.pid for processes in self.processes().values() for process in processes}
        ours.add(self.up.process.pid)
        self.up.ended()  # it learns the names of its folders
        return [pid for pid in self.up.processes() if pid not in ours and psutil.pid_exists(pid)]
