"""The notebook's pictures: no background of their own, and colours that can be read on white and on black."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from gourmet.bench.perf_analyzer import Measurement
from gourmet.lab.server import Executions
from gourmet.systems.food11 import contract

_INK: Final = "#808080"
_RATE: Final = "#3f8fd2"
_SECOND: Final = "#e07b39"
# What a request's time is made of, in the order in which it passes; client and network last.
_PARTS: Final = {
    "queue": ("#d1495b", ("queue_ms",)),
    "input": ("#c9a227", ("compute_input_ms",)),
    "model": ("#3f8fd2", ("compute_infer_ms",)),
    "output": ("#3fa66b", ("compute_output_ms",)),
    "network and client": ("#9a7bc8", ("network_ms", "client_send_ms", "client_receive_ms")),
}
_STYLE: Final[Any] = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "figure.dpi": 100,
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "grid.color"), _INK),
    **dict.fromkeys(("axes.titlecolor", "xtick.color", "ytick.color"), _INK),
}


def canvas(columns: int = 1, *, height: float = 3.0, ratios: Sequence[float] | None = None) -> Any:
    """A figure and its axes: one, or a row of them."""
    plt.rcParams.update(_STYLE)
    return plt.subplots(
        1, columns, figsize=(9.0, height), layout="constrained", gridspec_kw={"width_ratios": ratios}
    )


def photos(pictures: Sequence[bytes], caption: str) -> Figure:
    """Pictures as they are sent, above what the network sees of them."""
    plt.rcParams.update(_STYLE)
    figure, axes = plt.subplots(2, len(pictures), figsize=(9.0, 2.9), layout="constrained")
    for column, picture in enumerate(pictures):
        with Image.open(io.BytesIO(picture)) as opened:
            axes[0, column].imshow(opened.resize((200, 150)))
        axes[1, column].imshow(Image.fromarray(contract.pixels(picture)).resize((112, 112)))
    for axis in axes.flat:
        axis.set_axis_off()
    figure.suptitle(caption, x=0.01, ha="left", fontsize=10)
    return figure


def rates(axis: Axes, runs: Mapping[Any, float], title: str, xlabel: str, colour: str = _RATE) -> None:
    """Rows per second as bars, each with its figure."""
    bars = axis.bar([str(name) for name in runs], list(runs.values()), 0.6, color=colour)
    axis.bar_label(bars, fmt="%.0f", padding=2)
    axis.set(title=title, xlabel=xlabel, ylabel="rows per second")
    axis.margins(y=0.15)


def latencies(axis: Axes, runs: Mapping[Any, Measurement], xlabel: str, title: str = "") -> None:
    """Where the mean request's time went, as stacked bars."""
    names = [str(name) for name in runs]
    floor = [0.0] * len(names)
    for part, (colour, fields) in _PARTS.items():
        heights = [sum(getattr(run, field) for field in fields) for run in runs.values()]
        axis.bar(names, heights, 0.6, bottom=floor, color=colour, label=part)
        floor = [low + high for low, high in zip(floor, heights, strict=True)]
    for name, total in zip(names, floor, strict=True):
        axis.annotate(f"{total:.0f}", (name, total), (0, 2), textcoords="offset points", ha="center")
    axis.set(title=title or "where a request's time goes", xlabel=xlabel, ylabel="ms, mean")
    axis.margins(y=0.15)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True)


def concurrency(runs: Mapping[int, Measurement], title: str) -> Figure:
    """Throughput beside the parts of the latency, by requests at a time."""
    figure, (left, right) = canvas(2, ratios=(1, 1.2))
    rates(left, {c: run.rows_per_s for c, run in runs.items()}, title, "requests at a time")
    latencies(right, runs, "requests at a time")
    return figure  # type: ignore[no-any-return]


def histogram(axis: Axes, executions: Executions, title: str) -> None:
    """How many rows went through the network at once, and how often."""
    sizes = range(1, executions.largest + 1)
    bars = axis.bar([str(size) for size in sizes], [executions.by_rows.get(size, 0) for size in sizes], 0.7)
    for bar in bars:
        bar.set_color(_SECOND)
    axis.set(title=title, xlabel="rows of an execution", ylabel="executions")


def ladder(steps: Mapping[str, Measurement], title: str) -> Figure:
    """Every step's throughput and latency, one below the other."""
    figure, (left, right) = canvas(2, height=0.42 * len(steps) + 0.9, ratios=(1, 1))
    names = list(steps)
    runs = list(steps.values())
    bars = left.barh(names, [run.rows_per_s for run in runs], 0.65, color=_RATE)
    left.bar_label(bars, fmt="%.0f", padding=3)
    left.set(title=title, xlabel="rows per second")
    left.margins(x=0.15)
    places = range(len(runs))
    right.hlines(places, [run.p50_ms for run in runs], [run.p99_ms for run in runs], color=_SECOND, lw=3)
    right.plot([run.p50_ms for run in runs], places, "o", color=_SECOND, label="p50")
    right.plot([run.p99_ms for run in runs], places, "|", ms=12, mew=3, color=_SECOND, label="p99")
    right.set(title="latency of a request", xlabel="ms", xlim=(0, None))
    right.set_yticks(list(places), [])
    right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    for axis in (left, right):
        axis.grid(visible=True, axis="x")
        axis.grid(visible=False, axis="y")
        axis.invert_yaxis()
    return figure  # type: ignore[no-any-return]
