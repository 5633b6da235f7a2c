"""The automated benchmark of NVIDIA's deployer example: formats, static and dynamic batching, engine counts.

Every point is kept in a file as soon as it is measured, so that a benchmark that was stopped goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from gourmet.client.model_config import Config
from gourmet.measure import charts, results, storage, sweep, without_server
from gourmet.measure.comparison import Found, above, claim, times_the_throughput
from gourmet.measure.inputs import DataSource
from gourmet.measure.results import Bench, LoadSpec, Point, Rejection, Requirement, Statement
from gourmet.measure.scenario import Arm, config_of, load_config, restored
from gourmet.measure.sweep import OnStep
from gourmet.measure.tables import Table
from gourmet.measure.task import Addresses, MeasureOptions, Workload
from gourmet.reports.table import markdown
from gourmet.repository.config_change import Change
from gourmet.runtime.instances import parameter
from gourmet.runtime.manifest import MANIFEST, sha256
from gourmet.runtime.openvino_network import ENGINE_PARAMETER, ONNX_RUNTIME, OPENVINO
from gourmet.serving.preflight import free_ports
from gourmet.serving.triton_server import TritonOptions, TritonServer

FORMATS: Final = ("ts-script", "ts-trace", "onnx")
# As in the example's tables; its throughput is of pictures, one a row.
_HEADINGS: Final = (
    "Throughput (img/s)",
    "Avg. Latency (ms)",
    "90% Latency (ms)",
    "95% Latency (ms)",
    "99% Latency (ms)",
)
# A request that would wait longer tells nothing but that it waits.
_LONGEST_WAIT_S: Final = 30.0
_NOISE: Final = 0.95
# What Triton has to leave of an engine's own throughput.
_WORTH: Final = 0.93
_STATIC: Final = "static"
_BARE: Final = ".without-server.json"
_BUDGETS_MS: Final = tuple(factor * 10**power for power in range(5) for factor in (1, 2, 5))


# Pictures a second without a server, window by window, by an arm and the size of its batch.
Rates = Mapping[tuple[str, int], Sequence[float]]


@dataclass(frozen=True)
class Plan:
    """What is deployed where, and under which loads it is measured."""

    repository: Path
    log: Path
    architecture: str
    checkpoint: Path | None
    formats: tuple[str, ...]
    half: bool
    batches: tuple[int, ...]
    levels: tuple[int, ...]
    engines: tuple[int, ...]
    delays_us: tuple[int, ...]
    rows: int

    def model(self, form: str) -> str:
        """As the example names them."""
        return f"model_{form.replace('-', '_')}{'_fp16' if self.half else ''}"

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(map(self.model, self.formats))

    @property
    def ways(self) -> dict[str, tuple[str, str | None]]:
        """The formats by name, and what runs each on a CPU; ONNX files are run by either of two."""
        by_engine = {
            "onnx": {"onnx": ("onnx", ONNX_RUNTIME), "onnx by OpenVINO": ("onnx", OPENVINO)},
        }
        found: dict[str, tuple[str, str | None]] = {}
        for form in self.formats:
            found |= by_engine.get(form, {form: (form, None)})
        return found

    def arms(self) -> Iterator[Arm]:
        """A load each."""
        for way, (form, engine) in self.ways.items():
            model = self.model(form)
            for batch in self.batches:
                change = Change(instances=1, dynamic_batching=False, engine=engine)
                yield Arm(f"{way} {_STATIC}", change, (LoadSpec(model, batch=batch, protocol="grpc"),))
            for engines in self.engines:
                for delay in self.delays_us:
                    change = Change(instances=engines, dynamic_batching=True, delay_us=delay, engine=engine)
                    name = f"{way} dynamic, {engines} engine{'s' if engines > 1 else ''}"
                    name += f", delay {delay / 1000:g} ms" if delay else ""
                    for level in self.levels:
                        yield Arm(name, change, (LoadSpec(model, level, protocol="grpc"),))


def run(
    plan: Plan,
    target: Addresses | None,
    options: MeasureOptions,
    *,
    command: str = "",
    on_step: OnStep = lambda _share, _words: None,
) -> Bench:
    """Deploy and measure what is not there yet; without a `target`, on a server of its own."""
    for place, form in enumerate(plan.formats):
        on_step(0.1 * place / len(plan.formats), f"deploying {form}")
        _deploy(plan, form)
    arms = list(plan.arms())
    files = [plan.log / "points" / f"{_key(plan, arm, options)}.json" for arm in arms]
    points: list[Point] = []
    refused: list[Rejection] = []
    bare: dict[tuple[str, int], list[float]] = {}
    with _served(plan, target, needed=not all(path.exists() for path in files)) as served:
        for place, (arm, path) in enumerate(zip(arms, files, strict=True)):
            (load,) = arm.loads
            share = 0.1 + 0.9 * place / len(arms)
            path.parent.mkdir(parents=True, exist_ok=True)
            if arm.name.endswith(_STATIC):
                on_step(share, f"{arm.name} {load}, without a server")
                without = path.with_suffix(_BARE)
                if served and not without.exists():
                    without.write_text(json.dumps(served.bare(arm, options)))
                bare[arm.name, load.batch] = json.loads(without.read_text())
            on_step(share, f"{arm.name} {load}")
            if path.exists():
                points += results.read(path).points
            elif (waits := _wait_s(points, arm)) > _LONGEST_WAIT_S:
                name = f"{arm.name} {load}"
                refused.append(Rejection(name, f"not measured: a request would wait for {waits:.0f} s"))
            elif served:
                found, not_these = served.measure(arm, options)
                points, refused = [*points, *found], [*refused, *not_these]
                if found:
                    kept = sweep.bench(arm.name, command, "", found)
                    path.write_text(results.as_json(kept), encoding="utf-8")
    precision = "half" if plan.half else "single"
    weights = plan.checkpoint.name if plan.checkpoint else "at random"
    return sweep.bench(
        f"{plan.architecture}, {precision} precision",
        command,
        f"{plan.rows} rows of noise",
        points,
        refused,
        about=f"{plan.architecture} with weights {weights}, over gRPC. Static batching: one request at a "
        "time, of so many pictures. Dynamic batching: so many requests at a time of one picture each.",
        findings=tuple(_findings(plan, points)),
        goals=tuple(_goals(plan, points, bare)),
    )


def save(bench: Bench, folder: Path) -> Path:
    """Its page, its CSV and its JSON, and the example's tables as Markdown."""
    storage.save(bench, folder, draw)
    write_markdown(bench, folder / "tables.md")
    return folder


