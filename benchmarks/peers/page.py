"""Write the comparison as a part of docs/measuring.md, as a picture and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gourmet.measure.results import HEADINGS, Requirement, median_and_range
from gourmet.reports import machine
from gourmet.reports.chart import Drawing, stacked
from gourmet.reports.table import markdown
from harness.report import BenchRow, DocsPart, about, chart, goal_data, ratio_goal, rows_of, window_data
from harness.run import QUIET_CORES, Outcome
from peers.contenders import ARMS, FP32, INT8

REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")
PART: Final = DocsPart("gourmet bench peers", "measuring.md", "Measuring", "to here: peers")
DATA, PICTURE = "peers.json", "peers.svg"
# The concurrency for which goals were set.
GOAL_LEVEL: Final = 8
_COLOURS: Final = {"no server": "#9e9e9e", "ours": "#1b5e9b", "peers": "#c98a1b"}
_HEADINGS: Final = (
    *("", "at a time", "photos/s", "p50 ms", "p95 ms", "p99 ms", "answers", "errors"),
    *("CPU ms a photo", "MiB"),
)
_TERMS: Final = """
Everybody was sent the same photos as the same form, one server after another, in {turns} turns of windows
of {window:g} s; figures are medians over the turns with the least and the most in brackets, percentiles are
of all turns' answers together, and ratios are taken turn by turn. **Every** answer was compared, label and
probabilities, with the same ONNX file run without a server on the same pixels (peers: on pixels decoded
plainly); one wrong answer ends the run. A window in which others took more than {quiet:g} cores was measured
again, up to twice; rows with a * never had a quiet one in some turn. CPU is of all processes of a server, per
photo, in milliseconds of one core; memory counts once what processes share.
"""


@dataclass(frozen=True)
class PhotoComparison:
    """The measurements, their photos, and the effect of decoding."""

    plan: Mapping[str, Any]
    photos: Mapping[str, str]  # the sets, each with what it is
    outcome: Outcome
    decoding: Sequence[str]

    @property
    def rows(self) -> list[BenchRow]:
        return rows_of(self.outcome.windows)


def goals(comparison: PhotoComparison) -> list[Requirement]:
    """Return the goals whose contenders were all measured."""
    return [
        goal
        for photos in comparison.photos
        for goal in _goals(
            photos,
            *(
                {
                    row.load.arm: row
                    for row in comparison.rows
                    if row.load.inputs == photos and row.load.level in levels
                }
                for levels in ((0, GOAL_LEVEL), (1,))
            ),
        )
    ]


def _goals(
    photos: str, rows: Mapping[str, BenchRow], one_at_a_time: Mapping[str, BenchRow]
) -> list[Requirement]:
    goals_of_photos: list[Requirement] = []
    if photos == "small" and "limit-fp32" in rows:
        what = f"{photos} photos, fp32: ours ÷ the limit"
        goals_of_photos += ratio_goal(what, rows.get("ours-fp32"), [rows["limit-fp32"]], 0.85)
    for key, name, model, wanted in (
        ("ours", "the default model", INT8, 1.05 if photos == "small" else 2.8),
        ("ours-fp32", "fp32", FP32, 1.0 if photos == "small" else 2.0),
    ):
        # Peers have the same file: fp32 beside eight bits would compare networks.
        same = [peer for peer, arm in ARMS.items() if arm.role == "peers" and arm.model == model]
        if (ours := rows.get(key)) and (peers := [rows[peer] for peer in same if peer in rows]):
            goals_of_photos += ratio_goal(
                f"{photos} photos, {name}: ours ÷ the best peer", ours, peers, wanted
            )
            what = f"{photos} photos, {name}: our p99 ÷ the lowest p99 of a peer"
            goals_of_photos.append(_at_most(what, ours, peers, -1, 1.0))
        alone = [one_at_a_time[peer] for peer in same if peer in one_at_a_time]
        if key == "ours" and photos == "small" and key in one_at_a_time and alone:
            what = f"{photos} photos, {name}, one at a time: our p50 ÷ FastAPI's"
            goals_of_photos.append(_at_most(what, one_at_a_time[key], alone, 0, 1.25))
    return goals_of_photos


def _at_most(what: str, ours: BenchRow, peers: Sequence[BenchRow], which: int, wanted: float) -> Requirement:
    """Return the goal for one of our percentiles against the lowest of the peers'."""
    ratio = ours.percentiles_ms[which] / min(peer.percentiles_ms[which] for peer in peers)
    disturbed = any(row.disturbed for row in [ours, *peers])
    return Requirement(what, (ratio,), wanted, at_most=True, disturbed=disturbed)


