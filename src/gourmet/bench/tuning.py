"""Search the config that serves a model best on this machine under a goal.

A grid of configs is measured in short windows, then other delays for the best of them. Many short windows
flatter the lucky, so the best are measured again beside the present config, in turns: only the turns decide.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from gourmet.bench import stats, sweep, validity
from gourmet.bench.comparison import below
from gourmet.bench.inputs import DataSource
from gourmet.bench.results import Bench, Estimate, LoadSpec, Point, as_data
from gourmet.bench.sweep import OnStep, load_config, restored
from gourmet.bench.workload import Addresses, MeasureOptions, prepare
from gourmet.errors import UsageError
from gourmet.repository.config_change import Change, changed
from gourmet.served.instances import available_cpus, cpu_threads, instance_count
from gourmet.triton_client.errors import TritonRefused
from gourmet.triton_client.model_config import Config, as_pbtxt, summary

PRESENT: Final = "present"
# The number of configs whose delays are tried, and of those that go into the turns.
_BASES: Final = 2
_FINALISTS: Final = 2
_FEWEST_TURNS: Final = 3
# Windows may differ by half, since the noise is judged between turns.
_STEADINESS: Final = 0.5
_DELAYS_US: Final = (100, 1000, 5000)
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
class Duel:
    """A config and the present one, measured in turns.

    `gain` is the ratio of the throughputs, with its interval. `only_ours` says that the challenger keeps the
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
    """A whole search; `bench` holds the points that the pages of `gourmet bench` can draw."""

    request: TuneRequest
    searched: tuple[str, ...]
    trials: tuple[Trial, ...]
    best: str
    duel: Duel | None
    verdict: Verdict
    sentence: str
    bench: Bench
    applied: bool = False
    schema: str = "gourmet-tune/1"

    def trial(self, name: str) -> Trial:
        return next(trial for trial in self.trials if trial.name == name)

    @property
    def sides(self) -> list[Point]:
        """The best and the present config, as measured in turns, if they were."""
        return [self.duel.ours, self.duel.theirs] if self.duel else []

    @property
    def recommended(self) -> Trial | None:
        """The config to serve: the best if it won, else the present one; None if none reaches the goal."""
        if self.verdict == "out of reach":
            return None
        return self.trial(self.best if self.verdict == "better" else PRESENT)

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
        data["bench"].pop("points")  # which are those of the trials and of the duel
        data["recommended"] = self.recommended.name if self.recommended else None
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Space:
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

    def coarse(self) -> list[Change]:
        """Return every layout of instances and threads, with and without dynamic batching."""
        changes = []
        for instances, threads in self._layouts():
            layout = Change(instances, threads)
            if not self.keeps_its_queue:
                changes.append(replace(layout, dynamic_batching=False))
            if self.batches or self.keeps_its_queue:
                changes.append(_batching(layout, 0))
        return changes

    def fine(self, bases: Iterable[Change]) -> list[Change]:
        """Return the best layouts with longer delays; half of the goal as a wait cannot keep it."""
        delays = _DELAYS_US if self.request.delays_us is None else self.request.delays_us
        max_delay_us = 500 * (self.request.p95_ms or math.inf)
        waits = [delay_us for delay_us in delays if 0 < delay_us <= max_delay_us] if self.batches else []
        return list(dict.fromkeys(_batching(base, delay_us) for base in bases for delay_us in waits))

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

    def searched(self, trials: Sequence[Trial], short_s: float, turn_s: float) -> tuple[str, ...]:
        """Describe what was tried, for a reader to judge the result."""
        request = self.request
        loads = ", ".join(load.at for load in request.loads)
        lines = [
            f"{len(trials)} configs at {loads}, {short_s:.2g} s a load: layouts of instances and threads, "
            f"dynamic batching, and other delays for the best {_BASES}; others may be better",
            f"the best {_FINALISTS} beside the present config, {request.turns} turns of {turn_s:.2g} s each: "
            "only these decide",
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


def _batching(base: Change, delay_us: int) -> Change:
    # Where a config names no preferred size, Triton fills in the largest batch for some backends.
    return replace(base, dynamic_batching=True, delay_us=delay_us, preferred_batches=())


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

    Applied is only what beat the present config in turns, by more than their noise.
    """
    on_step(0.0, "asking every row alone")
    steady = replace(options, steadiness=max(_STEADINESS, options.steadiness))
    with restored(target, [request.model]) as serves_afterwards:
        space = Space(serves_afterwards[request.model], request)
        search = _Search(space, target, steady, data, on_step)
        verdict, best, duel = search.run()
        if applied := request.apply and verdict == "better":
            serves_afterwards[request.model] = best.config
        on_step(1.0, f"loading {best.name if applied else 'the present config'}")
    return Tuning(
        request,
        space.searched(list(search.trials.values()), search.short.measure_s, search.turn.measure_s),
        tuple(search.trials.values()),
        best.name,
        duel,
        verdict,
        sentence(request, verdict, best, duel),
        sweep.bench(
            f"The best config of {request.model} here: {request}",
            command,
            search.workload.rows.about,
            [duel.ours, duel.theirs] if duel else best.points,
        ),
        applied,
    )


class _Search:
    """One search on one model. Use it only within `restored`."""

    def __init__(
        self, space: Space, target: Addresses, options: MeasureOptions, data: DataSource, on_step: OnStep
    ) -> None:
        self._space, self._target, self._on_step, self._request = space, target, on_step, space.request
        self.workload = prepare(self._request.model, target, data)
        self._changes: dict[str, Change] = {}
        self.trials: dict[str, Trial] = {}
        self._serving = PRESENT
        # A third of the time and one attempt: the turns together are longer than any other measurement.
        self.turn = replace(options, window_s=options.window_s / 2)
        self.short = replace(
            options, window_s=options.window_s / 3, warm_up_s=options.warm_up_s / 2, attempts=1
        )

    def run(self) -> tuple[Verdict, Trial, Duel | None]:
        """Return the best config, and its turns against the present one, if they were possible."""
        running = self._space.running
        retried = replace(self.short, attempts=self.turn.attempts)
        self.trials[PRESENT] = self._tried(Trial(PRESENT, running), retried)
        self._try(self._space.coarse(), 0.05, 0.4)
        present = Change(instance_count(running), cpu_threads(running) if self._space.on_cpu else None)
        bases = [self._changes.get(trial.name, present) for trial in self._ranked()[:_BASES]]
        self._try(self._space.fine(bases), 0.4, 0.6)
        ranked = self._ranked()
        best = ranked[0]
        if not self._request.best(best.points):
            return "out of reach", best, None
        finalists = [trial for trial in ranked if trial.name != PRESENT][:_FINALISTS]
        if not finalists:
            return "no better", best, None
        duels = self._in_turns(finalists)
        if not duels:
            return "undecided", finalists[0], None
        won = max(duels, key=lambda name: (duels[name].won, duels[name].gain.value))
        return "better" if duels[won].won else "no better", self.trials[won], duels[won]

    def _ranked(self) -> list[Trial]:
        """Return the trials, the best first, without rejected ones; raise if all were rejected."""
        measured = [trial for trial in self.trials.values() if trial.points]
        if not measured:
            reasons = dict.fromkeys(trial.refused for trial in self.trials.values())
            raise validity.Untrusted("no config could be measured: " + "; ".join(reasons))
        return sorted(measured, key=lambda trial: self._request.rank(trial.points), reverse=True)

    def _try(self, changes: Sequence[Change], begin: float, end: float) -> None:
        """Try each change but those that are known; `begin` and `end` are shares of the whole search."""
        running = self._space.running
        # The present config may leave its threads to the default, which a change names.
        threads = Change(threads=cpu_threads(running)) if self._space.on_cpu else Change()
        known = [summary(changed(running, threads)), *self.trials]
        for number, change in enumerate(changes):
            config = changed(running, change)
            if (name := summary(config)) in known:
                continue
            share = begin + (end - begin) * number / len(changes)
            self._on_step(share, f"{number + 1} of {len(changes)}: {name}")
            self._changes[name] = change
            self.trials[name] = self._tried(Trial(name, config), self.short)

    def _tried(self, trial: Trial, options: MeasureOptions) -> Trial:
        try:
            self._serve(trial)
            points, refused = sweep.run(self.workload, self._request.loads, self._target, options, trial.name)
        except (TritonRefused, validity.Untrusted) as exc:
            # A config of ours that does not serve is a result; if what serves now does not, nothing is.
            # A row that Triton counts late, in the measurement after its own, says nothing against a config.
            if trial.name == PRESENT and not isinstance(exc, validity.CountsDisagree):
                raise
            return replace(trial, refused=str(exc))
        return replace(trial, points=tuple(points), refused="; ".join(map(str, refused)))

    def _serve(self, trial: Trial) -> None:
        if trial.name != self._serving:
            load_config(self._target, self._request.model, trial.config)
            self._serving = trial.name

    def _in_turns(self, finalists: Sequence[Trial]) -> dict[str, Duel]:
        """Measure them beside the present config in turns, each at its best load."""
        request, present = self._request, self.trials[PRESENT]
        usual = request.best(finalists[0].points) or nearest(finalists[0].points)
        seen: dict[str, list[Point]] = {trial.name: [] for trial in (*finalists, present)}
        for turn in range(request.turns):
            for trial in [*finalists, present][:: 1 if turn % 2 else -1]:
                words = f"turn {turn + 1} of {request.turns}: {trial.name}"
                self._on_step(0.6 + 0.4 * turn / request.turns, words)
                load = (request.best(trial.points) or usual).load
                with suppress(validity.Disturbed, validity.CountsDisagree):
                    self._serve(trial)
                    point = sweep.measure(self.workload, load, self._target, self.turn, trial.name)
                    seen[trial.name].append(point)
        enough = min(request.turns, _FEWEST_TURNS)
        merged = {name: stats.merge(points) for name, points in seen.items() if len(points) >= enough}
        if PRESENT not in merged:
            return {}
        theirs = merged.pop(PRESENT)
        return {
            name: Duel(ours, theirs, stats.ratio(ours.rates, theirs.rates), keeps, keeps and misses)
            for name, ours in merged.items()
            for keeps, misses in [(request.keeps(ours), not request.keeps(theirs))]
        }


def sentence(request: TuneRequest, verdict: Verdict, best: Trial, duel: Duel | None) -> str:
    """Say what the search found, and by which figures."""
    if verdict == "out of reach":
        return (
            f"No config that was tried reaches a p95 of {request.p95_ms:g} ms; the nearest, “{best.name}”, "
            f"has {_reached(nearest(best.points))}."
        )
    if verdict == "undecided":
        return (
            f"The present config stays: “{best.name}” could not be compared with it, since too few turns "
            "could be believed; wait until nothing else runs here, or use a longer --window."
        )
    if duel is None:
        return "The present config stays: no other could be measured."
    ours, theirs = duel.ours, duel.theirs
    text = (
        f"“{best.name}” has {duel.gain:.2f} times the throughput of the present config: {_reached(ours)}, "
        f"instead of {_reached(theirs)}"
    )
    if duel.won:
        return f"{text}." if not duel.only_ours else f"{text}, which misses the goal."
    # Noise is only what the interval does not exclude.
    why_not = "that is worse" if below(duel.gain, 1) else "that may be noise"
    return f"The present config stays: {text}; {why_not if duel.keeps else 'its p95 misses the goal'}."


def _reached(point: Point) -> str:
    cores = point.usage.server_cores
    busy = f", {cores:.1f} cores busy" if cores is not None else ""
    return (
        f"{point.rows_per_s.value:.4g} rows/s and a p95 of {point.latency_ms.p95:.3g} ms at {point.load}, in "
        f"batches of {point.executed_rows:.1f} rows{busy}"
    )