def write_markdown(bench: Bench, path: Path) -> None:
    """The page `path`, and its picture beside it."""
    picture = path.with_suffix(".svg")
    picture.write_text(charts.latency_against_throughput(bench.points))
    text = storage.render(
        "measure/deployer.txt",
        bench=bench,
        chosen=choices(bench.points),
        examples=tables(bench.points),
        picture=picture.name,
        markdown=markdown,
    )
    path.write_text(text, encoding="utf-8")


def draw(bench: Bench) -> str:
    return storage.render(
        "measure/deployer.html",
        bench=bench,
        ranked=ranking(bench.points),
        chosen=choices(bench.points),
        examples=tables(bench.points),
        **vars(bench),
    )


def tables(points: Sequence[Point]) -> list[tuple[str, Table]]:
    """A table like the example's for each arm."""
    found: list[tuple[str, Table]] = []
    for arm in dict.fromkeys(point.arm for point in points):
        mine = [point for point in points if point.arm == arm]
        first = "Batch size" if arm.endswith(_STATIC) else "Concurrent requests"
        found.append((arm, ((first, *_HEADINGS), [(_load(point), *_cells(point)) for point in mine])))
    return found


def ranking(points: Sequence[Point]) -> Table:
    """Every arm at its best, the fastest first."""
    best = [
        max((point for point in points if point.arm == arm), key=_rate)
        for arm in dict.fromkeys(point.arm for point in points)
    ]
    rows = [(point.name, *_cells(point)) for point in sorted(best, key=_rate, reverse=True)]
    return ("configuration, at its best load", *_HEADINGS), rows


def choices(points: Sequence[Point]) -> Table:
    """For a latency that 95 of 100 requests are to keep: the most pictures a second, and how."""
    rows: list[tuple[str, ...]] = []
    for budget in _BUDGETS_MS:
        within = [point for point in points if point.latency_ms.p95 <= budget]
        if within and (not rows or rows[-1][1] != max(within, key=_rate).name):
            best = max(within, key=_rate)
            rows.append((f"{budget} ms", best.name, f"{_rate(best):.1f}", f"{best.latency_ms.p95:.2f}"))
    return ("95 % of requests within", "take", "img/s", "95% Latency (ms)"), rows


def _rate(point: Point) -> float:
    return point.rows_per_s.value


def _load(point: Point) -> str:
    return f"{point.load.batch if point.arm.endswith(_STATIC) else point.load.level:g}"


def _cells(point: Point) -> tuple[str, ...]:
    took = point.latency_ms
    return (f"{_rate(point):.1f}", *(f"{ms:.2f}" for ms in (took.mean, took.p90, took.p95, took.p99)))


def _findings(plan: Plan, points: Sequence[Point]) -> Iterator[Statement]:
    """Whether Triton's batches are as good as a client's of the same size."""
    for way in plan.ways:
        static = {p.load.batch: p for p in points if p.arm == f"{way} {_STATIC}"}
        for size in sorted(static.keys() & set(plan.levels)):
            dynamic = [p for p in points if p.arm.startswith(f"{way} dynamic") and int(p.load.level) == size]
            if dynamic:
                look = _as_good(max(dynamic, key=_rate), static[size])
                yield claim(
                    f"{way}: {size} requests of one picture are as fast as one request of {size}", look
                )


