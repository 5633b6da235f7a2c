"""Goal and result of a search, as values and as the JSON that is saved."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from gourmet.client.model_config import Config, as_pbtxt
from gourmet.measure import stats
from gourmet.measure.results import Bench, Estimate, LoadSpec, Point, Protocol, as_data
from gourmet.runtime.instances import available_cpus

PRESENT: Final = "present"

Verdict = Literal["better", "no better", "undecided", "out of reach"]
Kind = Literal["throughput", "latency"]


@dataclass(frozen=True)
class TuneRequest:
    """The goal and the loads of a search; None leaves a value to the machine and the model.

    The goal is most rows a second, or the lowest p95 at the heaviest load; neither with a p95 above
    the limit.
    """

    model: str
    kind: Kind = "throughput"
    p95_ms: float | None = None
    levels: tuple[float, ...] | None = None
    batch: int = 1
    protocol: Protocol = "http"
    instances: tuple[int, ...] | None = None
    threads: tuple[int, ...] | None = None
    max_batches: tuple[int, ...] | None = None
    delays_us: tuple[int, ...] | None = None
    preferred: tuple[int, ...] | None = None
    turns: int = 5
    apply: bool = False
    cpus: int = field(default_factory=available_cpus)

    @property
    def loads(self) -> tuple[LoadSpec, ...]:
        """The loads: few requests in flight, enough to keep the CPUs busy, and enough to queue."""
        busy = 2.0 * self.cpus
        levels = self.levels or ((busy,) if self.kind == "latency" else (1.0, busy, 4 * busy))
        return tuple(
            LoadSpec(self.model, level, batch=self.batch, protocol=self.protocol) for level in levels
        )

    @property
    def heaviest(self) -> float:
        return max(load.level for load in self.loads)

    def __str__(self) -> str:
        limit = f" with a p95 of at most {self.p95_ms:g} ms" if self.p95_ms is not None else ""
        if self.kind == "throughput":
            return f"most rows a second{limit}"
        return f"the lowest p95 with {self.heaviest:g} requests in flight{limit}"

    def keeps(self, point: Point) -> bool:
        """Return True for a point under the limit that the goal is about."""
        if self.p95_ms is not None and point.latency_ms.p95 > self.p95_ms:
            return False
        return self.kind == "throughput" or point.load.level == self.heaviest

    def value(self, point: Point) -> float:
        """Return the figure to maximise."""
        return point.rows_per_s.value if self.kind == "throughput" else 1 / point.latency_ms.p95

    def best(self, points: Iterable[Point]) -> Point | None:
        """Return the point at which a config would be run."""
        return max(filter(self.keeps, points), key=self.value, default=None)

    def rank(self, points: Sequence[Point]) -> tuple[int, float]:
        """Return a sort key: configs under the limit by their result, the others by their distance from the
        limit.
        """
        best = self.best(points)
        return (1, self.value(best)) if best else (0, -nearest(points).latency_ms.p95)

    def gain(self, ours: Point, theirs: Point) -> Estimate:
        """Return how many times better one point is than another, both over several turns."""
        if self.kind == "throughput":
            return stats.ratio(ours.rates, theirs.rates)
        return stats.ratio(p95s(theirs), p95s(ours))


def nearest(points: Iterable[Point]) -> Point:
    return min(points, key=lambda point: point.latency_ms.p95)


def p95s(point: Point) -> list[float]:
    return [window.p95_ms for window in point.windows if window.p95_ms is not None]


@dataclass(frozen=True)
class Trial:
    """A config that was tried, with the points of its longest measurement."""

    name: str
    config: Config
    stage: str
    points: tuple[Point, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Confirmation:
    """The best config of the search and the current config, measured again in turns.

    `gain` is how many times better, with its interval: of the throughput, or of the p95 turned over.
    `only_ours` says that the challenger keeps the limit and the present config does not.
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
    confirmation: Confirmation | None
    verdict: Verdict
    sentence: str
    bench: Bench
    applied: bool = False
    schema: str = "gourmet-tune/1"

    def trial(self, name: str) -> Trial:
        return next(trial for trial in self.trials if trial.name == name)

    @property
    def sides(self) -> list[Point]:
        """The best and the current config, as measured in turns, if they were."""
        return [self.confirmation.ours, self.confirmation.theirs] if self.confirmation else []

    @property
    def recommended(self) -> Trial | None:
        """The config to serve: the best if it won, else the current one; None if none reaches the goal."""
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


def as_json(tuning: Tuning) -> str:
    """Return the data to save. The points of the search are saved once, under its trials."""
    request, bench = tuning.request, tuning.bench
    goal = {"kind": request.kind, "p95_ms": request.p95_ms, "heaviest": request.heaviest}
    data = {"model": request.model, "goal": goal, **as_data(tuning)}
    data["duel"] = data.pop("confirmation")
    for name in ("request", "bench"):
        del data[name]
    data |= {name: getattr(bench, name) for name in ("command", "when", "machine", "data")}
    data["recommended"] = tuning.recommended.name if tuning.recommended else None
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
