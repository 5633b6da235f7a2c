"""A search on disk and on a page: the sentence, the picture, the table, the config."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

from gourmet.config_change import summary
from gourmet.measure import page
from gourmet.measure.results import Point
from gourmet.measure.storage import folder_name
from gourmet.reports.page import bullets, document, figure, paragraph, table, warning
from gourmet.tuning import chart
from gourmet.tuning.results import PRESENT, Trial, Tuning, as_json

DEFAULT: Final = Path("runs") / "tune"
HEADINGS: Final = (
    "config",
    "best at",
    "rows/s",
    "p95 ms",
    "queue ms",
    "rows per batch",
    "cores",
    "measured",
    "",
)


def save(tuning: Tuning, folder: Path | None = None) -> Path:
    """Write page, picture, JSON and, where there is one to recommend, the config.pbtxt."""
    folder = folder or DEFAULT / folder_name(tuning.bench.when, tuning.model)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tune.json").write_text(as_json(tuning))
    (folder / "pareto.svg").write_text(chart.pareto(tuning))
    (folder / "index.html").write_text(_page(tuning))
    if tuning.recommended:
        (folder / "config.pbtxt").write_text(tuning.pbtxt())
    else:
        (folder / "config.pbtxt").unlink(missing_ok=True)
    return folder


def rows(tuning: Tuning) -> Iterator[tuple[str, ...]]:
    """Every config at the load that it would be run at, the best first."""
    goal = tuning.goal
    for trial in sorted(tuning.trials, key=lambda each: goal.rank(each.points), reverse=True):
        if not trial.points:
            yield (trial.name, *("",) * 6, trial.stage, "Rejected")
            continue
        point = goal.best(trial.points)
        kept = point is not None
        yield _row(trial, point or min(trial.points, key=lambda each: each.latency_ms.p95), kept, tuning)


def duel_rows(tuning: Tuning) -> list[tuple[str, ...]]:
    if tuning.duel is None:
        return []
    return [
        (
            *_figures(point),
            f"{point.turns} turns",
            "" if tuning.goal.keeps(point) else "misses the goal",
        )
        for point in (tuning.duel.ours, tuning.duel.theirs)
    ]


def _row(trial: Trial, point: Point, kept: bool, tuning: Tuning) -> tuple[str, ...]:
    marks = ["recommended"] if tuning.recommended is trial else []
    marks += [] if kept else ["misses the goal"]
    return (*_figures(point), trial.stage, ", ".join(marks))


def _figures(point: Point) -> tuple[str, ...]:
    cores = point.usage.server_cores
    return (
        point.arm,
        str(point.demand),
        f"{point.rows_per_s.value:.4g}",
        f"{point.latency_ms.p95:.3g}",
        f"{point.split_ms.queue:.3g}",
        f"{point.executed_rows:.2f}",
        "" if cores is None else f"{cores:.2f}",
    )


def _page(tuning: Tuning) -> str:
    bench = tuning.bench
    parts = [
        paragraph(bench.about),
        f"<p><strong>{escape(tuning.sentence)}</strong></p>",
        paragraph(served(tuning)),
        figure(
            "p95 against throughput",
            "A dot a config and load; the closer to the bottom right, the better. The line is the front that "
            "nothing beats in both. Rings: the turns against each other, with the throughput's interval.",
            chart.pareto(tuning),
        ),
    ]
    if tuning.duel:
        parts += [
            "<h2>The best against the present config, in turns</h2>",
            table(HEADINGS, duel_rows(tuning)),
            page.where_time_goes(bench.points),
        ]
    parts += ["<h2>Everything that was tried</h2>", table(HEADINGS, rows(tuning))]
    parts.append("<h2>What was searched</h2>" + bullets(tuning.searched))
    refused = [f"{trial.name}: {trial.refused}" for trial in tuning.trials if trial.refused]
    parts.append(warning("Measured and not reported", refused))
    if tuning.recommended:
        parts.append(f"<h2>config.pbtxt</h2><pre>{escape(tuning.pbtxt())}</pre>")
    parts.append(page.reasons(bench))
    return document(bench.title, parts, when=bench.when, command=bench.command, says=tuning.sentence)


def served(tuning: Tuning) -> str:
    now = tuning.trial(tuning.best if tuning.applied else PRESENT)
    told = "The server now has the best config" if tuning.applied else "The server has the config of before"
    return f"{told}: {summary(now.config)}."
