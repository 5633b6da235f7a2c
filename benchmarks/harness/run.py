"""Measure contenders under all their loads, in turns: A B C … A B C …; each with its own server."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import psutil

from gourmet.errors import GourmetError
from gourmet.measure.server_probe import tree
from gourmet.measure.transports import RequestFailed
from gourmet.reports.machine import about
from gourmet.result_store import ResultStore
from gourmet.serving.processes import Child
from gourmet.serving.waiting import wait_until
from gourmet.training.task import Tick
from harness.windows import BenchLoad, BenchWindow

# A window in which other processes took more cores than this is measured again, up to _TRIES times.
QUIET_CORES: Final = 0.1
_TRIES: Final = 3

_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 12.0
_LOG_LINES: Final = 30

Measure = Callable[[BenchLoad], BenchWindow]


class DidNotStart(GourmetError):
    """A server did not answer in time; its last lines say why."""


@dataclass(frozen=True)
class Contender:
    """A server, or an arm without one, and its loads; `start` yields the function that measures a load."""

    words: str
    loads: Sequence[BenchLoad]
    start: Callable[[], AbstractContextManager[Measure]]


@dataclass(frozen=True)
class Outcome:
    """Every window, and the contenders left out, with the reasons."""

    windows: Sequence[BenchWindow]
    left_out: dict[str, str]


def run(
    contenders: Sequence[Contender],
    turns: int,
    tick: Tick,
    folder: Path | None = None,
    plan: dict[str, Any] | None = None,
) -> Outcome:
    """Measure each contender in turn; reuse the folder's windows of the same `plan` and commit."""
    whole_plan = {"turns": turns, "commit": about()["commit"], **(plan or {})}
    store = ResultStore(folder, whole_plan, BenchWindow)
    steps = turns * sum(len(contender.loads) for contender in contenders)
    left_out: dict[str, str] = {}
    # The run must also end on a machine that is never quiet.
    repeats = steps // 3
    for turn in range(turns):
        for contender in contenders:
            missing = [load for load in contender.loads if store.get(turn, *_key(load)) is None]
            if not missing or contender.words in left_out:
                continue
            step = f"turn {turn + 1} of {turns}: {contender.words}"
            tick(len(store) / steps, step)
            try:
                with contender.start() as measure:
                    for load in missing:
                        tick(len(store) / steps, f"{step}, {load.inputs}, {load.level or 'all'} at a time")
                        tried = [measure(load)]
                        while tried[-1].foreign_cores > QUIET_CORES and len(tried) < _TRIES and repeats:
                            repeats -= 1
                            tried.append(measure(load))
                        best = min(tried, key=lambda window: window.foreign_cores)
                        store.put(replace(best, turn=turn), turn, *_key(load))
            except DidNotStart as exc:
                if turn:
                    raise
                left_out[contender.words] = str(exc)
    return Outcome(sorted(store, key=lambda window: window.turn), left_out)


def _key(load: BenchLoad) -> tuple[str, str, int]:
    return load.arm, load.inputs, load.level


@contextlib.contextmanager
def started(
    words: str, command: Sequence[str], env: Mapping[str, str], cwd: Path, ask: Callable[[], object]
) -> Iterator[int]:
    """Start a server and yield its process id when `ask` succeeds.

    Until then, `ask` raises OSError, ValueError or RequestFailed.
    """
    lines: deque[str] = deque(maxlen=_LOG_LINES)
    child = Child(command, env={**os.environ, **env}, cwd=cwd, on_line=lines.append)

    def answers() -> bool:
        if (status := child.exit_status()) is not None:
            raise TimeoutError(f"ended with status {status}")
        with contextlib.suppress(OSError, ValueError, RequestFailed):
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
        # BentoML's workers leave the child's session.
        below = tree(child.pid)[1:]
        child.stop(_STOP_TIMEOUT_S)
        for process in psutil.wait_procs(below, timeout=2)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def main(command: click.Command) -> None:
    """Run the command line; print an expected error as one sentence."""
    try:
        command()
    except GourmetError as exc:
        click.echo(f"Error: {exc}", err=True)
        sys.exit(exc.exit_code)
