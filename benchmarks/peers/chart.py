"""Photos per second as bars, one group a kind of photos, as an SVG that needs nothing else."""

from __future__ import annotations

from typing import Final

from gourmet.reports.chart import Bar, Drawing, bars, stacked
from peers.contenders import CONTENDERS
from peers.run import Comparison
from peers.summary import GOAL_CONCURRENCY, Row, rows

_COLOURS: Final = {"limit": "#9e9e9e", "ours": "#1b5e9b", "peer": "#c98a1b"}
_WORDS: Final = {"no server": "#9e9e9e", "ours": "#1b5e9b", "peers": "#c98a1b"}


def draw(results: Comparison) -> Drawing:
    """Every contender at the concurrency of the goals, the limit on top; whiskers are least and most."""
    table = [row for row in rows(results) if row.concurrency in (0, GOAL_CONCURRENCY)]
    title = f"Photos per second, {GOAL_CONCURRENCY} at a time (median; line: least to most)"
    if any(row.disturbed for row in table):
        title = f"{title}; * disturbed by other work: not to be compared"
    groups = [
        bars([_bar(row) for row in table if row.photos == photos], said, "photos per second", colours=_WORDS)
        for photos, said in zip(results.plan.photos, results.photos, strict=True)
        if any(row.photos == photos for row in table)
    ]
    return stacked(title, list(zip(results.photos, groups, strict=False)))


def _bar(row: Row) -> Bar:
    contender = CONTENDERS[row.arm]
    return Bar(
        contender.words + (" *" if row.disturbed else ""),
        row.median,
        min(row.photos_per_s),
        max(row.photos_per_s),
        _COLOURS[contender.role],
        says=f"{row.median:.{0 if row.median >= 50 else 1}f}",
    )
