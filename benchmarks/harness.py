"""Compare with other servers: contenders in turns, measured, checked and reported by gourmet.bench.

A program brings contenders. `run` starts one after another and measures its loads, every second turn in the
opposite order, so that a machine that slows down favours none.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import shlex
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import psutil

from gourmet.bench import report, stats, sweep, validity
from gourmet.bench.async_client import LoadGenerator
from gourmet.bench.comparison import above
from gourmet.bench.results import FILE, Estimate, Evidence, Latency, LoadSpec, Point, Rejection, Window
from gourmet.bench.server_probe import CpuMeter, tree, usage
from gourmet.bench.transports import RawReply, Request, RequestFailed, Wire
from gourmet.bench.validity import Disturbed
from gourmet.bench.workload import Addresses, MeasureOptions
from gourmet.commands.bench import table
from gourmet.errors import GourmetError, echo
from gourmet.progress import ReportProgress
from gourmet.stack.preflight import free_ports
from gourmet.stack.processes import Child, wait_until
from gourmet.stack.triton_server import ALL, TritonOptions, TritonServer

# A point during which other programs used more cores than this is measured once more.
QUIET_CORES: Final = 0.1
_TRIES: Final = 2
# Rows of a call without a server: passing one row to another process would cost as much as a tenth of it.
_ROWS_A_CALL: Final = 8
_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 12.0
_LOG_LINES: Final = 30

Measure = Callable[[str, LoadSpec], Point]  # of an arm by its name
Check = Callable[[Request, RawReply], None]


def window_options(window_s: float, warm_up_s: float = 1.0) -> MeasureOptions:
    """Return a measurement of `window_s`; its thirds may differ by half, as the turns are compared."""
    return MeasureOptions(window_s / 3, windows=3, warm_up_s=warm_up_s, attempts=1, steadiness=0.5)


def measure(
    load: LoadSpec,
    wire: Wire,
    requests: Iterable[Request],
    check: Check,
    options: MeasureOptions,
    processes: Mapping[str, int] | None = None,
) -> Point:
    """Send the requests again and again and check every answer; account for the server's processes."""
    meter, times = CpuMeter(processes or {}), (options.warm_up_s, options.measure_s)
    traffic = LoadGenerator(wire, itertools.cycle(requests), load, check, *times, meter.record).run()
    checks = [Evidence("answers", f"{len(traffic.times)} of {len(traffic.times)} right", "all")]
    if not isinstance(wire, InPool):  # whose work may be done by threads of this process
        checks.append(validity.generator_had_time(traffic.client_cores))
    return sweep.point_of(traffic, options, usage(meter, traffic.client_cores), tuple(checks))


# --- without a server


class InPool:
    """Calls a function in the threads or processes of a pool."""

    def __init__(self, pool: Executor, function: Callable[[Any], Any]) -> None:
        self._pool, self._function = pool, function

    async def send(self, request: Request) -> RawReply:
        loop = asyncio.get_running_loop()
        return RawReply({}, await loop.run_in_executor(self._pool, self._function, request.body))

    async def close(self) -> None:
        pass


def no_server(
    sessions: int,
    options: MeasureOptions,
    check: Check,
    rows: int,
    make_function: Callable[..., Any],
    *given: Any,
) -> Point:
    """Measure a function of a row's number in `sessions` processes; `make_function(*given)` makes it in each.

    Threads share Python's lock and were a tenth slower.
    """
    groups = [tuple(range(first, first + _ROWS_A_CALL)) for first in range(0, rows, _ROWS_A_CALL)]
    requests = [Request(group, [number % rows for number in group]) for group in groups]
    spawn, load = multiprocessing.get_context("spawn"), LoadSpec("", sessions, batch=_ROWS_A_CALL)
    with ProcessPoolExecutor(sessions, spawn, initializer=_open, initargs=(make_function, given)) as pool:
        point = measure(load, InPool(pool, _compute_rows), requests, check, options)
    return replace(
        point,
        load=LoadSpec("", sessions),
        latency_ms=Latency(*(ms / _ROWS_A_CALL for ms in vars(point.latency_ms).values())),
        split_ms=replace(point.split_ms, network=point.split_ms.network / _ROWS_A_CALL),
        windows=tuple(
            Window(_ROWS_A_CALL * w.requests_per_s, w.mean_ms / _ROWS_A_CALL) for w in point.windows
        ),
        requests=_ROWS_A_CALL * point.requests,
    )


_compute: list[Callable[[int], Any]] = []


