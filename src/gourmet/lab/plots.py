"""The notebook's pictures: the charts of the reports, on white whatever the reader's theme."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from IPython.display import HTML
from IPython.display import Image as Picture
from PIL import Image

from gourmet.lab.server import Executions, Measurement
from gourmet.measure.report import PHASES, split_bar
from gourmet.pictures.classifier import PictureClassifier
from gourmet.reports.chart import Bar, Drawing, bars, columns, stacked

Runs = Mapping[Any, Measurement]

_WIDTH_PX: Final = 900


def photos(pictures: Sequence[bytes], system: PictureClassifier) -> Picture:
    """Pictures as they are sent, above what the network of their system sees of them."""
    width = 2 * _WIDTH_PX // len(pictures)
    height = width * 3 // 4
    sheet = Image.new("RGB", (width * len(pictures), height + width))
    for column, picture in enumerate(pictures):
        with Image.open(io.BytesIO(picture)) as sent:
            sheet.paste(sent.resize((width, height)), (column * width, 0))
        seen = Image.fromarray(system.pixels(picture))
        sheet.paste(seen.resize((width, width)), (column * width, height))
    out = io.BytesIO()
    sheet.save(out, "JPEG", quality=60)
    return Picture(out.getvalue(), format="jpeg", width=_WIDTH_PX)  # type: ignore[no-untyped-call]


def rates_and_latencies(runs: Runs, title: str, names: str, *, latencies: Runs | None = None) -> HTML:
    """Throughput above the parts of the mean latency: of the same runs, or of others."""
    times = []
    for name, run in (latencies or runs).items():
        times.append(split_bar(f"{names}: {name}", run.split_ms, f"{run.latency_ms.mean:.3g}"))
    rates = _rates({f"{names}: {name}": run for name, run in runs.items()})
    where = "where a request's time goes"
    return _shown(title, {"throughput": rates, where: bars(times, where, "mean latency, ms", colours=PHASES)})


def batch_sizes(executions: Mapping[str, Executions]) -> HTML:
    """How many rows went through the network at once, and how often."""
    drawn, says = {}, ("rows of an execution", "executions")
    for name, seen in executions.items():
        counts = [seen.by_rows.get(rows, 0) for rows in range(1, seen.largest + 1)]
        drawn[f"{name}: {seen.mean:.1f} rows on average"] = columns(counts, name, says, begins=0.5)
    return _shown("rows that went through the network at once", drawn)


def ladder(steps: Runs, title: str) -> HTML:
    """Every step's throughput and latency, one below the other."""
    spread = [
        Bar(name, took.p50, took.p50, took.p99, says=f"{took.p50:.3g} to {took.p99:.3g}")
        for name, took in ((name, run.latency_ms) for name, run in steps.items())
    ]
    latency = "latency of a request: p50, and the way to p99"
    return _shown(title, {"throughput": _rates(steps), latency: bars(spread, latency, "ms")})


def _rates(runs: Runs) -> Drawing:
    shown = [Bar(name, run.rows_per_s, says=f"{run.rows_per_s:.0f}") for name, run in runs.items()]
    return bars(shown, "throughput", "rows per second")


def _shown(title: str, drawings: Mapping[str, Drawing]) -> HTML:
    # Inside an image, because Jupyter shows no other SVG of a notebook that it does not trust yet.
    data = base64.b64encode(stacked(title, list(drawings.items())).encode()).decode()
    return HTML(f'<img src="data:image/svg+xml;base64,{data}">')  # type: ignore[no-untyped-call]
