"""`gourmet tune` as a function: search, judge, and leave the server with the config that it should have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import psutil

from gourmet.config_change import summary
from gourmet.errors import GourmetError, UsageError
from gourmet.measure import config_guard, sweep
from gourmet.measure.results import LoadSpec, Protocol
from gourmet.measure.sweep import DataSource, OnStep
from gourmet.measure.task import Addresses, MeasureOptions
from gourmet.runtime.instances import available_cpus
from gourmet.serving.client import ModelUnavailable, triton
from gourmet.tuning import explanation
from gourmet.tuning.goal import Goal, Kind
from gourmet.tuning.results import Confirmation, Trial, Tuning, Verdict
from gourmet.tuning.search import BASES, FINALISTS, NoDuel, Search, SearchPlan
from gourmet.tuning.space import Bounds, Space, described, space

_LISTENS_S: Final = 0.5
_QUIET_CORES: Final = 0.25


class OutOfReach(GourmetError):
    """No config keeps the goal."""


class Undecided(GourmetError):
    """Too little of the last comparison could be believed."""


@dataclass(frozen=True)
class TuneRequest:
    """What somebody asks for; `levels` are the requests in flight, None for what suits the machine."""

    model: str
    kind: Kind = "throughput"
    p95_ms: float | None = None
    levels: tuple[float, ...] | None = None
    batch: int = 1
    protocol: Protocol = "http"
    bounds: Bounds = field(default_factory=Bounds)
    turns: int = 5
    apply: bool = False


def tune(
    wish: TuneRequest,
    target: Addresses,
    effort: MeasureOptions,
    data: DataSource,
    *,
    command: str = "",
    on_step: OnStep = lambda _share, _words: None,
) -> Tuning:
    """Search the best config of a served model; what served before is put back, unless it is to be applied.

    Applied is only what beat the present config in turns, by more than their noise.
    """
    on_step(0.0, "asking every row alone")
    workload = sweep.prepare(wish.model, target, data)
    if wish.batch > 1 and not workload.rows.batched:
        raise UsageError(f"{wish.model} takes one input a request (max_batch_size 0): drop --batch")
    cpus = available_cpus()
    others = _busy_cores()
    levels = wish.levels or _levels(wish.kind, cpus)
    goal = Goal(wish.kind, wish.p95_ms, max(levels))
    demands = tuple(LoadSpec(wish.model, level, batch=wish.batch, protocol=wish.protocol) for level in levels)
    with config_guard.restored(target, [wish.model]) as serves_afterwards:
        around = space(
            serves_afterwards[wish.model],
            wish.bounds,
            cpus=cpus,
            in_flight=int(max(levels)) * wish.batch,
            batch=wish.batch,
            p95_ms=wish.p95_ms,
        )
        asked = effort.client
        plan = SearchPlan(goal, demands, effort, wish.turns, "gourmet" if asked == "auto" else asked)
        search = Search(workload, target, plan, around, on_step)
        try:
            best, duel = search.run()
            verdict, said = _verdict(goal, best, duel), explanation.sentence(goal, best, duel, cpus)
        except NoDuel as exc:
            best, duel, verdict, said = exc.challenger, None, "undecided", str(exc)
        applied = wish.apply and verdict == "better"
        if applied:
            serves_afterwards[wish.model] = best.config
        on_step(1.0, f"loading {best.name if applied else 'the present config'}")
    if applied:
        _check_serves(target, best)
    trials = tuple(search.trials.values())
    points = [duel.ours, duel.theirs] if duel else best.points
    bench = sweep.bench(f"The best config of {wish.model} here: {goal}", command, workload.rows.about, points)
    searched = (*_searched(plan, around, trials), *_disturbed(others, cpus))
    return Tuning(wish.model, goal, searched, trials, best.name, duel, verdict, said, bench, applied)


def _levels(kind: Kind, cpus: int) -> tuple[float, ...]:
    """Few, as many as keep the CPUs busy, and so many that they wait in line."""
    return (2.0 * cpus,) if kind == "latency" else (1.0, 2.0 * cpus, 8.0 * cpus)


def _verdict(goal: Goal, best: Trial, duel: Confirmation | None) -> Verdict:
    if duel is not None:
        return "better" if duel.won else "no better"
    return "no better" if goal.best(best.points) else "out of reach"


def _searched(plan: SearchPlan, around: Space, trials: tuple[Trial, ...]) -> tuple[str, ...]:
    """What was tried and how, for a reader to judge the result by."""
    refused = [trial for trial in trials if not trial.points]
    loads = ", ".join(str(demand) for demand in plan.demands)
    effort, short, turn = plan.effort, plan.short, plan.turn
    said = [
        f"{len(trials)} configs at {loads}: all for {short.measure_s:.2g} s a load, beginning with every "
        f"layout of instances and threads and going on with other waits and batches for the best {BASES}; "
        f"the best {FINALISTS} and the present one for {effort.measure_s:.2g} s",
        f"the best against the present config again, {plan.turns} turns of {turn.measure_s:.2g} s each: only "
        "these decide, since the best of many short windows is partly the luckiest",
        "not every combination was tried: another that is better may exist",
        *around.notes(),
    ]
    if refused:
        said.append(f"{len(refused)} configs could not be measured; each says why in the table")
    return tuple(said)


def _busy_cores() -> float:
    """Cores that are busy while we ask nothing: what others take."""
    return float(psutil.cpu_percent(interval=_LISTENS_S)) / 100 * (psutil.cpu_count() or 1)


def _disturbed(others: float, cpus: int) -> list[str]:
    if others <= _QUIET_CORES:
        return []
    return [
        f"when the search began, others kept {others:.1f} of {cpus} cores busy: figures are lower and "
        "noisier than on a quiet machine, and another config may be best there"
    ]


def _check_serves(target: Addresses, chosen: Trial) -> None:
    """Raise ModelUnavailable unless the server says that it serves this config."""
    with triton(target.url) as client:
        now = client.get_model_config(chosen.config["name"])
    if described(now) != described(chosen.config):
        raise ModelUnavailable(
            f"{chosen.config['name']} was to serve “{summary(chosen.config)}” and serves “{summary(now)}”: "
            "another client changes it; put it right with `gourmet config`"
        )
