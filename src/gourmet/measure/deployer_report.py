"""What a benchmark of the deployer's example shows: its tables, a ranking, and what to take for a latency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gourmet.measure import charts, storage
from gourmet.measure.results import Bench, Point
from gourmet.measure.tables import Table
from gourmet.reports.table import markdown

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


def save(bench: Bench, folder: Path) -> Path:
    """Its page, its CSV and its JSON, and the example's tables as Markdown."""
    storage.save(bench, folder, "measure/deployer.html", **_shown(bench.points))
    write_markdown(bench, folder / "tables.md")
    return folder


def write_markdown(bench: Bench, path: Path) -> None:
    """The page `path`, and its picture beside it."""
    picture = path.with_suffix(".svg")
    picture.write_text(charts.latency_against_throughput(bench.points))
    about = {"bench": bench, "picture": picture.name, "markdown": markdown}
    text = storage.render("measure/deployer.txt", **about, **_shown(bench.points))
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
