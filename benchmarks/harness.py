"""Compare with other servers: contenders in turns, checked answers, a part of docs/.

A program brings contenders. `run` starts one after another and measures its loads, A B C … A B C …, so that
a machine that slows down favours none. `DocsPart` writes the rows and the goals.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import psutil

from gourmet.bench import stats
from gourmet.bench.async_client import LoadGenerator
from gourmet.bench.results import Latency, LoadSpec
from gourmet.bench.server_probe import CpuMeter, memory_mib, tree
from gourmet.bench.transports import RawReply, Request, RequestFailed, Wire
from gourmet.bench.workload import Addresses, MeasureOptions
from gourmet.errors import GourmetError, UsageError
from gourmet.progress import ReportProgress
from gourmet.reports import chart, machine
from gourmet.served.instances import available_cpus
from gourmet.stack.preflight import free_ports
from gourmet.stack.processes import Child, wait_until
from gourmet.stack.triton_server import ALL, TritonOptions, TritonServer

# A window in which other processes took more cores than this is measured again, up to _TRIES times.
QUIET_CORES: Final = 0.1
FIRST_PIECE_MS: Final = "first piece ms"

_TRIES: Final = 3
_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 12.0
_INSTALL_TIMEOUT_S: Final = 900.0
_LOG_LINES: Final = 30


# --- a window


@dataclass(frozen=True)
class BenchLoad:
    """The load on an arm: the requests in flight, and what they ask about where an arm has several inputs."""

    arm: str
    level: int
    inputs: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.arm, self.inputs, f"{self.level or 'all'} at a time")))


@dataclass(frozen=True)
class BenchWindow:
    """The results of an arm under a load while the window was open."""

    load: BenchLoad
    seconds: float
    latencies_ms: tuple[float, ...]
    foreign_cores: float
    errors: Mapping[str, int] = field(default_factory=dict)
    cpu_ms: Mapping[str, float] = field(default_factory=dict)  # for an answer, by group of processes
    memory_mib: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.latencies_ms:
            why = ", ".join(self.errors) or "take a longer --window"
            raise UsageError(f"{self.load}: no answer in {self.seconds:.1f} s: {why}")

    @property
    def per_s(self) -> float:
        return len(self.latencies_ms) / self.seconds

    @property
    def latency(self) -> Latency:
        return stats.latency(np.array(self.latencies_ms))


Measure = Callable[[BenchLoad], BenchWindow]


def window(
    load: BenchLoad,
    wire: Wire,
    requests: Iterable[Request],
    check: Callable[[Request, RawReply], None],
    options: MeasureOptions,
    *,
    clients: int = 0,
    groups: Mapping[str, int] | None = None,
    figures: Mapping[str, float] | None = None,
    counts: Callable[[Request], int] = lambda _request: 1,
) -> BenchWindow:
    """Send the requests again and again, `clients` or `load.level` at a time, and check every answer.

    `groups` are the processes to account for; `counts` returns the number of answers to a request.
    """
    meter, level = CpuMeter(groups or {}), LoadSpec(load.arm, clients or load.level)
    times = options.warm_up_s, options.measure_s
    traffic = LoadGenerator(wire, itertools.cycle(requests), level, check, *times, meter.look).run()
    return window_of(load, traffic, meter, figures or {}, counts)


def window_of(
    load: BenchLoad,
    traffic: LoadGenerator,
    meter: CpuMeter,
    figures: Mapping[str, float],
    counts: Callable[[Request], int] = lambda _request: 1,
) -> BenchWindow:
    """Return the window of `traffic`, whose mark was `meter.look`."""
    due, _, done = traffic.arrays()
    held, seconds = traffic.holds(done), traffic.ended - traffic.began
    answers = np.array([counts(request) for request in traffic.answered], int)
    latencies_ms = tuple(np.repeat(1000 * (done - due)[held], answers[held]).tolist())
    requests = max(1, len(done))
    first_ms = [1000 * (moments[0] - at) for moments, at in zip(traffic.pieces, due, strict=True) if moments]
    return BenchWindow(
        load,
        seconds,
        latencies_ms,
        meter.others_cores,
        traffic.errors,
        {
            group: 1000 * (meter.cores(group) or 0.0) * meter.seconds / max(1, len(latencies_ms))
            for group in meter.groups
        },
        {group: memory_mib(tree(pid)) for group, pid in meter.groups.items() if pid},
        {
            "requests": traffic.requests_sent / requests,
            "bytes": traffic.transferred / requests,
            **({FIRST_PIECE_MS: float(np.median(first_ms))} if first_ms else {}),
            **figures,
        },
    )


# --- a window without a server

# Computes the example of a number; raises WrongAnswers where the answer is not the expected one.
Compute = Callable[[int], None]


@dataclass(frozen=True)
class Layout:
    """One way to use the machine: a number of sessions, and of threads for each."""

    sessions: int
    threads: int

    def __str__(self) -> str:
        return f"{self.sessions} × {self.threads}"


def full_layouts() -> list[Layout]:
    """Return the layouts that use all CPUs: one session, or a session for each CPU."""
    return [Layout(*pair) for pair in sorted({(1, available_cpus()), (available_cpus(), 1)})]


def no_server(
    load: BenchLoad,
    layout: Layout,
    options: MeasureOptions,
    make: Callable[..., Compute],
    *arguments: Any,
) -> BenchWindow:
    """Measure a layout; `make(*arguments, threads)` opens the network in each process.

    A session has a process, since threads share the GIL and were a tenth slower.
    """
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(layout.sessions)
    with ProcessPoolExecutor(
        layout.sessions,
        mp_context=context,
        initializer=_open,
        initargs=(make, (*arguments, layout.threads), together),
    ) as pool:
        meter = CpuMeter({})
        meter.look()
        working = [pool.submit(_work, options.warm_up_s, options.measure_s) for _ in range(layout.sessions)]
        results = [future.result() for future in working]
        meter.look()
    latencies_ms = tuple(took_ms for took, _, _ in results for took_ms in took)
    seconds, cpu_s = sum(wall for _, wall, _ in results), sum(cpu for _, _, cpu in results)
    cpu_ms = {"process": 1000 * cpu_s / max(1, len(latencies_ms))}
    return BenchWindow(load, seconds / len(results), latencies_ms, meter.others_cores, cpu_ms=cpu_ms)


_compute: list[Compute] = []


def _open(make: Callable[..., Compute], arguments: tuple[Any, ...], together: Any) -> None:
    """Prepare a process, and wait until all others are ready."""
    _compute.append(make(*arguments))
    _compute[0](0)
    together.wait(_START_TIMEOUT_S)


def _work(warm_up_s: float, measure_s: float) -> tuple[list[float], float, float]:
    """Compute examples in turn; return the milliseconds of each, and the seconds and CPU seconds of all."""
    numbers, latencies_ms = itertools.count(), list[float]()
    ends = time.perf_counter() + warm_up_s
    while time.perf_counter() < ends:
        _compute[0](next(numbers))
    busy_s, began = time.process_time(), time.perf_counter()
    while (sent := time.perf_counter()) < began + measure_s:
        _compute[0](next(numbers))
        latencies_ms.append(1000 * (time.perf_counter() - sent))
    return latencies_ms, time.perf_counter() - began, time.process_time() - busy_s


# --- contenders in turns


class DidNotStart(GourmetError):
    """A server did not answer in time; its last lines say why."""


@dataclass(frozen=True)
class Contender:
    """A server, or an arm without one, and its loads; `start` yields the function that measures a load."""

    words: str
    loads: Sequence[BenchLoad]
    start: Callable[[], AbstractContextManager[Measure]]


def run(
    contenders: Sequence[Contender], turns: int, tick: ReportProgress
) -> tuple[list[BenchRow], dict[str, str]]:
    """Measure each contender in turn; return the rows, and who was left out with the reason.

    A contender is left out if its server does not start in the first turn.
    """
    windows: list[BenchWindow] = []
    left_out: dict[str, str] = {}
    steps = turns * sum(len(contender.loads) for contender in contenders)
    # The run must also end on a machine that is never quiet.
    repeats = steps // 3
    for turn in range(turns):
        for contender in contenders:
            if contender.words in left_out:
                continue
            step = f"turn {turn + 1} of {turns}: {contender.words}"
            tick(len(windows) / steps, step)
            try:
                with contender.start() as measure:
                    for load in contender.loads:
                        tick(len(windows) / steps, f"turn {turn + 1} of {turns}: {load}")
                        tried = [measure(load)]
                        while tried[-1].foreign_cores > QUIET_CORES and len(tried) < _TRIES and repeats:
                            repeats -= 1
                            tried.append(measure(load))
                        windows.append(min(tried, key=lambda window: window.foreign_cores))
            except DidNotStart as exc:
                if turn:
                    raise
                left_out[contender.words] = str(exc)
    return rows_of(windows), left_out


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
    try:
        server.start(models)
        server.wait_until_live()
        yield Addresses(options.http_url, options.grpc_url)
    finally:
        server.close()


def programs(requirements: Path) -> Path:
    """Return the programs of an environment with these packages; make it at the first use, in a minute."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gourmet"
    name = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    home = cache / f"peers-{name}"
    if not (home / ".ready").exists():
        click.echo(f"installing other servers into {home}, once", err=True)
        shutil.rmtree(home, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--python"]
        pip += [str(home / "bin" / "python"), "install", "--quiet", "--requirement", str(requirements)]
        try:
            # Our pip installs the packages: another pip would take ten seconds more.
            for command in ([sys.executable, "-m", "venv", "--without-pip", str(home)], pip):
                subprocess.run(
                    command, check=True, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S
                )
        except subprocess.SubprocessError as exc:
            shutil.rmtree(home, ignore_errors=True)
            reason = str(getattr(exc, "stderr", None) or exc)[-500:]
            raise GourmetError(f"{requirements} cannot be installed: {reason}") from exc
        (home / ".ready").touch()
    return home / "bin"


def main(command: click.Command) -> None:
    """Run the command line; print an expected error as one sentence."""
    try:
        command()
    except GourmetError as exc:
        click.echo(f"Error: {exc}", err=True)
        sys.exit(exc.exit_code)


# --- rows, goals and a part of docs/


@dataclass(frozen=True)
class BenchRow:
    """An arm under a load, over all turns."""

    load: BenchLoad
    windows: Sequence[BenchWindow]

    @property
    def per_s(self) -> list[float]:
        return [window.per_s for window in self.windows]

    @property
    def median(self) -> float:
        return statistics.median(self.per_s)

    @property
    def disturbed(self) -> bool:
        return max(window.foreign_cores for window in self.windows) > QUIET_CORES

    @property
    def name(self) -> str:
        return self.load.arm + (" *" if self.disturbed else "")

    @property
    def errors(self) -> int:
        return sum(Counter(window.errors).total() for window in self.windows)

    def figure(self, name: str) -> float | None:
        """Return the median over the turns that have the figure."""
        return self.medians("figures").get(name)

    def medians(self, name: str) -> dict[str, float]:
        """Return the medians of a mapping of figures, such as `cpu_ms` and `memory_mib`."""
        values: dict[str, list[float]] = {}
        for window in self.windows:
            for key, value in getattr(window, name).items():
                values.setdefault(key, []).append(value)
        return {key: statistics.median(figures) for key, figures in values.items()}

    def cells(self) -> tuple[str, ...]:
        """Return the cells below `headings`; percentiles are of all turns' answers together."""
        took = stats.latency(np.concatenate([window.latencies_ms for window in self.windows]))
        return (
            self.name,
            str(self.load.level or "–"),
            median_and_range(self.per_s, ".0f" if self.median >= 50 else ".1f"),
            *(f"{ms:.0f}" if ms >= 20 else f"{ms:.1f}" for ms in (took.p50, took.p95, took.p99)),
        )


def headings(what: str, *more: str) -> tuple[str, ...]:
    """Return the headings over `cells`, and more."""
    return ("", "at a time", f"{what}/s", "p50 ms", "p95 ms", "p99 ms", *more)


def rows_of(windows: Iterable[BenchWindow]) -> list[BenchRow]:
    """Return a row for each load, in the order of the first measurement."""
    groups: dict[BenchLoad, list[BenchWindow]] = {}
    for window in windows:
        groups.setdefault(window.load, []).append(window)
    return [BenchRow(load, same) for load, same in groups.items()]


@dataclass(frozen=True)
class Goal:
    """A figure per turn, and what its median should reach."""

    what: str
    per_turn: tuple[float, ...]
    wanted: float
    at_most: bool = False
    unit: str = "×"
    # Other processes took so much of the machine that it is not to be judged.
    disturbed: bool = False

    @property
    def verdict(self) -> str:
        if self.disturbed:
            return "not judged: disturbed"
        reached = {
            figure <= self.wanted if self.at_most else figure >= self.wanted for figure in self.per_turn
        }
        if len(reached) > 1:  # in some turns, and not in others
            return "not decided"
        return "met" if reached.pop() else "not met"

    def cells(self) -> tuple[str, ...]:
        unit = self.unit if self.unit == "×" else f" {self.unit}"
        wanted = f"at {'most' if self.at_most else 'least'} {self.wanted:g}{unit}"
        return self.what, f"{median_and_range(self.per_turn, '.2f')}{unit}", wanted, self.verdict


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table: words are aligned left, numbers right."""
    last = (rows or [headings])[-1]
    ruled = ["---:" if cell[:1].isdigit() or cell == "–" else "---" for cell in last]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headings, ruled, *rows))


def goals_table(goals: Iterable[Goal]) -> str:
    cells = [goal.cells() for goal in goals]
    return markdown(("goal", "measured", "wanted", ""), cells) if cells else ""


def median_and_range(values: Sequence[float], form: str) -> str:
    """Format the median, with minimum and maximum if there are several figures."""
    if len(values) == 1:
        return f"{values[0]:{form}}"
    return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


def ratio_goal(
    what: str,
    ours: BenchRow | None,
    others: Sequence[BenchRow | None],
    wanted: float,
    figure: Callable[[BenchWindow], float] = lambda window: window.per_s,
    at_most: bool = False,
) -> list[Goal]:
    """Return the goal for our figure ÷ the best of the others', or none if a row was not measured.

    Ratios are taken turn by turn, so that a machine that slows down in between favours neither.
    """
    rows = [ours, *others]
    measured = [row for row in rows if row]
    if len(rows) < 2 or len(measured) < len(rows) or len({len(row.windows) for row in measured}) > 1:
        return []
    turns = zip(*([figure(window) for window in row.windows] for row in measured), strict=True)
    ratios = tuple(mine / (min if at_most else max)(theirs) for mine, *theirs in turns)
    return [Goal(what, ratios, wanted, at_most, disturbed=any(row.disturbed for row in measured))]


def bars(
    rows: Sequence[BenchRow], title: str, unit: str, kind: Callable[[str], str], colours: Mapping[str, str]
) -> chart.Drawing:
    """Draw bars of medians, with whiskers from minimum to maximum; `kind` of an arm names its colour."""
    shown = [
        chart.Bar(
            row.name,
            row.median,
            min(row.per_s),
            max(row.per_s),
            colours[kind(row.load.arm)],
            says=f"{row.median:.{0 if row.median >= 50 else 1}f}",
        )
        for row in rows
    ]
    return chart.bars(shown, title, unit, colours=colours)


@dataclass(frozen=True)
class DocsPart:
    """The part of a docs/ page that a command writes, with the pictures beside the page."""

    command: str
    page: str

    def publish(
        self,
        words: str,
        turns: int,
        window_s: float,
        left_out: Mapping[str, str],
        folder: Path | None,
        pictures: Mapping[str, chart.Drawing] | None = None,
    ) -> None:
        """Print the part; write it into its page if there is a folder.

        It begins with the command, the date, the machine and what figures are.
        """
        where = "; ".join(f"{name} {value}" for name, value in machine.about().items())
        words = (
            f"`{self.command}`, {date.today().isoformat()}: {where}.\n\n"
            f"Windows of {window_s:g} s, one arm after another; turns: {turns}. Figures are medians over "
            "the turns with the least and the most, percentiles are of all turns' answers together, and "
            "ratios are taken turn by turn. Every answer was checked. A window in which others took more "
            f"than {QUIET_CORES:g} cores was measured again, up to twice; a row with a * never had a quiet "
            "one in some turn.\n\n"
            + "".join(f"Left out: {arm}: {why}\n\n" for arm, why in left_out.items())
            + words
        )
        click.echo(words)
        if not folder:
            return
        begin, end = (f"<!-- {at} `{self.command}` -->" for at in ("from here on written by", "to here:"))
        page = folder / self.page
        text = page.read_text() if page.exists() else f"# {self.page}\n\n{begin}\n{end}\n"
        before, begun, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not begun or not ended:
            raise GourmetError(f"{page} has no lines {begin!r} and {end!r}: add both where the part belongs")
        page.write_text(f"{before}{begin}\n{words}{end}{after}")
        for name, drawing in (pictures or {}).items():
            (folder / name).write_text(f"{drawing}\n", encoding="utf-8")
