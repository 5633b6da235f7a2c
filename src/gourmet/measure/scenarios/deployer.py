"""The automated benchmark of NVIDIA's deployer example: formats, static and dynamic batching, engine counts.

Every arm is kept as soon as it is measured, so that a benchmark that was stopped goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gourmet.measure import report, scenario, without_server
from gourmet.measure.comparison import Found, above, claim, times_the_throughput
from gourmet.measure.inputs import DataSource
from gourmet.measure.report import Table
from gourmet.measure.results import Bench, LoadSpec, Point, Requirement, Statement
from gourmet.measure.scenario import Arm, Points, Scenario, own_server
from gourmet.measure.sweep import OnStep
from gourmet.measure.task import Addresses, MeasureOptions, Workload
from gourmet.measure.without_server import LayoutResult
from gourmet.reports.table import markdown
from gourmet.repository.config_change import Change
from gourmet.repository.lock import changing
from gourmet.runtime.manifest import MANIFEST, sha256

FORMATS: Final = ("ts-script", "ts-trace", "onnx")
_NOISE: Final = 0.95
# What Triton has to leave of an engine's own throughput.
_WORTH: Final = 0.93
STATIC: Final = "static"
# As in the example's tables; its throughput is of pictures, one a row.
_HEADINGS: Final = (
    "Throughput (img/s)",
    "Avg. Latency (ms)",
    "90% Latency (ms)",
    "95% Latency (ms)",
    "99% Latency (ms)",
)
_BUDGETS_MS: Final = tuple(factor * 10**power for power in range(5) for factor in (1, 2, 5))


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

    def results(self, options: MeasureOptions) -> Path:
        """Where this run's results are stored; another plan has a folder of its own."""
        about = repr((self._deployed, list(self.arms()), options, self.rows))
        return self.log / "points" / hashlib.sha256(about.encode()).hexdigest()[:10]

    @property
    def _deployed(self) -> str:
        return " ".join(sha256(self.repository / model / "1" / MANIFEST) for model in self.models)

    @property
    def static(self) -> dict[str, str]:
        """The arms without batching by name, and the format of each."""
        return {f"{form} {STATIC}": form for form in self.formats}

    def arms(self) -> Iterator[Arm]:
        for form in self.formats:
            model = self.model(form)
            change = Change(instances=1, dynamic_batching=False)
            loads = tuple(LoadSpec(model, batch=batch, protocol="grpc") for batch in self.batches)
            yield Arm(f"{form} {STATIC}", change, loads)
            loads = tuple(LoadSpec(model, level, protocol="grpc") for level in self.levels)
            for engines in self.engines:
                for delay in self.delays_us:
                    change = Change(instances=engines, dynamic_batching=True, delay_us=delay)
                    name = f"{form} dynamic, {engines} engine{'s' if engines > 1 else ''}"
                    name += f", delay {delay / 1000:g} ms" if delay else ""
                    yield Arm(name, change, loads)

    def scenario(self, target: Addresses | None, options: MeasureOptions) -> Scenario:
        """The scenario of what was deployed; without a `target`, on a server of its own."""
        precision = "half" if self.half else "single"
        weights = self.checkpoint.name if self.checkpoint else "at random"
        return Scenario(
            f"deployer of {self._deployed}",
            f"{self.architecture}, {precision} precision",
            f"{self.architecture} with weights {weights}, over gRPC. Static batching: one request at a "
            "time, of so many pictures. Dynamic batching: so many requests at a time of one picture each.",
            tuple(self.arms()),
            notes=lambda points: list(_findings(self, points.merged)),
            goals=lambda points: list(_goals(self, points)),
            server=None if target else lambda: own_server([self.repository], self.models),
            beside=lambda arm, workloads: _bare(self, arm, workloads, options),
        )


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
        _deploy(plan, form, target)
    chosen = plan.scenario(target, options)
    return scenario.run(
        chosen,
        target or Addresses(""),
        options,
        DataSource(plan.rows),
        command=command,
        resume=plan.results(options),
        on_step=lambda share, words: on_step(0.1 + 0.9 * share, words),
    )


def _findings(plan: Plan, points: Sequence[Point]) -> Iterator[Statement]:
    """Whether Triton's batches are as good as a client's of the same size."""
    for form in plan.formats:
        static = {p.load.batch: p for p in points if p.arm == f"{form} {STATIC}"}
        for size in sorted(static.keys() & set(plan.levels)):
            dynamic = [p for p in points if p.arm.startswith(f"{form} dynamic") and int(p.load.level) == size]
            if dynamic:
                look = _as_good(max(dynamic, key=rate), static[size])
                yield claim(
                    f"{form}: {size} requests of one picture are as fast as one request of {size}", look
                )


def _goals(plan: Plan, points: Points) -> Iterator[Requirement]:
    """What Triton costs each format, by the size of a batch."""
    alone = dict(zip(plan.static, points.beside, strict=False))
    for form in plan.formats:
        arm, ratios = f"{form} {STATIC}", []
        for place, size in enumerate(plan.batches):
            if served := [p for p in points.merged if p.arm == arm and p.load.batch == size]:
                ratios.append(max(map(rate, served)) / (size * alone[arm][place].runs_per_s))
        if ratios:
            words = f"{form}: through Triton ÷ without a server, by the size of the batch"
            yield Requirement(words, tuple(ratios), _WORTH)


