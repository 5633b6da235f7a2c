"""The comparison as a part of docs/performance.md, as a picture and as data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from gourmet.measure.results import HEADINGS, median_and_range
from gourmet.reports.table import markdown, write_section
from peers.chart import draw
from peers.contenders import CONTENDERS
from peers.run import QUIET_CORES, Comparison
from peers.summary import GOAL_CONCURRENCY, Row, goals, rows
from peers.venv import REQUIREMENTS

COMMAND: Final = "gourmet bench peers"
PAGE, DATA, PICTURE = "performance.md", "peers.json", "peers.svg"
_BEGIN: Final = f"<!-- from here on written by `{COMMAND}` -->"
_END: Final = "<!-- to here -->"


def write(results: Comparison, machine: dict[str, str], folder: Path, when: str) -> tuple[Path, ...]:
    """Put the comparison into the page's generated part, its picture and its data beside it."""
    page = folder / PAGE
    write_section(page, _BEGIN, _END, as_markdown(results, machine, when), "Performance")
    (folder / PICTURE).write_text(draw(results) + "\n")
    (folder / DATA).write_text(json.dumps(as_data(results, machine, when), indent=1) + "\n")
    return page, folder / PICTURE, folder / DATA


def as_data(results: Comparison, machine: dict[str, str], when: str) -> dict[str, Any]:
    """Everything but the single latencies."""
    return {
        "command": COMMAND,
        "when": when,
        "machine": machine,
        "peers": _versions(),
        "plan": {name: value for name, value in asdict(results.plan).items() if name != "models"},
        "photos": results.photos,
        "decoding": results.decoding,
        "left_out": results.left_out,
        "disturbed": any(row.disturbed for row in rows(results)),
        "goals": [{**asdict(goal), "median": goal.median, "met": goal.met} for goal in goals(results)],
        "rows": [{**asdict(row), "median": row.median} for row in rows(results)],
    }


def as_markdown(results: Comparison, machine: dict[str, str], when: str) -> str:
    """The generated part of the page."""
    table = rows(results)
    parts = [
        f"Measured {when} by `{COMMAND}`, which wrote this part; `{DATA}` beside it has every turn.\n",
        "\n".join(f"- {name}: {value}" for name, value in {**machine, "peers": _versions()}.items()),
        "\n".join(f"- {line}" for line in results.photos),
        _TERMS.format(turns=results.plan.turns, window=results.plan.window_s, quiet=QUIET_CORES),
        *(f"Left out: {CONTENDERS[arm].words}: {why}" for arm, why in results.left_out.items()),
        f"\n![Photos per second at {GOAL_CONCURRENCY} at a time]({PICTURE})\n",
    ]
    headings = (f"goal, at {GOAL_CONCURRENCY} at a time", *HEADINGS[1:])
    page = "\n".join(parts) + "\n" + markdown(headings, (goal.as_row() for goal in goals(results)))
    for photos in results.plan.photos:
        page += f"\n### {photos.capitalize()} photos\n\n"
        page += markdown(_HEADINGS, (_cells(row) for row in table if row.photos == photos))
    return (
        page
        + "\nHow other decoding or another engine changes answers, against ours run by ONNX Runtime:\n\n"
        + "".join(f"- {line}\n" for line in results.decoding)
    )


_TERMS = """
Everybody was sent the same photos as the same form, one server after another, in {turns} turns of windows
of {window:g} s; figures are medians over the turns with the least and the most in brackets, percentiles are
of all turns' answers together, and ratios are taken turn by turn. **Every** answer was compared, label and
probabilities, with the same ONNX file run without a server on the same pixels (peers: on pixels decoded
plainly) and by the same engine: ours is what the model's config says, OpenVINO as shipped, and that of the
limit and the peers is ONNX Runtime; one wrong answer ends the run. A window in which others took more than
{quiet:g} cores was measured again, up to twice; rows with a * never had a quiet one in some turn. CPU is of
all processes of a server, per photo, in milliseconds of one core; memory counts once what processes share.
"""

_HEADINGS: Final = (
    *("", "at a time", "photos/s", "p50 ms", "p95 ms", "p99 ms", "answers", "errors"),
    *("CPU ms a photo", "MiB"),
)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        CONTENDERS[row.arm].words + (" *" if row.disturbed else ""),
        str(row.concurrency or "–"),
        median_and_range(row.photos_per_s, ".0f" if row.median >= 50 else ".1f"),
        *(
            f"{value:.0f}" if value >= 20 else f"{value:.1f}"
            for value in (row.p50_ms, row.p95_ms, row.p99_ms)
        ),
        str(row.answers),
        str(sum(row.errors.values())),
        _sum(row.cpu_ms, 1),
        _sum(row.memory_mib, 0),
    )


def _sum(parts: dict[str, float], digits: int) -> str:
    if len(parts) < 2:
        return "".join(f"{value:.{digits}f}" for value in parts.values())
    listed = ", ".join(f"{name} {value:.{digits}f}" for name, value in parts.items())
    return f"{sum(parts.values()):.{digits}f}: {listed}"


def _versions() -> str:
    """The peers' own packages, as pinned above the list of what they bring along."""
    pinned = [line for line in REQUIREMENTS.read_text().splitlines() if "==" in line]
    wanted = ("fastapi", "uvicorn", "litserve", "bentoml")
    return ", ".join(
        line.replace("==", " ") for line in pinned if line.partition("==")[0].split("[")[0] in wanted
    )
