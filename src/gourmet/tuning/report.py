"""A search on disk and on a page: the sentence, the picture, the table, the config."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

from gourmet.bench import charts, page
from gourmet.bench.results import Point
from gourmet.config_change import summary
from gourmet.tuning import picture
from gourmet.tuning.results import PRESENT, Trial, Tuning, as_json

DEFAULT: Final = Path("runs") / "tune"
HEADINGS: Final = (
    "config",
    "best at",
    "rows/s",
    "p95 ms",
    "queue ms",
    "rows a batch",
    "cores",
    "measured",
    "",
)


def save(tuning: Tuning, folder: Path | None = None) -> Path:
    """Write page, picture, JSON and, where there is one to recommend, the config.pbtxt."""
    folder = folder or DEFAULT / _name(tuning)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tune.json").write_text(as_json(tuning))
    (folder / "pareto.svg").write_text(picture.pareto(tuning))
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
            yield (trial.name, *("",) * 6, trial.stage, "refused")
            continue
        point = goal.best(trial.points)
        kept = point is not None
        yield _row(trial, point or min(trial.points, key=lambda each: each.latency_ms.p95), kept, tuning)


def duel_rows(tuning: Tuning) -> list[tuple[str, ...]]:
    """The two that were measured in turns."""
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
        f"<h1>{escape(bench.title)}</h1><p class='when'>{escape(bench.when)} · "
        f"<code>{escape(bench.command)}</code></p>",
        f"<p>{escape(bench.about)}</p>",
        f"<p><strong>{escape(tuning.sentence)}</strong></p>",
        f"<p>{escape(served(tuning))}</p>",
        page.figure(
            "p95 against throughput",
            "A dot a config and load; the closer to the bottom right, the better. The line is the front that "
            "nothing beats in both. Rings: the turns against each other, with the throughput's interval.",
            picture.pareto(tuning),
        ),
    ]
    if tuning.duel:
        parts += [
            "<h2>The best against the present config, in turns</h2>",
            page.table(HEADINGS, duel_rows(tuning)),
            page.figure(
                "Where the time goes",
                "As Triton reports it; the rest is the network and the client.",
                charts.stacked_latency(bench.points),
            ),
            page.figure(
                "Batches that really happened",
                "Share of the rows by the number of rows that went through the network at once.",
                charts.batch_sizes(bench.points),
            ),
        ]
    parts += ["<h2>Everything that was tried</h2>", page.table(HEADINGS, rows(tuning))]
    parts.append("<h2>What was searched</h2><ul>" + _items(tuning.searched) + "</ul>")
    if refused := [f"{trial.name}: {trial.refused}" for trial in tuning.trials if trial.refused]:
        parts.append("<div class='refused'>Measured and not reported:<ul>" + _items(refused) + "</ul></div>")
    if tuning.recommended:
        parts.append(f"<h2>config.pbtxt</h2><pre>{escape(tuning.pbtxt())}</pre>")
    parts += [page.batches(bench.points), page.checks(bench.points), page.machine(bench)]
    return page.document(bench.title, parts)


def served(tuning: Tuning) -> str:
    """What serves now."""
    now = tuning.trial(tuning.best if tuning.applied else PRESENT)
    told = "The server now has the best config" if tuning.applied else "The server has the config of before"
    return f"{told}: {summary(now.config)}."


def _items(said: tuple[str, ...] | list[str]) -> str:
    return "".join(f"<li>{escape(words)}" for words in said)


def _name(tuning: Tuning) -> str:
    moment = datetime.datetime.fromisoformat(tuning.bench.when).strftime("%Y%m%d-%H%M%S")
    return f"{moment}-{re.sub(r'[^A-Za-z0-9_.-]', '-', tuning.model)}"