def _as_good(dynamic: Point, static: Point) -> Callable[[], Found]:
    gained = times_the_throughput(dynamic, static)
    figures = (
        f"{rate(dynamic):.1f} against {rate(static):.1f} img/s, {gained:.2f} times, with {dynamic.arm} in "
        f"batches of {dynamic.executed_rows:.1f}, {dynamic.split_ms.network:.1f} ms a request outside Triton"
    )
    return lambda: (above(gained, _NOISE), figures, gained)


def _deploy(plan: Plan, form: str, target: Addresses | None) -> None:
    from gourmet.deploying.deploy import deploy, load
    from gourmet.tasks.classification.deployer.deployment import DeployerOptions, is_there, made

    options = DeployerOptions(
        form,
        plan.architecture,
        plan.checkpoint,
        plan.model(form),
        batch_size=2,
        half=plan.half,
        max_batch_size=max(plan.batches),
    )
    with changing(plan.repository, lambda _words: None):
        if not is_there(options, plan.repository):
            ready = made(options, plan.repository, lambda _share, _words="": None)
            deploy(ready.deployment, form, plan.repository, 1)
        if target:
            load(target.url, options.model)


def _bare(
    plan: Plan, arm: Arm, workloads: Mapping[str, Workload], options: MeasureOptions
) -> list[LayoutResult]:
    """Each size of a static batch, without the server, which has nothing to do meanwhile."""
    if arm.name not in plan.static:
        return []
    workload = workloads[arm.model]
    (path,) = (plan.repository / arm.model / "1").glob("model.*")
    found = []
    for size in plan.batches:
        which = [row % len(workload.rows) for row in range(size)]
        feeds = {given.name: workload.rows.tensor(given, which) for given in workload.rows.inputs}
        run = without_server.opened(path, feeds)
        for place, row in enumerate(which):
            values = [each[place] for each in run()]
            answer = dict(zip(workload.answers.expected[0], values, strict=True))
            workload.answers.check_row(row, answer, "without a server")
        found.append(without_server.all_cpus(run, options))
    return found


# What is shown of it


def save(bench: Bench, folder: Path) -> Path:
    """Its page, its CSV and its JSON, and the example's tables as Markdown."""
    report.save(bench, folder, "measure/deployer.html", **_shown(bench.points))
    write_markdown(bench, folder / "tables.md")
    return folder


def write_markdown(bench: Bench, path: Path) -> None:
    """The page `path`, and its picture beside it."""
    picture = path.with_suffix(".svg")
    picture.write_text(report.latency_against_throughput(bench.points))
    about = {"bench": bench, "picture": picture.name, "markdown": markdown}
    text = report.render("measure/deployer.txt", **about, **_shown(bench.points))
    path.write_text(text, encoding="utf-8")


def _shown(points: Sequence[Point]) -> dict[str, Any]:
    return {"chosen": choices(points), "ranked": ranking(points), "examples": tables(points)}


def tables(points: Sequence[Point]) -> list[tuple[str, Table]]:
    """A table like the example's for each arm."""
    found: list[tuple[str, Table]] = []
    for arm in dict.fromkeys(point.arm for point in points):
        mine = [point for point in points if point.arm == arm]
        first = "Batch size" if arm.endswith(STATIC) else "Concurrent requests"
        found.append((arm, ((first, *_HEADINGS), [(_load(point), *_cells(point)) for point in mine])))
    return found


def ranking(points: Sequence[Point]) -> Table:
    """Every arm at its best, the fastest first."""
    best = [
        max((point for point in points if point.arm == arm), key=rate)
        for arm in dict.fromkeys(point.arm for point in points)
    ]
    rows = [(point.name, *_cells(point)) for point in sorted(best, key=rate, reverse=True)]
    return ("configuration, at its best load", *_HEADINGS), rows


def choices(points: Sequence[Point]) -> Table:
    """For a latency that 95 of 100 requests are to keep: the most pictures a second, and how."""
    rows: list[tuple[str, ...]] = []
    for budget in _BUDGETS_MS:
        within = [point for point in points if point.latency_ms.p95 <= budget]
        if within and (not rows or rows[-1][1] != max(within, key=rate).name):
            best = max(within, key=rate)
            rows.append((f"{budget} ms", best.name, f"{rate(best):.1f}", f"{best.latency_ms.p95:.2f}"))
    return ("95 % of requests within", "take", "img/s", "95% Latency (ms)"), rows


def rate(point: Point) -> float:
    return point.rows_per_s.value


def _load(point: Point) -> str:
    return f"{point.load.batch if point.arm.endswith(STATIC) else point.load.level:g}"


def _cells(point: Point) -> tuple[str, ...]:
    took = point.latency_ms
    return (f"{rate(point):.1f}", *(f"{ms:.2f}" for ms in (took.mean, took.p90, took.p95, took.p99)))