def write(comparison: PhotoComparison, folder: Path) -> tuple[Path, ...]:
    """Put the comparison into the page's generated part, its picture and its data beside it."""
    files = {PICTURE: draw(comparison), DATA: PART.as_json(as_data(comparison))}
    return PART.write(folder, as_markdown(comparison), files)


def draw(comparison: PhotoComparison) -> Drawing:
    """Draw every contender at the concurrency of the goals, the limit on top."""
    rows = [row for row in comparison.rows if row.load.level in (0, GOAL_LEVEL)]
    title = f"Photos per second, {GOAL_LEVEL} at a time (median; line: least to most)"
    if any(row.disturbed for row in rows):
        title = f"{title}; * disturbed by other work: not to be compared"
    words, roles = ({key: getattr(arm, name) for key, arm in ARMS.items()} for name in ("words", "role"))
    groups = [
        (
            title_of_set,
            chart(mine, title_of_set, "photos per second", words.__getitem__, roles.__getitem__, _COLOURS),
        )
        for photos, title_of_set in comparison.photos.items()
        if (mine := [row for row in rows if row.load.inputs == photos])
    ]
    return stacked(title, groups)


def as_data(comparison: PhotoComparison) -> dict[str, Any]:
    """Return all data without the single latencies."""
    return {
        "peers": _versions(),
        "plan": comparison.plan,
        "photos": list(comparison.photos.values()),
        "decoding": comparison.decoding,
        "left_out": comparison.outcome.left_out,
        "goals": [goal_data(goal) for goal in goals(comparison)],
        "windows": [window_data(window) for window in comparison.outcome.windows],
    }


def as_markdown(comparison: PhotoComparison) -> str:
    """Return the generated part of the page."""
    plan, when = comparison.plan, about()["when"]
    parts = [
        f"Measured {when} by `{PART.command}`, which wrote this part; `{DATA}` beside it has every turn.\n",
        "\n".join(f"- {name}: {value}" for name, value in {**machine.about(), "peers": _versions()}.items()),
        "\n".join(f"- {line}" for line in comparison.photos.values()),
        _TERMS.format(turns=plan["turns"], window=plan["window_s"], quiet=QUIET_CORES),
        *(f"Left out: {words}: {why}" for words, why in comparison.outcome.left_out.items()),
        f"\n![Photos per second at {GOAL_LEVEL} at a time]({PICTURE})\n",
    ]
    headings = (f"goal, at {GOAL_LEVEL} at a time", *HEADINGS[1:])
    page = "\n".join(parts) + "\n" + markdown(headings, (goal.as_row() for goal in goals(comparison)))
    for photos in comparison.photos:
        page += f"\n### {photos.capitalize()} photos\n\n"
        page += markdown(_HEADINGS, (_cells(row) for row in comparison.rows if row.load.inputs == photos))
    return (
        page
        + "\nHow other decoding changes answers:\n\n"
        + "".join(f"- {line}\n" for line in comparison.decoding)
    )


def _cells(row: BenchRow) -> tuple[str, ...]:
    return (
        ARMS[row.load.arm].words + row.mark,
        str(row.load.level or "–"),
        median_and_range(row.per_s, ".0f" if row.median >= 50 else ".1f"),
        *(f"{value:.0f}" if value >= 20 else f"{value:.1f}" for value in row.percentiles_ms),
        str(sum(len(window.latencies_ms) for window in row.windows)),
        str(row.errors.total()),
        _sum(row.medians("cpu_ms"), 1),
        _sum(row.medians("memory_mib"), 0),
    )


def _sum(parts: dict[str, float], digits: int) -> str:
    if len(parts) < 2:
        return "".join(f"{value:.{digits}f}" for value in parts.values())
    listed = ", ".join(f"{name} {value:.{digits}f}" for name, value in parts.items())
    return f"{sum(parts.values()):.{digits}f}: {listed}"


def _versions() -> str:
    """Return the pinned versions of the peers' packages."""
    pinned = [line for line in REQUIREMENTS.read_text().splitlines() if "==" in line]
    named = ("fastapi", "uvicorn", "litserve", "bentoml")
    return ", ".join(
        line.replace("==", " ") for line in pinned if line.partition("==")[0].split("[")[0] in named
    )