def _goals(plan: Plan, points: Sequence[Point], bare: Rates) -> Iterator[Requirement]:
    """What Triton costs each format, by the size of a batch: both sides at their best, of two engines too."""
    for form in plan.formats:
        arms = {f"{way} {_STATIC}" for way, (of, _) in plan.ways.items() if of == form}
        ratios = []
        for size in plan.batches:
            static = [_rate(point) for point in points if point.arm in arms and point.load.batch == size]
            if static:
                alone = max(fmean(rates) for (arm, of), rates in bare.items() if arm in arms and of == size)
                ratios.append(max(static) / alone)
        if ratios:
            words = f"{form}: through Triton ÷ without a server, by the size of the batch"
            yield Requirement(words, tuple(ratios), _WORTH)


def _as_good(dynamic: Point, static: Point) -> Callable[[], Found]:
    gained = times_the_throughput(dynamic, static)
    figures = (
        f"{_rate(dynamic):.1f} against {_rate(static):.1f} img/s, {gained:.2f} times, with {dynamic.arm} in "
        f"batches of {dynamic.executed_rows:.1f}, {dynamic.split_ms.network:.1f} ms a request outside Triton"
    )
    return lambda: (above(gained, _NOISE), figures)


def _wait_s(points: Sequence[Point], arm: Arm) -> float:
    """How long a request of the arm would take at the best rate that it had so far."""
    (load,) = arm.loads
    rates = [_rate(point) for point in points if point.arm == arm.name]
    return load.level * load.batch / max(rates) if rates else 0.0


def _key(plan: Plan, arm: Arm, options: MeasureOptions) -> str:
    """The name of a point's file, which is another one where anything about it is."""
    (load,) = arm.loads
    manifest = plan.repository / load.model / "1" / MANIFEST
    parts = (arm, options, plan.rows, sha256(manifest))
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:10]
    return f"{arm.name} {load} {digest}".replace(" ", "-").replace(",", "").replace("=", "")


def _deploy(plan: Plan, form: str) -> None:
    from gourmet.deploying.deploy import deploy
    from gourmet.tasks.classification.deployer.deployment import DeployerOptions, Serving, is_there, made

    serving = Serving(max_batch_size=max(plan.batches))
    options = DeployerOptions(
        plan.model(form), 1, form, plan.architecture, plan.checkpoint, 2, plan.half, serving
    )
    if not is_there(options, plan.repository):
        ready = made(options, plan.repository, lambda _share, _words="": None)
        deploy(ready.deployment, form, plan.repository, 1)


class _Served:
    """The models on a server, whose configs are changed arm by arm."""

    def __init__(self, plan: Plan, asked: Addresses, running: dict[str, Config]) -> None:
        self._plan, self._asked, self._running = plan, asked, running
        self._workloads: dict[str, Workload] = {}
        self._loaded: dict[str, Config] = {}

    def measure(self, arm: Arm, options: MeasureOptions) -> tuple[list[Point], list[Rejection]]:
        config = config_of(self._running[arm.model], arm)
        if self._loaded.get(arm.model) != config:
            load_config(self._asked, arm.model, config)
            self._loaded[arm.model] = config
        return sweep.run(self._workload(arm.model), arm.loads, self._asked, options, arm.name)

    def bare(self, arm: Arm, options: MeasureOptions) -> list[float]:
        """Pictures a second by window, without the server, which has nothing to do meanwhile."""
        from gourmet.tasks.classification.deployer.formats import FORMATS

        workload, batch = self._workload(arm.model), arm.loads[0].batch
        which = [row % len(workload.rows) for row in range(batch)]
        feeds = {given.name: workload.rows.tensor(given, which) for given in workload.rows.inputs}
        config = config_of(self._running[arm.model], arm)
        file = next(form.file for form in FORMATS.values() if form.backend == config["backend"])
        path = self._plan.repository / arm.model / "1" / file
        run = without_server.opened(path, parameter(config, ENGINE_PARAMETER), feeds)
        outputs = workload.answers.expected[0]
        for place, row in enumerate(which):
            answer = dict(zip(outputs, (values[place] for values in run()), strict=True))
            workload.answers.check_row(row, answer, "without a server")
        return [batch * rate for rate in without_server.runs_per_s(run, options)]

    def _workload(self, model: str) -> Workload:
        if model not in self._workloads:
            self._workloads[model] = sweep.prepare(model, self._asked, DataSource(self._plan.rows))
        return self._workloads[model]


@contextmanager
def _served(plan: Plan, target: Addresses | None, *, needed: bool) -> Iterator[_Served | None]:
    """The models on a server; none is started unless it is `needed`."""
    if not needed:
        yield None
        return
    with (
        _server(plan) if target is None else _loaded(plan, target) as asked,
        restored(asked, plan.models) as running,
    ):
        yield _Served(plan, asked, running)


@contextmanager
def _server(plan: Plan) -> Iterator[Addresses]:
    http, grpc, metrics = free_ports(3)
    options = TritonOptions((plan.repository,), http_port=http, grpc_port=grpc, metrics_port=metrics)
    server = TritonServer(options, lambda _line: None)
    try:
        server.start(plan.models)
        server.wait_until_live()
        yield Addresses(options.http_url, options.grpc_url)
    finally:
        server.close()


@contextmanager
def _loaded(plan: Plan, target: Addresses) -> Iterator[Addresses]:
    from gourmet.deploying import deploy

    for model in plan.models:
        deploy.load(target.url, model)
    yield target
