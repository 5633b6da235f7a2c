"""Search the config that serves a model best on this machine under a goal.

A grid of configs is measured briefly. Short measurements are noisy, so the best configs, the shortlist, are
measured again in turns with the present one: only this final decides.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from gourmet.bench import report, stats, sweep, validity
from gourmet.bench.comparison import below
from gourmet.bench.inputs import DataSource
from gourmet.bench.results import Bench, Estimate, LoadSpec, Point, as_data
from gourmet.bench.sweep import OnStep, ServedConfigs, restored
from gourmet.bench.workload import Addresses, MeasureOptions, Workload, prepare
from gourmet.errors import UsageError
from gourmet.repository.config_change import Change, changed
from gourmet.served.instances import available_cpus, cpu_threads
from gourmet.triton_client.errors import TritonRefused
from gourmet.triton_client.model_config import Config, as_pbtxt, summary

PRESENT: Final = "present"
_SHORTLIST: Final = 2
MIN_TURNS: Final = 3
# Windows may differ by half, since the noise is judged between turns.
_STEADINESS: Final = 0.5
_DELAYS_US: Final = (100, 1000)
_INSTANCES_A_CPU: Final = 2
_INSTANCES_ON_A_GPU: Final = (1, 2, 4)

Verdict = Literal["better", "no better", "undecided", "out of reach"]


@dataclass(frozen=True)
class TuneRequest:
    """The goal, most rows a second at any load, and what is tried; None leaves a value to machine and model.

    At a given concurrency that is also the lowest mean latency, by Little's law.
    """

    model: str
    p95_ms: float | None = None
    levels: tuple[float, ...] | None = None
    instances: tuple[int, ...] | None = None
    threads: tuple[int, ...] | None = None
    delays_us: tuple[int, ...] | None = None
    turns: int = 5
    apply: bool = False
    cpus: int = field(default_factory=available_cpus)

    @property
    def loads(self) -> tuple[LoadSpec, ...]:
        """The loads: one request in flight, enough to keep the CPUs busy, and enough to queue."""
        levels = self.levels or (1.0, 2.0 * self.cpus, 8.0 * self.cpus)
        return tuple(LoadSpec(self.model, level) for level in levels)

    def __str__(self) -> str:
        limit = f" with a p95 of at most {self.p95_ms:g} ms" if self.p95_ms is not None else ""
        return f"most rows a second{limit}"

    def keeps(self, point: Point) -> bool:
        return self.p95_ms is None or point.latency_ms.p95 <= self.p95_ms

    def best(self, points: Iterable[Point]) -> Point | None:
        """Return the point at which a config would be run."""
        return max(filter(self.keeps, points), key=lambda point: point.rows_per_s.value, default=None)

    def rank(self, points: Sequence[Point]) -> tuple[int, float]:
        """Return a sort key: configs under the limit by their result, the others by their distance to it."""
        best = self.best(points)
        return (1, best.rows_per_s.value) if best else (0, -nearest(points).latency_ms.p95)


def nearest(points: Iterable[Point]) -> Point:
    return min(points, key=lambda point: point.latency_ms.p95)


@dataclass(frozen=True)
class Trial:
    """A config that was tried."""

    name: str
    config: Config
    points: tuple[Point, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class FinalComparison:
    """A config and the present one, measured in turns.

    `gain` is the ratio of the throughputs, with its interval. `only_ours` is True if the challenger keeps the
    limit and the present config does not.
    """

    ours: Point
    theirs: Point
    gain: Estimate
    keeps: bool
    only_ours: bool = False

    @property
    def won(self) -> bool:
        beaten = self.gain.low is not None and self.gain.low > 1
        return self.keeps and (self.only_ours or beaten)


@dataclass(frozen=True)
class Tuning:
    """A whole search. `bench` has the machine, the command and the points of the final."""

    request: TuneRequest
    searched: tuple[str, ...]
    trials: tuple[Trial, ...]
    best: str
    final: Annotated[FinalComparison | None, Field(alias="duel")]  # as the JSON calls it
    verdict: Verdict
    sentence: str
    bench: Bench
    applied: bool = False
    schema: str = "gourmet-tune/1"

    def trial(self, name: str) -> Trial:
        return next(trial for trial in self.trials if trial.name == name)

    @property
    def recommended(self) -> Trial | None:
        """The config to serve: the best if it won, else the present one; None if none reaches the goal."""
        if self.verdict == "out of reach":
            return None
        return self.trial(self.best if self.verdict == "better" else PRESENT)

    @property
    def ranked(self) -> list[Point]:
        """A point for every measured config, at the load at which it would run, the best first."""
        measured = [trial.points for trial in self.trials if trial.points]
        ranked = sorted(measured, key=self.request.rank, reverse=True)
        return [self.request.best(points) or nearest(points) for points in ranked]

    def pbtxt(self) -> str:
        """The recommended config as a file with the reason at the top; empty if there is none."""
        if not (chosen := self.recommended):
            return ""
        reason = "".join(f"# {line}\n" for line in textwrap.wrap(self.sentence, 110))
        origin = f"# Found by: {self.bench.command}, {self.bench.when}\n"
        # A server's answer less what it filled in itself and another Triton would fill in otherwise.
        filled_in = {"runtime", *(["platform"] if chosen.config.get("backend") else [])}
        config = {name: value for name, value in chosen.config.items() if name not in filled_in}
        groups = config.get("instance_group", [])
        config["instance_group"] = [{key: group[key] for key in group if key != "name"} for group in groups]
        return reason + origin + as_pbtxt(config)

    def as_json(self) -> str:
        data = as_data(self)
        data["bench"].pop("points")  # which are those of the trials and of the final
        data["recommended"] = self.recommended.name if self.recommended else None
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"

    def save(self, folder: Path | None = None) -> Path:
        """Write the JSON, the chart of all configs and, if a config is recommended, its config.pbtxt."""
        folder = folder or Path("runs", "tune", report.folder_name(self.bench.when, self.request.model))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tune.json").write_text(self.as_json())
        roles = {self.best: "the best", PRESENT: "the present config"}
        report.save_chart(folder, replace(self.bench, points=tuple(self.ranked)), roles)
        (folder / "config.pbtxt").unlink(missing_ok=True)
        if pbtxt := self.pbtxt():
            (folder / "config.pbtxt").write_text(pbtxt)
        return folder


@dataclass(frozen=True)
class Grid:
    """The configs to try around a running one, as changes to it that set all that is varied."""

    running: Config
    request: TuneRequest

    def __post_init__(self) -> None:
        decoupled = self.running.get("model_transaction_policy", {}).get("decoupled")
        if decoupled or {"ensemble_scheduling", "sequence_batching"} & self.running.keys():
            raise UsageError(
                f"{self.request.model} cannot be tuned here: ensembles (tune the models they are made of), "
                "models with sequences and decoupled models are not"
            )

    @property
    def on_cpu(self) -> bool:
        return all(group.get("kind") != "KIND_GPU" for group in self.running.get("instance_group", []))

    @property
    def batches(self) -> bool:
        """Return True if rows of several requests can share an execution under some load."""
        return self.running.get("max_batch_size", 0) > 1 and any(
            load.level > 1 for load in self.request.loads
        )

    @property
    def keeps_its_queue(self) -> bool:
        return "default_queue_policy" in self.running.get("dynamic_batching", {})

    def changes(self) -> list[Change]:
        """Return every layout of instances and threads, without dynamic batching and with each delay."""
        delays = _DELAYS_US if self.request.delays_us is None else self.request.delays_us
        # Half of the goal as a wait cannot keep it.
        max_delay_us = 500 * (self.request.p95_ms or math.inf)
        waits = [0, *(delay_us for delay_us in delays if 0 < delay_us <= max_delay_us)]
        if not self.batches:
            waits = [0] if self.keeps_its_queue else []
        changes = []
        for instances, threads in self._layouts():
            layout = Change(instances, threads)
            if not self.keeps_its_queue:
                changes.append(replace(layout, dynamic_batching=False))
            # Where a config names no preferred size, Triton fills in the largest batch for some backends.
            batching = replace(layout, dynamic_batching=True, preferred_batches=())
            changes += [replace(batching, delay_us=delay_us) for delay_us in waits]
        return changes

    def _layouts(self) -> list[tuple[int, int | None]]:
        request, cpus = self.request, self.request.cpus
        if not self.on_cpu:
            return [(count, None) for count in request.instances or _INSTANCES_ON_A_GPU]
        counts = request.instances or [2**power for power in range((_INSTANCES_A_CPU * cpus).bit_length())]
        if request.threads:
            return [(count, threads) for count in counts for threads in request.threads]
        shared: list[tuple[int, int | None]] = [(count, max(1, cpus // count)) for count in counts]
        # One thread alone: a small network loses more by sharing a row out than it gains.
        return list(dict.fromkeys([*shared, *([(1, 1)] if 1 in counts else [])]))

    def described(self, count: int, short_s: float, turn_s: float) -> tuple[str, ...]:
        """Describe what was tried, for a reader to judge the result."""
        loads = ", ".join(load.at for load in self.request.loads)
        lines = [
            f"grid: {count} configs at {loads}, {short_s:.2g} s a load; others may be better",
            f"final: the best {_SHORTLIST} and the present config, {self.request.turns} turns of "
            f"{turn_s:.2g} s each; it alone decides",
        ]
        if self.running.get("max_batch_size", 0) < 1:
            lines.append("batching is not tried: max_batch_size is 0, the network takes one input at a time")
        elif not self.batches:
            lines.append("batching is not tried: with this load no two requests ever wait at the same time")
        if self.keeps_its_queue:
            lines.append("dynamic batching stays: the present config has a queue policy, which needs it")
        if not self.on_cpu:
            lines.append("threads are not varied: the instances are on a GPU")
        return tuple(lines)


def tune(
    request: TuneRequest,
    target: Addresses,
    options: MeasureOptions,
    data: DataSource,
    *,
    command: str,
    on_step: OnStep,
) -> Tuning:
    """Search the best config of a served model. Restore the config afterwards, unless the best is applied.

    A config is applied only if it beat the present one in the final, by more than the noise.
    """
    on_step(0.0, "asking every row alone")
    steady = replace(options, steadiness=max(_STEADINESS, options.steadiness))
    # A third of the time and one attempt: the final is longer than any other measurement.
    short = replace(steady, window_s=steady.window_s / 3, warm_up_s=steady.warm_up_s / 2, attempts=1)
    turn = replace(steady, window_s=steady.window_s / 2)
    with restored(target, [request.model]) as configs:
        grid = Grid(configs.usual[request.model], request)
        search = _Search(grid, configs, target, prepare(request.model, target, data), on_step)
        search.try_grid(short, replace(short, attempts=turn.attempts))
        verdict, best, final = search.decide(turn)
        if applied := request.apply and verdict == "better":
            configs.usual[request.model] = best.config
        on_step(1.0, f"loading {best.name if applied else 'the present config'}")
    points = [final.ours, final.theirs] if final else best.points
    title = f"The best config of {request.model} here: {request}"
    return Tuning(
        request,
        grid.described(len(search.trials), short.measure_s, turn.measure_s),
        tuple(search.trials.values()),
        best.name,
        final,
        verdict,
        sentence(request, verdict, best, search.trials[PRESENT], final),
        sweep.bench(title, command, search.workload.rows.about, points),
        applied,
    )


class _Search:
    """One search on one model. Use it only within `restored`."""

    def __init__(
        self, grid: Grid, configs: ServedConfigs, target: Addresses, workload: Workload, on_step: OnStep
    ) -> None:
        self._grid, self._request, self._configs = grid, grid.request, configs
        self._target, self.workload, self._on_step = target, workload, on_step
        self.trials: dict[str, Trial] = {}

    def try_grid(self, options: MeasureOptions, of_the_present: MeasureOptions) -> None:
        """Measure the present config and each change of the grid that differs from it."""
        running, changes = self._grid.running, self._grid.changes()
        self.trials[PRESENT] = self._measure_trial(Trial(PRESENT, running), of_the_present)
        # The present config may leave its threads to the default, which a change names.
        threads = Change(threads=cpu_threads(running)) if self._grid.on_cpu else Change()
        present = summary(changed(running, threads))
        for number, change in enumerate(changes):
            config = changed(running, change)
            if (name := summary(config)) in (present, *self.trials):
                continue
            self._on_step(0.05 + 0.55 * number / len(changes), f"{number + 1} of {len(changes)}: {name}")
            self.trials[name] = self._measure_trial(Trial(name, config), options)

    def decide(self, options: MeasureOptions) -> tuple[Verdict, Trial, FinalComparison | None]:
        """Return the best config, and its final against the present one, if that was possible."""
        measured = [trial for trial in self.trials.values() if trial.points]
        if not measured:
            reasons = dict.fromkeys(trial.refused for trial in self.trials.values())
            raise validity.Untrusted("no config could be measured: " + "; ".join(reasons))
        ranked = sorted(measured, key=lambda trial: self._request.rank(trial.points), reverse=True)
        if not self._request.best(ranked[0].points):
            return "out of reach", ranked[0], None
        shortlist = [trial for trial in ranked if trial.name != PRESENT][:_SHORTLIST]
        if not shortlist:
            return "no better", ranked[0], None
        finals = self._final(shortlist, options)
        if not finals:
            return "undecided", shortlist[0], None
        name = max(finals, key=lambda name: (finals[name].won, finals[name].gain.value))
        return "better" if finals[name].won else "no better", self.trials[name], finals[name]

    def _measure_trial(self, trial: Trial, options: MeasureOptions) -> Trial:
        try:
            self._configs.serve(self._request.model, trial.config)
            points, refused = sweep.run_sweep(
                self.workload, self._request.loads, self._target, options, trial.name
            )
        except (TritonRefused, validity.Untrusted) as exc:
            # A config of ours that does not serve is a result; if what serves now does not, nothing is.
            # A row that Triton counts late, in the measurement after its own, says nothing against a config.
            if trial.name == PRESENT and not isinstance(exc, validity.CountsDisagree):
                raise
            return replace(trial, refused=f"{trial.name}: {exc}")
        return replace(trial, points=tuple(points), refused="; ".join(map(str, refused)))

    def _final(self, shortlist: Sequence[Trial], options: MeasureOptions) -> dict[str, FinalComparison]:
        """Measure the shortlist and the present config in turns, each at its best load."""
        request, present = self._request, self.trials[PRESENT]
        usual = request.best(shortlist[0].points) or nearest(shortlist[0].points)

        def measure(trial: Trial) -> sweep.Measured:
            load = (request.best(trial.points) or usual).load
            with suppress(validity.Disturbed, validity.CountsDisagree):
                self._configs.serve(request.model, trial.config)
                return [sweep.measure(self.workload, load, self._target, options, trial.name)], []
            return [], []

        def on_step(share: float, words: str) -> None:
            self._on_step(0.6 + 0.4 * share, words)

        arms = {trial.name: partial(measure, trial) for trial in (present, *shortlist)}
        points = [point for turn, _ in sweep.in_turns(arms, request.turns, on_step) for point in turn]
        turns = {name: [point for point in points if point.arm == name] for name in arms}
        merged = {name: stats.merge(same) for name, same in turns.items() if len(same) >= MIN_TURNS}
        theirs = merged.pop(PRESENT, None)
        if not theirs:
            return {}
        return {
            name: FinalComparison(ours, theirs, stats.rate_ratio(ours, theirs), keeps, keeps and misses)
            for name, ours in merged.items()
            for keeps, misses in [(request.keeps(ours), not request.keeps(theirs))]
        }


def sentence(
    request: TuneRequest, verdict: Verdict, best: Trial, present: Trial, final: FinalComparison | None
) -> str:
    """Name the best config and the present one, the winner first, and the figures that decided."""
    ours, theirs = f"“{best.name}”", f"“{summary(present.config)}”"
    stays = f"The present config, {theirs}, stays"
    if verdict == "out of reach":
        name = theirs if best.name == PRESENT else ours
        return (
            f"No config that was tried reaches a p95 of {request.p95_ms:g} ms; the nearest, {name}, "
            f"has {_reached(nearest(best.points))}."
        )
    if verdict == "undecided":
        return (
            f"{stays}: {ours} could not be compared with it, since too few turns could be believed; "
            "wait until nothing else runs here, or use a longer --window."
        )
    if final is None:
        return f"{stays}: no other could be measured."
    figures = f"{_reached(final.ours)}, instead of {_reached(final.theirs)}"
    if final.won:
        misses = ", which misses the goal" if final.only_ours else ""
        gain = f"{final.gain:.2f} times the throughput of the present config, {theirs}"
        return f"{ours} has {gain}: {figures}{misses}."
    # Noise is only what the interval does not exclude.
    why_not = "that is worse" if below(final.gain, 1) else "that may be noise"
    why_not = why_not if final.keeps else "its p95 misses the goal"
    return f"{stays}: {ours} has {final.gain:.2f} times its throughput, {figures}; {why_not}."


def _reached(point: Point) -> str:
    cores = point.usage.server_cores
    busy = f", {cores:.1f} cores busy" if cores is not None else ""
    return (
        f"{point.rows_per_s.value:.4g} rows/s and a p95 of {point.latency_ms.p95:.3g} ms at {point.load}, in "
        f"batches of {point.executed_rows:.1f} rows{busy}"
    )
