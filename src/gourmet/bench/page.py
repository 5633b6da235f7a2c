"""A benchmark, or two side by side, as one HTML page with everything in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from gourmet.bench import charts, tables
from gourmet.bench.compare import Pair, differences
from gourmet.bench.results import Bench, Point
from gourmet.config_change import as_pbtxt, summary

_STYLE: Final = """
body{font:15px/1.55 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1.2rem;color:#222}
h1{font-size:1.7rem;margin:0}h2{font-size:1.2rem;margin:2.2rem 0 .6rem}.when{color:#666;margin:.2rem 0 1rem}
table{border-collapse:collapse;margin:.8rem 0;font-variant-numeric:tabular-nums}
td,th{padding:.25rem .5rem;white-space:nowrap;text-align:right;vertical-align:top;font-size:13.5px}
th{color:#555;font-weight:600;font-size:13px}
th:first-child,td:first-child{text-align:left}tr+tr{border-top:1px solid #e3e3e3}
.facts td{text-align:left;white-space:normal}.wide{overflow-x:auto}
figure{margin:1.2rem 0}figcaption{font-weight:600;margin-bottom:.3rem}
figcaption small{display:block;font-weight:400;color:#666}svg{max-width:100%;height:auto}
.findings li{margin:.35rem 0}
.seen::marker{content:"✓ ";color:#00795a}.unseen::marker{content:"✗ ";color:#b3261e}
.refused{border-left:4px solid #b3261e;background:#fdf3f2;padding:.5rem 1rem}
details{margin:.6rem 0}summary{cursor:pointer;font-weight:600}
pre{background:#f6f6f6;padding:.8rem;overflow-x:auto}
code{background:#f3f3f3;padding:.1rem .3rem}
"""


_SPEED: Final = "Throughput; where the rate of requests was given, the mean latency turned over."
_CLIENTS: Final = {"gourmet": "our client", "perf_analyzer": "perf_analyzer"}


def report(bench: Bench) -> str:
    """The page of one run."""
    points = bench.points
    parts = [
        f"<h1>{escape(bench.title)}</h1><p class='when'>{escape(bench.when)} · "
        f"<code>{escape(bench.command)}</code></p>",
        f"<p>{escape(bench.about)}</p>" if bench.about else "",
        _findings(bench),
        _refused(bench),
    ]
    if points:
        parts += [
            figure("Throughput", "", charts.throughput(points)),
            figure(
                "Latency against throughput",
                "One line an arm; the closer to the bottom right, the better.",
                charts.latency_against_throughput(points),
            ),
            figure(
                "Where the time goes",
                "As Triton reports it; what it does not account for is the network and the client.",
                charts.stacked_latency(points),
            ),
            figure(
                "Batches that really happened",
                "Share of the rows by the number of rows that went through the network at once.",
                charts.batch_sizes(points),
            ),
            "<h2>Figures</h2>",
            table(tables.HEADINGS, (tables.row(point) for point in points)),
        ]
        parts += [batches(points), checks(points), configs(points)]
    parts.append(machine(bench))
    return document(bench.title, parts)


def comparison(before: Bench, now: Bench, pairs: Sequence[Pair], noise: float) -> str:
    """The page of two runs."""
    title = f"{now.title}: now against before"
    changed = "".join(f"<li>{escape(words)}" for words in differences(before, now))
    return document(
        title,
        [
            f"<h1>{escape(title)}</h1>"
            f"<p class='when'>now {escape(now.when)} · before {escape(before.when)}</p>",
            f"<p>A point counts as faster or slower where its whole 95 % interval lies more than {noise:.0%} "
            "from 1; windows of one run agree better than two runs do.</p>",
            f"<p>What else differs:</p><ul>{changed}</ul>"
            if changed
            else "<p>Same machine, versions, data.</p>",
            figure("Speed, now ÷ before", _SPEED, charts.ratios(pairs)),
            table(tables.PAIR_HEADINGS, (tables.pair_row(pair) for pair in pairs)),
        ],
    )


def document(title: str, parts: Iterable[str]) -> str:
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style>{''.join(parts)}</html>\n"
    )


def _findings(bench: Bench) -> str:
    if not bench.findings:
        return ""
    kinds = {True: "seen", False: "unseen", None: ""}
    said = "".join(f"<li class='{kinds[each.seen]}'>{escape(each.says)}" for each in bench.findings)
    return f"<h2>What was found</h2><ul class='findings'>{said}</ul>"


def _refused(bench: Bench) -> str:
    said = "".join(f"<li>{escape(each.name)}: {escape(each.reason)}" for each in bench.refused)
    return f"<div class='refused'>Measured and not reported:<ul>{said}</ul></div>" if said else ""


def figure(title: str, more: str, drawing: str) -> str:
    said = f"<small>{escape(more)}</small>" if more else ""
    return f"<figure><figcaption>{escape(title)}{said}</figcaption>{drawing}</figure>"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    head = "".join(f"<th>{escape(words)}" for words in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}" for cell in row) for row in rows)
    return f"<div class='wide'><table class='{kind}'>{f'<tr>{head}' if headings else ''}{body}</table></div>"


def batches(points: Sequence[Point]) -> str:
    headings = ("point", "rows a batch", "executions", "share of rows", "infer ms")
    rows = table(headings, tables.batch_table(points))
    return f"<details><summary>Executions by batch size</summary>{rows}</details>"


def checks(points: Sequence[Point]) -> str:
    rows = [
        (point.name, check.name, check.found, check.allowed) for point in points for check in point.checks
    ]
    found = table(("point", "check", "found", "allowed"), rows)
    tries = "".join(
        f"<li>{escape(point.name)}: {point.requests} requests by {_CLIENTS[point.client]}, "
        f"{len(point.windows)} {'turns' if point.turns > 1 else 'windows'}, attempt {point.attempts}, "
        f"client {point.usage.client_cores:.2f} cores{_memory(point)}"
        for point in points
    )
    return f"<details><summary>Why to believe them</summary>{found}<ul>{tries}</ul></details>"


def _memory(point: Point) -> str:
    usage = point.usage
    parts = [f", server {usage.server_memory_mib:.0f} MiB"] if usage.server_memory_mib else []
    parts += [f", app {usage.app_cores:.2f} cores"] if usage.app_cores is not None else []
    parts += [f" and {usage.app_memory_mib:.0f} MiB"] if usage.app_memory_mib else []
    return "".join(parts)


def configs(points: Sequence[Point]) -> str:
    seen: dict[str, tuple[str, str]] = {}
    for point in points:
        seen.setdefault(point.arm, (summary(dict(point.config)), as_pbtxt(dict(point.config))))
    said = "".join(
        f"<h3>{escape(arm)}</h3><p>{escape(short)}</p><pre>{escape(whole)}</pre>"
        for arm, (short, whole) in seen.items()
    )
    return f"<details><summary>Configs that served</summary>{said}</details>"


def machine(bench: Bench) -> str:
    facts = [*bench.machine.items(), ("sent", bench.data), ("schema", bench.schema)]
    return "<h2>Where</h2>" + table((), facts, "facts")
