"""A benchmark, or two side by side, as one HTML page with everything in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gourmet.config_change import as_pbtxt, summary
from gourmet.measure import charts, tables
from gourmet.measure.claims import Pair, differences
from gourmet.measure.results import Bench
from gourmet.reports import page

# A template with what those of benchmarks ask for; a report that shows points includes them.
render = partial(page.render, charts=charts, tables=tables, summary=summary, as_pbtxt=as_pbtxt)


def report(bench: Bench) -> str:
    return render("measure/bench.html", bench=bench, **vars(bench))


def comparison(before: Bench, now: Bench, pairs: Sequence[Pair], noise: float) -> str:
    return render(
        "measure/comparison.html",
        title=f"{now.title}: now against before",
        before=before,
        now=now,
        pairs=pairs,
        noise=noise,
        changed=differences(before, now),
    )
