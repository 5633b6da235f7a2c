"""Reload a model when one of its Python processes dies, since Triton does not start it again.

Triton's Python backend runs each instance of a model in a process of its own, a stub. When a stub dies,
because memory ran out or a library crashed, its instance fails every request from then on. Triton reloads a
loaded model only if its config changes, so a parameter counts the deaths. The other instances answer until
the new ones do. Triton does not end the old stubs of a model of which one died, so the watchdog does.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from gourmet.errors import GourmetError
from gourmet.stack.connect import LOADS_WITHIN_S, connect

_EVERY_S: Final = 1.0
# Longer than any request may take: the old instances have finished by then.
_LAST_ANSWERS_S: Final = 15.0
# How long a process may stay stopped (SIGSTOP).
_FROZEN_S: Final = 10.0
_STUB: Final = "triton_python_backend_stub"
# The parameter of a model's config that counts deaths.
_DEATHS: Final = "stubs_died"


class StubWatchdog:
    """Watch the stubs of the Triton at `url` (host:port), and reload models."""

    def __init__(self, url: str, say: Callable[[str], None]) -> None:
        self._url = url
        self._say = say
        self._triton: int | None = None
        # A psutil.Process is not mistaken for a later process with the same number.
        self._models: dict[psutil.Process, str] = {}
        self._zombies: set[psutil.Process] = set()
        self._stopped_since: dict[psutil.Process, float] = {}
        self._deaths = 0
        self._replaced: list[tuple[float, list[psutil.Process]]] = []  # when to end which processes

    def start(self, triton_pid: Callable[[], int | None], stopped: threading.Event) -> None:
        """Look at the stubs now, to learn their models, and then in a thread until `stopped`."""

        def watch() -> None:
            while not stopped.wait(_EVERY_S):
                self._look(triton_pid())

        self._look(triton_pid())
        threading.Thread(target=watch, daemon=True).start()

    def _look(self, triton_pid: int | None) -> None:
        """Notice stubs that died, and reload their models."""
        if triton_pid is None:
            return
        if triton_pid != self._triton:
            self._triton, self._models, self._zombies, self._replaced = triton_pid, {}, set(), []
        self._end_replaced()
        stubs, zombies = list[psutil.Process](), set[psutil.Process]()
        with contextlib.suppress(psutil.Error):  # the supervisor notices the end of Triton itself
            stubs = psutil.Process(triton_pid).children()
        for process in stubs:
            with contextlib.suppress(psutil.Error):  # Triton ended it
                status = process.status()
                self._end_frozen(process, status == psutil.STATUS_STOPPED)
                if status == psutil.STATUS_ZOMBIE:
                    zombies.add(process)
                elif not self._models.get(process):
                    version = version_of_stub(process)
                    self._models[process] = version.parent.name if version else ""
        # Triton reaps the stubs that it ends at once, so a stub that stays a zombie has died.
        dead = {self._models.pop(process, "") for process in zombies & self._zombies} - {""}
        self._zombies = zombies
        for model in sorted(dead):
            self._reload(model)

    def _end_frozen(self, process: psutil.Process, is_stopped: bool) -> None:
        """Kill a process that has been stopped for too long: Triton goes on sending requests to it."""
        if not is_stopped:
            self._stopped_since.pop(process, None)
        elif time.monotonic() - self._stopped_since.setdefault(process, time.monotonic()) > _FROZEN_S:
            self._say(f"a process of the model {self._models.get(process)!r} is stopped; killing it")
            process.kill()

    def _reload(self, model: str) -> None:
        before = [process for process, name in self._models.items() if name == model]
        self._deaths += 1
        self._say(f"a process of the model {model!r} died; reloading the model")
        try:
            with connect(self._url, LOADS_WITHIN_S) as triton:
                config = triton.config(model)
                config.setdefault("parameters", {})[_DEATHS] = {"string_value": str(self._deaths)}
                triton.load(model, config)
        except GourmetError as exc:
            self._say(f"the model {model!r} could not be reloaded: {exc}")
            return
        self._replaced.append((time.monotonic() + _LAST_ANSWERS_S, before))

    def _end_replaced(self) -> None:
        while self._replaced and self._replaced[0][0] <= time.monotonic():
            for process in self._replaced.pop(0)[1]:
                self._models.pop(process, None)
                with contextlib.suppress(psutil.Error):
                    process.kill()


def version_of_stub(process: psutil.Process) -> Path | None:
    """Return the version's folder that a stub runs: its first argument is the path of the model's file."""
    command = process.cmdline()
    return Path(command[1]).parent.resolve() if command and command[0].endswith(_STUB) else None