def _open(make_function: Callable[..., Callable[[int], Any]], given: tuple[Any, ...]) -> None:
    _compute.append(make_function(*given))


def _compute_rows(numbers: Sequence[int]) -> list[Any]:
    return [_compute[0](number) for number in numbers]


# --- contenders in turns


class DidNotStart(GourmetError):
    """A server did not answer in time; its last lines say why."""


@dataclass(frozen=True)
class Contender:
    """A server, or an arm without one, and its loads; `start` yields the function that measures a load."""

    name: str
    loads: Sequence[tuple[str, LoadSpec]]  # each with the name of its arm
    start: Callable[[], AbstractContextManager[Measure]]

    def measured(self) -> sweep.Measured:
        points: list[Point] = []
        refused: list[Rejection] = []
        try:
            with self.start() as measure_load:
                for arm, load in self.loads:
                    try:
                        points.append(replace(_quietest(partial(measure_load, arm, load)), arm=arm))
                    except Disturbed as exc:
                        refused.append(Rejection(f"{arm} {load}", str(exc)))
        except DidNotStart as exc:
            refused.append(Rejection(self.name, str(exc)))
        return points, refused


def _quietest(measure_once: Callable[[], Point]) -> Point:
    """Measure again if others disturbed the measurement; return the quietest point."""
    tries: list[Point] = []
    for left in reversed(range(_TRIES)):
        try:
            tries.append(measure_once())
        except Disturbed:
            if not left and not tries:
                raise
        if tries and is_quiet(tries[-1]):
            break
    return min(tries, key=others)


def others(point: Point) -> float:
    return point.usage.others_cores or 0.0


def is_quiet(point: Point) -> bool:
    return others(point) <= QUIET_CORES


@dataclass(frozen=True)
class Row:
    """An arm under a load, in every turn in which it could be measured."""

    turns: Mapping[int, Point]

    @property
    def point(self) -> Point:
        """The mean of the turns; a * marks an arm that others disturbed."""
        merged = stats.merge(list(self.turns.values()))
        return merged if self.is_quiet else replace(merged, arm=f"{merged.arm} *")

    @property
    def arm(self) -> str:
        return next(iter(self.turns.values())).arm

    @property
    def load(self) -> LoadSpec:
        return next(iter(self.turns.values())).load

    @property
    def at_a_time(self) -> float:
        return self.load.level * self.load.batch

    @property
    def is_quiet(self) -> bool:
        return all(map(is_quiet, self.turns.values()))


def measure_in_turns(
    contenders: Sequence[Contender], turns: int, on_step: ReportProgress
) -> tuple[list[Row], dict[str, str]]:
    """Measure every contender in turns; return the rows, and what was left out with the reason."""
    arms = {contender.name: contender.measured for contender in contenders}
    results = sweep.in_turns(arms, turns, on_step)
    rows: dict[tuple[str, LoadSpec], dict[int, Point]] = {}
    for turn, (points, _) in enumerate(results):
        for point in points:
            rows.setdefault((point.arm, point.load), {})[turn] = point
    refused = {rejection.name: rejection.reason for _, rejected in results for rejection in rejected}
    return [*map(Row, rows.values())], refused


# --- servers


@contextlib.contextmanager
def started(
    name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path, ask: Callable[[], object]
) -> Iterator[int]:
    """Start a server and yield its process id when `ask` succeeds.

    Until then, `ask` raises OSError, ValueError or RequestFailed.
    """
    lines: deque[str] = deque(maxlen=_LOG_LINES)
    child = Child(command, env={**os.environ, **env}, cwd=cwd, on_line=lines.append)

    def is_answering() -> bool:
        if (status := child.exit_status()) is not None:
            raise TimeoutError(f"ended with status {status}")
        with contextlib.suppress(OSError, ValueError, RequestFailed):
            ask()
            return True
        return False

    try:
        try:
            wait_until(is_answering, _START_TIMEOUT_S, "did not answer", poll_s=0.1)
        except TimeoutError as exc:
            last = " | ".join([line.strip() for line in lines if line.strip()][-5:])
            raise DidNotStart(f"{name} {exc}; its last lines: {last}") from exc
        yield child.pid
    finally:
        # BentoML's workers leave the child's session.
        below = tree(child.pid)[1:]
        child.stop(_STOP_TIMEOUT_S)
        for process in psutil.wait_procs(below, timeout=2)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def gourmet_up(port: int) -> list[str]:
    """Return the command that runs our product with the web app on a port."""
    command = [str(Path(sysconfig.get_path("scripts"), "gourmet")), "up", "--port", str(port)]
    for option, other in zip(("--http-port", "--grpc-port", "--metrics-port"), free_ports(3), strict=True):
        command += [option, str(other)]
    return command


