"""A search on disk and on a page: the sentence, the picture, the table, the config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from gourmet.config_change import summary
from gourmet.measure.results import Point
from gourmet.measure.storage import folder_name, render
from gourmet.reports import chart
from gourmet.reports.chart import Series, lines
from gourmet.tuning.results import PRESENT, Tuning, as_json, nearest

HEADINGS: Final = (
    *("config", "best at", "rows/s", "p95 ms", "queue ms", "rows per batch", "cores", "measured", ""),
)
# What waits far above the front would press it flat against the bottom of the picture.
_SHOWN: Final = 2.5
_OTHER, _LIMIT = "#9aa0a6", "#b3261e"


def save(tuning: Tuning, folder: Path | None = None) -> Path:
    """Write page, picture, JSON and, where there is one to recommend, the config.pbtxt."""
    folder = folder or Path("runs", "tune", folder_name(tuning.bench.when, tuning.wish.model))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tune.json").write_text(as_json(tuning))
    (folder / "pareto.svg").write_text(pareto(tuning))
    (folder / "index.html").write_text(_page(tuning))
    if pbtxt := tuning.pbtxt():
        (folder / "config.pbtxt").write_text(pbtxt)
    else:
        (folder / "config.pbtxt").unlink(missing_ok=True)
    return folder


def rows(tuning: Tuning) -> Iterator[tuple[str, ...]]:
    """Every config at the load that it would be run at, the best first."""
    wish = tuning.wish
    for trial in sorted(tuning.trials, key=lambda each: wish.rank(each.points), reverse=True):
        if trial.points:
            marks = ["recommended"] if tuning.recommended is trial else []
            yield _row(tuning, wish.best(trial.points) or nearest(trial.points), trial.stage, marks)
        else:
            yield (trial.name, *("",) * 6, trial.stage, "Rejected")


def duel_rows(tuning: Tuning) -> list[tuple[str, ...]]:
    sides = [tuning.duel.ours, tuning.duel.theirs] if tuning.duel else []
    return [_row(tuning, point, f"{point.turns} turns") for point in sides]


def _row(tuning: Tuning, point: Point, measured: str, marks: Sequence[str] = ()) -> tuple[str, ...]:
    cores = point.usage.server_cores
    return (
        point.arm,
        str(point.demand),
        f"{point.rows_per_s.value:.4g}",
        f"{point.latency_ms.p95:.3g}",
        f"{point.split_ms.queue:.3g}",
        f"{point.executed_rows:.2f}",
        "" if cores is None else f"{cores:.2f}",
        measured,
        ", ".join([*marks, *([] if tuning.wish.keeps(point) else ["misses the goal"])]),
    )


def front(points: Iterable[Point]) -> list[Point]:
    """The points for which no other has both more rows a second and a lower p95, by throughput."""
    found: list[Point] = []
    for point in sorted(points, key=lambda each: (-each.rows_per_s.value, each.latency_ms.p95)):
        if not found or point.latency_ms.p95 < found[-1].latency_ms.p95:
            found.append(point)
    return found[::-1]


def pareto(tuning: Tuning) -> chart.Drawing:
    """Throughput to the right, p95 upwards: the closer to the bottom right, the better."""
    points = [point for trial in tuning.trials for point in trial.points]
    duel = [tuning.duel.ours, tuning.duel.theirs] if tuning.duel else []
    best, limit = front(points), tuning.wish.p95_ms or 0.0
    highest = _SHOWN * max(limit, *(point.latency_ms.p95 for point in (*best, *duel)))
    shown = [point for point in (*points, *duel) if point.latency_ms.p95 <= highest]
    fastest = max(point.rows_per_s.value for point in shown)
    top = max(limit, *(point.latency_ms.p95 for point in shown))
    colours = {"tried": _OTHER, tuning.best: chart.COLOURS[2], PRESENT: chart.COLOURS[1]}
    drawn = [Series("", [_place(point) for point in best], chart.INK)]
    for name, colour in colours.items():
        mine = [point for point in shown if (point.arm if point.arm in colours else "tried") == name]
        hints = ["{}: {:.4g} rows/s, p95 {:.3g} ms".format(point.name, *_place(point)) for point in mine]
        says = [f"c={point.demand.level:g}" for point in mine if name != "tried"]
        radii = [8.0 if point.turns > 1 else 3.0 if name == "tried" else 4.5 for point in mine]
        places = [_place(point) for point in mine]
        drawn.append(Series(name, places, colour, joined=False, radii=radii, hints=hints, says=says))
    if limit:
        ends = [(0.0, limit), (fastest, limit)]
        drawn.append(Series(f"goal: p95 of at most {limit:g} ms", ends, _LIMIT))
    return lines(
        drawn,
        f"p95 against throughput of every config of {tuning.wish.model}",
        ("rows per second", "p95, ms"),
        x_range=(0, 1.05 * fastest),
        y_range=(0, top),
        size=(880.0, 420.0),
    )


def _place(point: Point) -> tuple[float, float]:
    return point.rows_per_s.value, point.latency_ms.p95


def _page(tuning: Tuning) -> str:
    return render(
        "tuning/report.html",
        **vars(tuning.bench),
        bench=tuning.bench,
        says=tuning.sentence,
        tuning=tuning,
        served=served(tuning),
        picture=pareto(tuning),
        headings=HEADINGS,
        rows=rows(tuning),
        duel=duel_rows(tuning),
    )


def served(tuning: Tuning) -> str:
    now = tuning.trial(tuning.best if tuning.applied else PRESENT)
    told = "The server now has the best config" if tuning.applied else "The server has the config of before"
    return f"{told}: {summary(now.config)}."
