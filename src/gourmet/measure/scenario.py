"""Run a scenario: several configs on a running server, each under its loads, and claims about them.

Nothing is rebuilt or restarted: a config goes to the server through the load API, and what served
before is put back at the end, whatever happens.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from gourmet.client.errors import TritonUnreachable
from gourmet.client.model_config import Config
from gourmet.measure import stats, sweep
from gourmet.measure.comparison import Found, NotMeasured, claim
from gourmet.measure.inputs import DataSource
from gourmet.measure.results import Bench, LoadSpec, Point, Rejection, Requirement, Statement, Through
from gourmet.measure.sweep import OnStep
from gourmet.measure.task import Addresses, MeasureOptions, Workload
from gourmet.measure.without_server import LayoutResult
from gourmet.repository.config_change import Change, changed
from gourmet.result_store import ResultStore
from gourmet.runtime.signals import handled
from gourmet.serving.connect import connect
from gourmet.serving.preflight import free_ports
from gourmet.serving.triton_server import ALL, TritonOptions, TritonServer

_LOADS_WITHIN_S: Final = 180.0
_TRIES: Final = 5


@dataclass(frozen=True)
class Arm:
    """A config of a model and its loads.

    `change` is made to the config without batching; None leaves what serves as it is.
    """

    name: str
    change: Change | None
    loads: tuple[LoadSpec, ...]
    # Written into the config even where there is nothing to batch, which Change refuses.
    delay_us: int | None = None

    # The system whose answers the model computes a step a request.
    stepped: str = ""

    @property
    def model(self) -> str:
        return self.loads[0].model

    @property
    def through(self) -> Through:
        return self.loads[0].through

    @property
    def asks(self) -> str:
        """Return the name of the workload: the model, and the way of asking if it is not the usual one."""
        return self.model if self.through == "triton" else f"{self.model} through the {self.through}"


def in_flight(
    model: str, *levels: float, batch: int = 1, through: Through = "triton"
) -> tuple[LoadSpec, ...]:
    """Return one load for each number of requests in flight."""
    return tuple(LoadSpec(model, level, batch=batch, through=through) for level in levels)


class Points:
    """The points of a scenario, and every turn of them; one that was rejected is missing."""

    def __init__(self, turns: Sequence[Point], beside: Sequence[Sequence[LayoutResult]] = ()) -> None:
        self.beside = beside
        self._turns: dict[str, list[Point]] = {}
        for point in turns:
            self._turns.setdefault(point.name, []).append(point)
        self.merged = [stats.merge(points) for points in self._turns.values()]

    def turns(self, arm: str, load: LoadSpec) -> list[Point]:
        """Return the measurements of an arm under a load, turn by turn."""
        return self._turns.get(f"{arm} {load}", [])

    def get(self, arm: str, level: float, batch: int = 1) -> Point:
        """Return the measurement of an arm over all turns; raise NotMeasured if there is none."""
        if points := self.of([arm], level, batch):
            return points[0]
        raise NotMeasured

    def of(self, arms: Sequence[str], level: float, batch: int = 1) -> list[Point]:
        """Return the measurements of those arms that were measured."""
        names = [f"{arm} {LoadSpec('', level, batch=batch)}" for arm in arms]
        return [point for name in names for point in self.merged if point.name == name]


# Each claim in words, and the function that checks the figures for it; it raises NotMeasured.
Claims = dict[str, Callable[[Points], Found]]


@dataclass(frozen=True)
class Scenario:
    """Arms to measure, and claims and goals for their figures.

    To add a scenario, write a function in a module of `scenarios` that returns it, name the function in
    `scenarios._KINDS`, and add a table with its arguments to the `scenarios.toml` of a system. `run`
    measures the arms in turns, resumes an interrupted run, and restores the configs that served before.
    `claims` and `goals` become the report.
    """

    name: str
    title: str
    about: str
    arms: tuple[Arm, ...]
    claims: Claims = field(default_factory=dict)
    # Changes to all arms of a model that is measured in another form than the served one.
    forms: Mapping[str, Change] = field(default_factory=dict)
    # Other statements about the figures.
    notes: Callable[[Points], list[Statement]] = field(default=lambda _points: [])
    # Goals for the figures. `check` compares the models' answers and returns a sentence.
    goals: Callable[[Points], list[Requirement]] = field(default=lambda _points: [])
    check: Callable[[Mapping[str, Workload]], str] = field(default=lambda _workloads: "")
    # An own server, if the running one lacks models. `beside` measures an arm without any server.
    server: Callable[[], AbstractContextManager[Addresses]] | None = None
    beside: Callable[[Arm, Mapping[str, Workload]], Sequence[LayoutResult]] | None = None

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(arm.model for arm in self.arms))

    def read(self, points: Points) -> list[Statement]:
        """Return statements about the figures."""
        seen = (claim(words, partial(look, points)) for words, look in self.claims.items())
        return [*self.notes(points), *seen]


@dataclass(frozen=True)
class ArmResult:
    """The result of one arm in one turn; `beside` was measured without a server before it."""

    points: tuple[Point, ...]
    refused: tuple[Rejection, ...]
    beside: tuple[LayoutResult, ...] = ()
    rows: str = ""  # what was asked
    checked: str = ""  # whether the models answer alike


def run(
    scenario: Scenario,
    target: Addresses,
    options: MeasureOptions,
    data: DataSource,
    *,
    turns: int = 1,
    command: str = "",
    resume: Path | None = None,
    on_step: OnStep = lambda _share, _words: None,
) -> Bench:
    """Measure every arm `turns` times, one after another, and return the results.

    Each arm's points are kept in the folder `resume`, and those that are there are not measured again.
    """
    store = ResultStore(resume, plan_of(scenario, options, data, turns), ArmResult)
    steps = [(turn, arm) for turn in range(turns) for arm in scenario.arms]
    if missing := [(turn, arm) for turn, arm in steps if store.get(turn, arm.name) is None]:
        with (
            scenario.server() if scenario.server else nullcontext(target) as server,
            restored(server, scenario.models) as running,
        ):
            serving = dict(running)
            for model, form in scenario.forms.items():
                serving[model] = changed(running[model], form)
                load_config(server, model, serving[model])
            usual = dict(serving)
            on_step(0.0, "asking every row alone")
            workloads = {
                arm.asks: sweep.prepare(arm.model, server, data, through=arm.through, stepped=arm.stepped)
                for arm in {arm.asks: arm for arm in scenario.arms}.values()
            }
            checked = scenario.check(workloads)
            for number, (turn, arm) in enumerate(missing):

                def on_arm(share: float, words: str, number: int = number, turn: int = turn) -> None:
                    on_step((number + share) / len(missing), f"turn {turn + 1} of {turns}: {words}")

                on_arm(0.0, arm.name)
                beside = scenario.beside(arm, workloads) if scenario.beside else ()
                config = config_of(usual[arm.model], arm)
                if config != serving[arm.model]:
                    load_config(server, arm.model, config)
                    serving[arm.model] = config
                workload = workloads[arm.asks]
                measured = sweep.run(workload, arm.loads, server, options, arm.name, on_arm)
                about = tuple(beside), workload.rows.about, checked
                store.put(ArmResult(tuple(measured[0]), tuple(measured[1]), *about), turn, arm.name)
    results = [result for turn, arm in steps if (result := store.get(turn, arm.name))]
    seen = Points(
        [point for result in results for point in result.points],
        [result.beside for result in results if result.beside],
    )
    return sweep.bench(
        scenario.title,
        command,
        "; ".join(dict.fromkeys(result.rows for result in results)),
        seen.merged,
        [refused for result in results for refused in result.refused],
        about=" ".join(dict.fromkeys(filter(None, [scenario.about, *(arm.checked for arm in results)]))),
        findings=tuple(scenario.read(seen)),
        goals=tuple(scenario.goals(seen)),
    )


def plan_of(scenario: Scenario, options: MeasureOptions, data: DataSource, turns: int) -> dict[str, Any]:
    """Return what distinguishes the stored results of this run from those of another."""
    return {
        "scenario": scenario.name,
        "turns": turns,
        "arms": scenario.arms,
        "data": data,
        "options": options,
    }


@contextmanager
def own_server(repositories: Sequence[Path], models: Sequence[str] = ALL) -> Iterator[Addresses]:
    """Run a Triton that serves these models, or all, on free ports."""
    http, grpc, metrics = free_ports(3)
    options = TritonOptions(tuple(repositories), http_port=http, grpc_port=grpc, metrics_port=metrics)
    log: list[str] = []
    server = TritonServer(options, log.append)
    try:
        server.start(models)
        server.wait_until_live()
        yield Addresses(options.http_url, options.grpc_url)
    finally:
        server.close()


@contextmanager
def restored(target: Addresses, models: Sequence[str]) -> Iterator[dict[str, Config]]:
    """Yield the current configs, and restore them afterwards, after Ctrl-C and SIGTERM too.

    The caller may replace an entry of the dictionary; that config is restored instead.
    """
    with connect(target.url) as triton:
        running = {model: triton.config(model) for model in models}
    try:
        yield running
    finally:
        # A second Ctrl-C would leave the server with whatever was being tried.
        with handled({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}):
            for model, config in running.items():
                load_config(target, model, config)


def load_config(target: Addresses, model: str, config: Mapping[str, Any]) -> None:
    # A server that starts many instances on few cores may be too busy to pick up at once.
    for left in reversed(range(_TRIES)):
        try:
            with connect(target.url, _LOADS_WITHIN_S) as triton:
                triton.load(model, config)
            return
        except TritonUnreachable:
            if not left:
                raise


def config_of(usual: Config, arm: Arm) -> Config:
    """Return the arm's config: the usual one of its model, without batching, with the arm's change."""
    if arm.change is None:
        return usual
    config = changed(changed(usual, Change(dynamic_batching=False)), arm.change)
    if arm.delay_us is not None:
        config["dynamic_batching"] = {"max_queue_delay_microseconds": arm.delay_us}
    return config
