"""What one request costs the whole stack: the web app, Triton, its models, and what decodes for them.

    stack = Stack(web.process.pid, triton_pid)
    cost = stack.cost(lambda: web.predict(photo))
    cost.cpu_s, cost.wall_s, cost.peak_mb

What goes on after the answer counts as well: a cost is taken when the stack has come to rest.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

# At rest, it takes less of a processor than this share.
_REST: Final = 0.15
_LOOK_S: Final = 0.2
_GIVE_UP_S: Final = 60.0


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    wall_s: float
    peak_mb: float


class MeasuredProcesses:
    def __init__(self, *pids: int) -> None:
        self._roots = [psutil.Process(pid) for pid in pids]

    def cost(self, request: Callable[[], object]) -> Cost:
        self._forget_peaks()
        held_mb, spent_s, began = self._mb("VmRSS"), self._spent_s(), time.monotonic()
        request()
        wall_s = time.monotonic() - began
        self._come_to_rest()
        return Cost(self._spent_s() - spent_s, wall_s, self._mb("VmHWM") - held_mb)

    def _processes(self) -> Iterator[psutil.Process]:
        for root in self._roots:
            yield from (root, *root.children(recursive=True))

    def _spent_s(self) -> float:
        """With the processor's seconds of children that ended and were waited for."""
        spent = 0.0
        for process in self._processes():
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                spent += sum(process.cpu_times()[:4])
        return spent

    def _mb(self, which: str) -> float:
        found = 0
        for process in self._processes():
            with contextlib.suppress(OSError, IndexError):  # it ended meanwhile
                status = Path(f"/proc/{process.pid}/status").read_text()
                found += int(status.split(f"{which}:")[1].split()[0])
        return found * 1024 / 1e6

    def _forget_peaks(self) -> None:
        for process in self._processes():
            with contextlib.suppress(OSError):
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")

    def _come_to_rest(self) -> None:
        end = time.monotonic() + _GIVE_UP_S
        before = self._spent_s()
        while time.monotonic() < end:
            time.sleep(_LOOK_S)
            now = self._spent_s()
            if now - before < _REST * _LOOK_S:
                return
            before = now
        raise AssertionError(f"it still computed {_GIVE_UP_S:g} s after the answer")
