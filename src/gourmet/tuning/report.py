"""Describe a search in a sentence, write it to disk, and show it on a page.

The throughput of a model is the number of executions that run at a time, divided by what one costs a
row. So of two configs, one is ahead by the first, by the second, or by both; Triton's own statistics
tell how much of the ratio each makes, which is what the sentence says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gourmet.client.model_config import summary
from gourmet.measure.comparison import below
from gourmet.measure.report import folder_name, render
from gourmet.measure.results import Point
from gourmet.reports import chart
from gourmet.reports.chart import Series, lines
from gourmet.tuning.results import (
    PRESENT,
    Confirmation,
    Trial,
    TuneRequest,
    Tuning,
    Verdict,
    as_json,
    nearest,
)

_OTHER, _LIMIT = "#9aa0a6", "#b3261e"
# A part that makes less of the difference than this is not named.
_WORTH_NAMING: Final = 0.03


def sentence(request: TuneRequest, verdict: Verdict, best: Trial, confirmation: Confirmation | None) -> str:
    if verdict == "out of reach":
        return _out_of_reach(request, best)
    if verdict == "undecided":
        return (
            f"The present config stays: “{best.name}” could not be compared with it, since too few turns "
            "could be believed; wait until nothing else runs here, or use a longer --window."
        )
    if confirmation is None:
        return "The present config stays: no other could be measured."
    ours, theirs = confirmation.ours, confirmation.theirs
    gain = f"{confirmation.gain:.2f} times"
    text = f"“{best.name}” reaches {_reached(ours)}"
    if request.kind == "throughput":
        text += f", {gain} the throughput of the present config ({_reached(theirs)})"
    else:
        text += f"; the p95 of the present config is {gain} as long ({_reached(theirs)})"
    if not confirmation.won:
        # Noise is only what the interval does not exclude.
        why_not = "which is worse" if below(confirmation.gain, 1) else "which may be noise"
        why_not = why_not if confirmation.keeps else "its p95 does not keep the goal"
        return f"The present config stays: the best found, {text}, {why_not}."
    if confirmation.only_ours:
        text += ", which misses the goal in every turn"
    return f"{text}, because {because(ours, theirs, request.cpus)}."


def because(ours: Point, theirs: Point, cpus: int) -> str:
    """Explain by the figures why one point is ahead of the other."""
    (parallel, cost), (their_parallel, their_cost) = _parallel_and_cost(ours), _parallel_and_cost(theirs)
    busy, mine, other = "", ours.usage.server_cores, theirs.usage.server_cores
    if mine is not None and other is not None:
        busy = f" ({mine:.1f} of {cpus} cores busy instead of {other:.1f})"
    queue, their_queue = ours.split_ms.queue, theirs.split_ms.queue
    # How much of the difference each makes.
    parts = {
        f"{parallel:.1f} executions run at a time instead of {their_parallel:.1f}{busy}": (
            math.log(parallel / their_parallel)
        ),
        f"a row costs {cost:.3g} ms of execution instead of {their_cost:.3g}, in batches of "
        f"{ours.executed_rows:.1f} rows instead of {theirs.executed_rows:.1f}": math.log(their_cost / cost),
        f"a request waits {queue:.3g} ms in the queue instead of {their_queue:.3g}": (
            (their_queue - queue) / theirs.latency_ms.mean
        ),
    }
    most_first = sorted(parts, key=parts.__getitem__, reverse=True)
    named = [words for words in most_first if parts[words] > _WORTH_NAMING]
    return " and ".join(named[:2]) or f"of nothing that the figures show: {', '.join(most_first)}"


def _parallel_and_cost(point: Point) -> tuple[float, float]:
    """Return the mean number of concurrent executions, and the milliseconds that a row costs in them."""
    rows = sum(size.rows * size.executions for size in point.batches)
    # Triton counts microseconds, of which a model that does nothing takes none.
    cost = max(1e-6, sum(size.infer_ms * size.executions for size in point.batches) / max(rows, 1))
    return point.rows_per_s.value * cost / 1000, cost


def _reached(point: Point) -> str:
    return f"{point.rows_per_s.value:.4g} rows/s with a p95 of {point.latency_ms.p95:.3g} ms at {point.load}"


def _out_of_reach(request: TuneRequest, best: Trial) -> str:
    point = nearest(best.points)
    name = "the present one" if best.name == PRESENT else f"“{best.name}”"
    phase, ms = max(vars(point.split_ms).items(), key=lambda part: float(part[1]))
    return (
        f"No config that was tried reaches a p95 of {request.p95_ms:g} ms; the nearest is {name}, which "
        f"reaches {_reached(point)}; {ms / point.latency_ms.mean:.0%} of its mean is {phase}."
    )


def save(tuning: Tuning, folder: Path | None = None) -> Path:
    """Write page, picture, JSON and, if a config is recommended, its config.pbtxt."""
    folder = folder or Path("runs", "tune", folder_name(tuning.bench.when, tuning.request.model))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tune.json").write_text(as_json(tuning))
    (folder / "pareto.svg").write_text(pareto(tuning))
    page = render(
        "tuning/report.html",
        **vars(tuning.bench),
        bench=tuning.bench,
        says=tuning.sentence,
        tuning=tuning,
        served=served(tuning),
        picture=pareto(tuning),
        tried=tried(tuning),
    )
    (folder / "index.html").write_text(page)
    if pbtxt := tuning.pbtxt():
        (folder / "config.pbtxt").write_text(pbtxt)
    else:
        (folder / "config.pbtxt").unlink(missing_ok=True)
    return folder


def tried(tuning: Tuning) -> list[Point]:
    """Return a point for every measured config, at the load at which it would run, the best first."""
    request = tuning.request
    measured = [trial.points for trial in tuning.trials if trial.points]
    ranked = sorted(measured, key=request.rank, reverse=True)
    return [request.best(points) or nearest(points) for points in ranked]


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
    # What waits far above the front would press it flat against the bottom of the picture.
    highest = 2.5 * max(limit, *(point.latency_ms.p95 for point in best))
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


def served(tuning: Tuning) -> str:
    now = tuning.trial(tuning.best if tuning.applied else PRESENT)
    config = "now has the best config" if tuning.applied else "has its earlier config again"
    return f"The server {config}: {summary(now.config)}."