@contextlib.contextmanager
def own_triton(repositories: Sequence[Path], models: Sequence[str] = ALL) -> Iterator[Addresses]:
    """Run a Triton that serves these models, or all, on free ports."""
    http, grpc, metrics = free_ports(3)
    options = TritonOptions(tuple(repositories), http_port=http, grpc_port=grpc, metrics_port=metrics)
    server = TritonServer(options, deque[str](maxlen=_LOG_LINES).append)
    with contextlib.closing(server):
        server.start(models)
        server.wait_until_live()
        yield Addresses(options.http_url, options.grpc_url)


def programs(name: str) -> Path:
    """Return the programs of other servers, which `make bench-peers` and `make bench-generation` install."""
    folder = Path(__file__).parents[1] / f".venv-{name}" / "bin"
    if not folder.is_dir():
        raise GourmetError(f"{folder} is missing: `make bench-{name}` installs the other servers there")
    return folder


def main(command: click.Command) -> None:
    """Run the command line; print an expected error as one sentence."""
    try:
        command()
    except GourmetError as exc:
        echo(f"Error: {exc}", err=True)
        sys.exit(exc.exit_code)


# --- goals


@dataclass(frozen=True)
class Goal:
    """A figure with its interval over the turns, and what it should reach."""

    name: str
    figure: Estimate
    limit: float
    at_most: bool = False
    unit: str = "×"
    is_quiet: bool = True  # else other programs took so much of the machine that it is not to be judged

    @property
    def verdict(self) -> str:
        if not self.is_quiet:
            return "not judged: disturbed"
        is_above = above(self.figure, self.limit)
        if is_above is None:
            return "not decided"
        return "met" if is_above != self.at_most else "not met"

    def cells(self) -> tuple[str, ...]:
        unit = self.unit if self.unit == "×" else f" {self.unit}"
        limit = f"at {'most' if self.at_most else 'least'} {self.limit:g}{unit}"
        return self.name, f"{self.figure:.2f}{unit}", limit, self.verdict


def compared(
    name: str,
    rows: Sequence[Row | None],
    limit: float,
    figure: Callable[..., float],
    *,
    at_most: bool = False,
    unit: str = "×",
) -> list[Goal]:
    """Return the goal for `figure(point of each row)`, taken turn by turn; none if a row was not measured."""
    measured = [row for row in rows if row]
    if len(rows) < 2 or len(measured) < len(rows):
        return []
    common = set.intersection(*(set(row.turns) for row in measured))
    figures = [figure(*(row.turns[turn] for row in measured)) for turn in sorted(common)]
    if not figures:
        return []
    return [Goal(name, stats.interval(figures), limit, at_most, unit, all(row.is_quiet for row in measured))]


def rate(point: Point) -> float:
    return point.rows_per_s.value


def ratio_goal(
    name: str,
    ours: Row | None,
    rivals: Sequence[Row | None],
    limit: float,
    figure: Callable[[Point], float] = rate,
    *,
    at_most: bool = False,
) -> list[Goal]:
    """Return the goal for our figure ÷ the best of the rivals'."""
    best = min if at_most else max

    def ratio(ours: Point, *theirs: Point) -> float:
        return figure(ours) / best(map(figure, theirs))

    return compared(name, [ours, *rivals], limit, ratio, at_most=at_most)


def publish(
    title: str, about: str, rows: Sequence[Row], goals: Sequence[Goal], left_out: Mapping[str, str]
) -> None:
    """Print the goals and the figures, and save them as `gourmet bench run` does."""
    refused = [Rejection(name, reason) for name, reason in left_out.items()]
    points = [row.point for row in rows]
    if goals:
        table(("goal", "measured", "wanted", ""), [goal.cells() for goal in goals])
    if points:
        table(*report.figures(points))
        if any(point.stream for point in points):
            table(*report.streamed(points))
        folder = report.save(sweep.bench(title, shlex.join(sys.argv), about, points, refused))
        echo(f"saved in {folder}: {FILE}, bench.csv, {report.CHART}")
    for rejection in refused:
        echo(str(rejection))
    echo(f"*: other programs used more than {QUIET_CORES:g} cores in some turn")
