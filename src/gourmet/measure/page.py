"""A benchmark, or two side by side, as one HTML page with everything in it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from gourmet.config_change import as_pbtxt, summary
from gourmet.measure import charts, tables
from gourmet.measure.compare import Pair, differences
from gourmet.measure.requirement import HEADINGS
from gourmet.measure.results import Bench, Point
from gourmet.reports.page import bullets, details, document, figure, paragraph, table, warning

REJECTED: Final = "Measured and not reported"
_SPEED: Final = "Throughput; where the rate of requests was given, the mean latency turned over."
_CLIENTS: Final = {"gourmet": "our client", "perf_analyzer": "perf_analyzer"}


def report(bench: Bench) -> str:
    points = bench.points
    parts = [
        paragraph(bench.about),
        _findings(bench),
        "<h2>Goals</h2>" + table(HEADINGS, (goal.as_row() for goal in bench.goals)) if bench.goals else "",
        warning(REJECTED, [str(each) for each in bench.refused]),
    ]
    if points:
        parts += [
            figure("Throughput", "", charts.throughput(points)),
            figure(
                "Latency against throughput",
                "One line an arm; the closer to the bottom right, the better.",
                charts.latency_against_throughput(points),
            ),
            *latency_and_batches(points),
            "<h2>Figures</h2>",
            table(tables.HEADINGS, (tables.row(point) for point in points)),
            streamed(points),
        ]
        parts += [batches(points), checks(points), _configs(points)]
    parts.append(machine(bench))
    return document(bench.title, parts, when=bench.when, command=bench.command, says=_in_short(bench))


def _in_short(bench: Bench) -> str:
    """Its best point, what was rejected, and where it ran."""
    best = max(bench.points, key=lambda point: point.rows_per_s.value, default=None)
    said = [
        f"{best.rows_per_s.value:.3g} rows/s at {best.name}, p95 {best.latency_ms.p95:.3g} ms"
        if best
        else "Every point was rejected",
        f"Rejected: too noisy ({len(bench.refused)})" if bench.refused else "",
        f"Points measured: {len(bench.points)}",
        *(bench.machine[what] for what in ("processor", "cpus") if what in bench.machine),
    ]
    return " · ".join(words for words in said if words)


def comparison(before: Bench, now: Bench, pairs: Sequence[Pair], noise: float) -> str:
    changed = differences(before, now)
    return document(
        f"{now.title}: now against before",
        [
            paragraph(f"Now: {now.when}. Before: {before.when}."),
            paragraph(
                "A point counts as faster or slower where its whole 95 % interval lies more than "
                f"{noise:.0%} from 1; windows of one run agree better than two runs do."
            ),
            paragraph("What else differs:" if changed else "Same machine, versions, data."),
            bullets(changed),
            figure("Speed, now ÷ before", _SPEED, charts.ratios(pairs)),
            table(tables.PAIR_HEADINGS, (tables.pair_row(pair) for pair in pairs)),
        ],
    )


def _findings(bench: Bench) -> str:
    if not bench.findings:
        return ""
    kinds = {True: "seen", False: "unseen", None: ""}
    said = "".join(f"<li class='{kinds[each.seen]}'>{escape(each.says)}" for each in bench.findings)
    return f"<h2>What was found</h2><ul class='claims'>{said}</ul>"


def latency_and_batches(points: Sequence[Point]) -> list[str]:
    return [
        figure(
            "Where the time goes",
            "As Triton reports it; what it does not account for is the network and the client.",
            charts.stacked_latency(points),
        ),
        figure(
            "Batches that really happened",
            "Share of the rows by how many went through the network at once, which the colours tell.",
            charts.batch_sizes(points),
        ),
    ]


def streamed(points: Sequence[Point]) -> str:
    rows = tables.stream_rows(points)
    return "<h2>Pieces of answers</h2>" + table(tables.STREAM_HEADINGS, rows) if rows else ""


def batches(points: Sequence[Point]) -> str:
    headings = ("point", "rows per batch", "executions", "share of rows", "infer ms")
    return details("Executions by batch size", table(headings, tables.batch_table(points)))


def checks(points: Sequence[Point]) -> str:
    rows = [
        (point.name, check.name, check.found, check.allowed) for point in points for check in point.checks
    ]
    tries = (
        f"{point.name}: {point.requests} requests by {_CLIENTS[point.client]}, "
        f"{len(point.windows)} {'turns' if point.turns > 1 else 'windows'}, attempt {point.attempts}, "
        f"client {point.usage.client_cores:.2f} cores{_memory(point)}"
        for point in points
    )
    return details("Why to believe them", table(("point", "check", "found", "allowed"), rows), bullets(tries))


def _memory(point: Point) -> str:
    usage = point.usage
    parts = [f", server {usage.server_memory_mib:.0f} MiB"] if usage.server_memory_mib else []
    parts += [f", app {usage.app_cores:.2f} cores"] if usage.app_cores is not None else []
    parts += [f" and {usage.app_memory_mib:.0f} MiB"] if usage.app_memory_mib else []
    return "".join(parts)


def _configs(points: Sequence[Point]) -> str:
    seen: dict[str, tuple[str, str]] = {}
    for point in points:
        seen.setdefault(point.arm, (summary(dict(point.config)), as_pbtxt(dict(point.config))))
    said = (
        f"<h3>{escape(arm)}</h3>{paragraph(short)}<pre>{escape(whole)}</pre>"
        for arm, (short, whole) in seen.items()
    )
    return details("Configs that served", *said)


def machine(bench: Bench) -> str:
    facts = [*bench.machine.items(), ("sent", bench.data), ("schema", bench.schema)]
    return "<h2>Where</h2>" + table((), facts, "facts")
