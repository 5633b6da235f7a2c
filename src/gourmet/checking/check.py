"""One check: find the pictures, ask about them, ask some again, compare with the network, measure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gourmet.checking.again import Again, ask_again
from gourmet.checking.asking import Asked, Pace, ask_all
from gourmet.checking.pictures import Pictures, find
from gourmet.checking.report import Report, quality
from gourmet.checking.served import Served, describe
from gourmet.checking.statistics import counted

if TYPE_CHECKING:  # it imports torch, which a check without weights does not need
    from gourmet.checking.eager import Agreement


class Tick(Protocol):
    """Tell how far a stage is."""

    def __call__(self, share: float, words: str = "") -> None: ...


Stage = Callable[[str], AbstractContextManager[Tick]]


@dataclass(frozen=True)
class Wanted:
    """What to check, and how."""

    model: str
    data: Path
    repository: Path  # where the served model's manifest lies
    url: str = "localhost:8000"
    part: str = "test"
    limit: int | None = None
    missing_classes: bool = False
    pace: Pace = field(default_factory=Pace)
    weights: Path | None = None  # of the eager network
    runs: Path = Path("runs")  # where the weights that the manifest names may lie


def check(wanted: Wanted, stage: Stage, stopping: Callable[[], bool]) -> Report:
    """Check a served model; `stopping` is asked often, and turning true ends the check early."""
    served = describe(wanted.url, wanted.model)
    # A model that knows no batches takes one picture at a time, and none takes more than its most.
    pace = replace(wanted.pace, batch=min(wanted.pace.batch, max(1, served.max_batch)))
    pictures = find(
        served.system, wanted.data, wanted.part, wanted.limit, missing_classes=wanted.missing_classes
    )
    before = counted(served.url, served.name)
    with stage("asking") as tick:
        asked = ask_all(
            served,
            pictures,
            pace,
            lambda done, rate: tick(done / len(pictures), f"{done}/{len(pictures)} · {rate:.0f}/s"),
            stopping,
        )
    counts = counted(served.url, served.name).since(before)
    again = _again(served, pictures, asked, stage, stopping)
    eager, no_eager = _eager(served, pictures, asked, wanted, stage, stopping)
    asked.stopped = asked.stopped or stopping()
    return Report(
        served=served,
        pictures=pictures,
        pace=pace,
        asked=asked,
        counted=counts,
        again=again,
        eager=eager,
        no_eager=no_eager,
        quality=quality(served, pictures, asked),
    )


def _again(
    served: Served, pictures: Pictures, asked: Asked, stage: Stage, stopping: Callable[[], bool]
) -> Again | None:
    if asked.stopped or not asked.answered.any():
        return None
    with stage("asking some again") as tick:
        return ask_again(served, pictures, asked, tick, stopping)


def _eager(
    served: Served,
    pictures: Pictures,
    asked: Asked,
    wanted: Wanted,
    stage: Stage,
    stopping: Callable[[], bool],
) -> tuple[Agreement | None, str]:
    """The comparison with the network, or why there is none."""
    if stopping() or not asked.answered.any():
        return None, "stopped before" if stopping() else "no picture was answered"
    from gourmet.checking.eager import compare, weights_of

    weights, why = wanted.weights, ""
    if weights is None:
        version = max(asked.versions, default=served.version)
        weights, why = weights_of(served, version, wanted.repository, wanted.runs)
    if weights is None:
        return None, why
    with stage("asking the network") as tick:
        found = compare(served, pictures, asked, weights, tick, stopping)
    return found, "" if found else "stopped before"
