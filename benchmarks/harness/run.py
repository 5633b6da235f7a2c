"""All contenders under all their loads, in turns: A B C … A B C …"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gourmet.reports.machine import about
from gourmet.result_store import ResultStore
from gourmet.training.task import Tick
from harness.load import BenchLoad, BenchWindow
from harness.server import DidNotStart

# A window in which others took more of the machine than this is measured again, at most so many times.
QUIET_CORES: Final = 0.1
_TRIES: Final = 3

Measure = Callable[[BenchLoad], BenchWindow]


@dataclass(frozen=True)
class Contender:
    """A server, or a way to do without, and its loads; `start` yields the function that measures one."""

    words: str
    loads: Sequence[BenchLoad]
    start: Callable[[], AbstractContextManager[Measure]]


@dataclass(frozen=True)
class Outcome:
    """Every window, and who could not take part and why."""

    windows: Sequence[BenchWindow]
    left_out: dict[str, str]


def run(
    contenders: Sequence[Contender],
    turns: int,
    tick: Tick,
    folder: Path | None = None,
    plan: dict[str, Any] | None = None,
) -> Outcome:
    """Each in turn; windows that the folder holds of the same `plan` and commit are not measured again."""
    whole_plan = {"turns": turns, "commit": about()["commit"], **(plan or {})}
    store = ResultStore(folder, whole_plan, BenchWindow)
    steps = turns * sum(len(each.loads) for each in contenders)
    left_out: dict[str, str] = {}
    # On a machine that is never quiet the run has to end all the same.
    repeats = steps // 3
    for turn in range(turns):
        for contender in contenders:
            missing = [load for load in contender.loads if store.get(turn, *_key(load)) is None]
            if not missing or contender.words in left_out:
                continue
            said = f"turn {turn + 1} of {turns}: {contender.words}"
            tick(len(store) / steps, said)
            try:
                with contender.start() as measure:
                    for load in missing:
                        tick(len(store) / steps, f"{said}, {load.inputs}, {load.level or 'all'} at a time")
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
