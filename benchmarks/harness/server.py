"""A contender's server: started, waited for and stopped, with nothing left behind."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from gourmet.errors import GourmetError
from gourmet.measure.server_probe import tree
from gourmet.serving.processes import Child
from gourmet.serving.waiting import wait_until

_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 12.0
_LOG_LINES: Final = 30


class DidNotStart(GourmetError):
    """A server did not answer in time; its last lines say why."""


@contextlib.contextmanager
def started(
    words: str, command: Sequence[str], env: Mapping[str, str], cwd: Path, ask: Callable[[], object]
) -> Iterator[int]:
    """The process of a server that `ask` was answered by; `ask` raises OSError or ValueError before."""
    lines: deque[str] = deque(maxlen=_LOG_LINES)
    child = Child(command, env={**os.environ, **env}, cwd=cwd, on_line=lines.append)

    def answers() -> bool:
        if (status := child.exit_status()) is not None:
            raise TimeoutError(f"ended with status {status}")
        with contextlib.suppress(OSError, ValueError):
            ask()
            return True
        return False

    try:
        try:
            wait_until(answers, _START_TIMEOUT_S, "did not answer", poll_s=0.1)
        except TimeoutError as exc:
            last = " | ".join([line.strip() for line in lines if line.strip()][-5:])
            raise DidNotStart(f"{words} {exc}; its last lines: {last}") from exc
        yield child.pid
    finally:
        # Also what has left the child's session, as BentoML's workers do.
        below = tree(child.pid)[1:]
        child.stop(_STOP_TIMEOUT_S)
        for process in psutil.wait_procs(below, timeout=2)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
