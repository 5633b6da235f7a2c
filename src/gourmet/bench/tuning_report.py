"""Write a search to disk, and show it on a page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gourmet.bench.report import folder_name, render
from gourmet.bench.results import Point
from gourmet.bench.tuning import PRESENT, Tuning, nearest
from gourmet.reports import chart
from gourmet.reports.chart import Series, lines
from gourmet.triton_client.model_config import summary

_OTHER, _LIMIT = "#9aa0a6", "#b3261e"
_CONFIG: Final = "config.pbtxt"


def save(tuning: Tuning, folder: Path | None = None) -> Path:
    """Write page, JSON and, if a config is recommended, its config.pbtxt."""
    folder = folder or Path("runs", "tune", folder_name(tuning.bench.when, tuning.request.model))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tune.json").write_text(tuning.as_json())
    page = render(
        "bench/tuning_report.html",
        **vars(tuning.bench),
        bench=tuning.bench,
        tuning=tuning,
        served=served(tuning),
        picture=pareto(tuning),
        tried=tried(tuning),
    )
    (folder / "index.html").write_text(page)
    (folder / _CONFIG).unlink(missing_ok=True)
    if pbtxt := tuning.pbtxt():
        (folder / _CONFIG).write_text(pbtxt)
    return folder


def tried(tuning: Tuning) -> list[Point]:
    """Return a point for every measured config, at the load at which it would run, the best first."""
    request = tuning.request
    measured = [trial.points for trial in tuning.trials if trial.points]
    ranked = sorted(measured, key=request.rank, reverse=True)
    return [request.best(points) or nearest(points) for points in ranked]


def served(tuning: Tuning) -> str:
    now = tuning.trial(tuning.best if tuning.applied else PRESENT)
    config = "now has the best config" if tuning.applied else "has its earlier config again"
    return f"The server {config}: {summary(now.config)}."


def front(points: Iterable[Point]) -> list[Point]:
    """Return the Pareto front by throughput: no other point has both more rows a second and a lower p95."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (-point.rows_per_s.value, point.latency_ms.p95)):
        if not best or point.latency_ms.p95 < best[-1].latency_ms.p95:
            best.append(point)
    return best[::-1]


def pareto(tuning: Tuning) -> chart.Drawing:
    """Draw throughput to the right and p95 upwards: the bottom right is best."""
    points = [*(point for trial in tuning.trials for point in trial.points), *tuning.sides]
    best, limit = front(points), tuning.request.p95_ms or 0.0
    # Points far above the front would press it flat, so only the two configs in question stay.
    kept = [point for point in points if point.arm in (tuning.best, PRESENT)]
    highest = max(
        2.5 * limit, *(2.5 * point.latency_ms.p95 for point in best), *(p.latency_ms.p95 for p in kept)
    )
    shown = [point for point in points if point.latency_ms.p95 <= highest]
    drawn = [Series("", [_place(point) for point in best], chart.INK)]
    colours = {"tried": _OTHER, tuning.best: chart.COLOURS[2], PRESENT: chart.COLOURS[1]}
    for name, colour in colours.items():
        mine = [point for point in shown if (point.arm if point.arm in colours else "tried") == name]
        hints = ["{}: {:.4g} rows/s, p95 {:.3g} ms".format(point.name, *_place(point)) for point in mine]
        radii = [8.0 if point.turns > 1 else 4.0 for point in mine]
        drawn.append(Series(name, [*map(_place, mine)], colour, joined=False, radii=radii, hints=hints))
    fastest = max(point.rows_per_s.value for point in shown)
    if limit:
        ends = [(0.0, limit), (fastest, limit)]
        drawn.append(Series(f"goal: p95 of at most {limit:g} ms", ends, _LIMIT))
    return lines(
        drawn,
        f"p95 against throughput of every config of {tuning.request.model}",
        ("rows per second", "p95, ms"),
        x_range=(0, 1.05 * fastest),
        y_range=(0, max(limit, *(point.latency_ms.p95 for point in shown))),
        size=(880.0, 420.0),
    )


def _place(point: Point) -> tuple[float, float]:
    return point.rows_per_s.value, point.latency_ms.p95
