"""The notebook's pictures: no background of their own, and colours that can be read on white and on black.

Figures are made without pyplot and shown as finished PNGs: Jupyter would give one with a transparent
background a white or black one, whatever the reader's theme.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from IPython.display import Image as Picture
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from gourmet.contracts import Classification
from gourmet.lab.server import Executions
from gourmet.measure.perf_analyzer import Measurement

_WIDTH_PX: Final = 900
_DPI: Final = 100
_STYLE: Final = Path(__file__).with_suffix(".mplstyle")
_RATE: Final = "#3f8fd2"
_SECOND: Final = "#e07b39"
# What a request's time is made of, in the order in which it passes; the way to the server and back last.
_PARTS: Final = {
    "queue": ("#d1495b", ("queue_ms",)),
    "input": ("#c9a227", ("compute_input_ms",)),
    "model": (_RATE, ("compute_infer_ms",)),
    "output": ("#3fa66b", ("compute_output_ms",)),
    "network and client": ("#9a7bc8", ("network_ms", "client_send_ms", "client_receive_ms")),
}


def photos(pictures: Sequence[bytes], system: Classification) -> Picture:
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
    return _shown(out, "jpeg")


def rates_and_latencies(
    runs: Mapping[Any, Measurement],
    title: str,
    names: str,
    *,
    latencies: Mapping[Any, Measurement] | None = None,
    latencies_title: str = "where a request's time goes",
) -> Picture:
    """Throughput beside the parts of the mean latency: of the same runs, or of others."""
    with _canvas(3.0) as (figure, out):
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
        left.bar([str(name) for name in runs], [run.rows_per_s for run in runs.values()], 0.6, color=_RATE)
        left.bar_label(left.containers[0], fmt="%.0f", padding=2)
        left.set(title=title, xlabel=names, ylabel="rows per second")
        _stack(right, latencies or runs)
        right.set(title=latencies_title, xlabel=names, ylabel="ms, mean")
        for axis in (left, right):
            axis.margins(y=0.15)
            axis.grid(axis="y")
    return _shown(out)


def batch_sizes(executions: Mapping[str, Executions]) -> Picture:
    """How many rows went through the network at once, and how often."""
    with _canvas(2.3) as (figure, out):
        axes = figure.subplots(1, len(executions), squeeze=False)[0]
        for axis, (title, seen) in zip(axes, executions.items(), strict=True):
            axis.bar(list(seen.by_rows), list(seen.by_rows.values()), 0.7, color=_SECOND)
            axis.set(title=f"{title}: {seen.mean:.1f} rows on average", ylabel="executions")
            axis.set(xlabel="rows of an execution", xlim=(0.4, seen.largest + 0.6))
            axis.set_xticks(range(1, seen.largest + 1))
            axis.grid(axis="y")
    return _shown(out)


def ladder(steps: Mapping[str, Measurement], title: str) -> Picture:
    """Every step's throughput and latency, one below the other."""
    runs = list(steps.values())
    with _canvas(0.4 * len(steps) + 0.9) as (figure, out):
        left, right = figure.subplots(1, 2, sharey=True)
        left.barh(list(steps), [run.rows_per_s for run in runs], 0.65, color=_RATE)
        left.bar_label(left.containers[0], fmt="%.0f", padding=3)
        left.set(title=title, xlabel="rows per second")
        left.margins(x=0.15)
        left.invert_yaxis()
        spread = [run.p99_ms - run.p50_ms for run in runs]
        right.barh(list(steps), spread, 0.3, left=[run.p50_ms for run in runs], color=_SECOND)
        right.set(title="latency of a request: p50 to p99", xlabel="ms", xlim=(0, None))
        right.tick_params(left=False)
        for axis in (left, right):
            axis.grid(axis="x")
    return _shown(out)


def _stack(axis: Axes, runs: Mapping[Any, Measurement]) -> None:
    names = [str(name) for name in runs]
    floor = [0.0] * len(names)
    for part, (colour, fields) in _PARTS.items():
        heights = [sum(getattr(run, field) for field in fields) for run in runs.values()]
        drawn = axis.bar(names, heights, 0.6, bottom=floor, color=colour, label=part)
        floor = [low + high for low, high in zip(floor, heights, strict=True)]
    axis.bar_label(drawn, [f"{total:.{0 if total >= 10 else 1}f}" for total in floor], padding=3)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True)


@contextmanager
def _canvas(height: float) -> Iterator[tuple[Figure, io.BytesIO]]:
    """An empty figure, and the file that it is in after the block."""
    out = io.BytesIO()
    with rc_context(fname=_STYLE):
        figure = Figure(figsize=(_WIDTH_PX / _DPI, height), layout="constrained")
        yield figure, out
        # Twice as fine as it is shown, for screens that can.
        figure.savefig(out, format="png", dpi=2 * _DPI, transparent=True)


def _shown(out: io.BytesIO, kind: str = "png") -> Picture:
    return Picture(out.getvalue(), format=kind, width=_WIDTH_PX)  # type: ignore[no-untyped-call]
