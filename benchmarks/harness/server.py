"""A contender's server: started, waited for and stopped, with nothing left behind."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from gourmet.errors import GourmetError
from gourmet.measure.server_probe import tree
from gourmet.serving.processes import Child

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
    try:
        _wait_until_answering(words, child, ask, lines)
        yield child.pid
    finally:
        # Also what has left the child's session, as BentoML's workers do.
        below = tree(child.pid)[1:]
        child.stop(_STOP_TIMEOUT_S)
        for process in psutil.wait_procs(below, timeout=2)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _wait_until_answering(words: str, child: Child, ask: Callable[[], object], lines: Sequence[str]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            ask()
            return
        except (OSError, ValueError) as exc:
            status = child.exit_status()
            if status is None and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            ended = f"ended with status {status}" if status is not None else f"did not answer ({exc})"
            last = " | ".join([line.strip() for line in lines if line.strip()][-5:])
            raise DidNotStart(f"{words} {ended}; its last lines: {last}") from exc
