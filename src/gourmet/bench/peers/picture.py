"""Photos per second as bars, one group a kind of photos, as an SVG that needs nothing else."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

from gourmet.bench.peers.arms import ARMS
from gourmet.bench.peers.run import Results
from gourmet.bench.peers.summary import GOAL_CONCURRENCY, Row, rows

_WIDTH: Final = 860
_NAMES: Final = 290  # the column of names, of figures; a bar's height, and from one to the next
_FIGURES: Final = 130
_BAR: Final = 18
_STEP: Final = 26
_COLOURS: Final = {"limit": "#9e9e9e", "ours": "#1b5e9b", "peer": "#c98a1b"}
_WORDS: Final = {"limit": "no server", "ours": "ours", "peer": "peers"}


def bars(results: Results) -> str:
    """Draw every arm at the concurrency of the goals, the limit on top; whiskers are least and most."""
    table = [row for row in rows(results) if row.concurrency in (0, GOAL_CONCURRENCY)]
    parts, y = [], 56
    for photos, said in zip(results.plan.photos, results.photos, strict=True):
        group = [row for row in table if row.photos == photos]
        if not group:
            continue
        parts.append(f'<text x="16" y="{y}" font-weight="bold">{escape(said)}</text>')
        most = max(max(row.photos_per_s) for row in group)
        for row in group:
            y += _STEP
            parts += _bar(row, y, most)
        y += 2 * _STEP
    height = y - _STEP // 2
    legend = []
    for at, (role, colour) in enumerate(_COLOURS.items()):
        x = _WIDTH - 270 + 95 * at
        legend.append(f'<rect x="{x}" y="14" width="12" height="12" fill="{colour}"/>')
        legend.append(f'<text x="{x + 18}" y="25">{_WORDS[role]}</text>')
    title = f"Photos per second, {GOAL_CONCURRENCY} at a time (median; line: least to most)"
    if any(row.disturbed for row in table):
        title = (
            f"Photos per second, {GOAL_CONCURRENCY} at a time; * disturbed by other work: not to be compared"
        )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'font-family="sans-serif" font-size="13" role="img" aria-label="{escape(title)}">',
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            f'<text x="16" y="25" font-size="15">{escape(title)}</text>',
            *legend,
            *parts,
            "</svg>\n",
        ]
    )


def _bar(row: Row, y: int, most: float) -> list[str]:
    scale = (_WIDTH - _NAMES - _FIGURES) / most
    arm = ARMS[row.arm]
    middle = y + _BAR / 2 - 2
    low, high = (_NAMES + scale * value for value in (min(row.photos_per_s), max(row.photos_per_s)))
    digits = 0 if row.median >= 50 else 1
    name = arm.words + (" *" if row.disturbed else "")
    return [
        f'<text x="{_NAMES - 10}" y="{y + 12}" text-anchor="end">{escape(name)}</text>',
        f'<rect x="{_NAMES}" y="{y - 2}" width="{scale * row.median:.1f}" height="{_BAR}" '
        f'fill="{_COLOURS[arm.role]}"/>',
        f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#000000" stroke-width="1.5"/>',
        f'<text x="{high + 8:.1f}" y="{y + 12}">{row.median:.{digits}f}</text>',
    ]
