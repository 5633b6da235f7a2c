"""The files of a run beside its weights: how it was started, and its log as JSON lines and as a chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from gourmet.errors import UsageError
from gourmet.reports.chart import COLOURS, Drawing, Series, lines
from gourmet.served.files import write_whole
from gourmet.served.reading import error_summary, read_table

RUN: Final = "run.json"
_NOT_CURVES: Final = ("epoch", "rate", "seconds")


class _RunFacts(BaseModel, extra="allow"):
    """The required content of run.json. It is untrusted: another program may have written it."""

    data: str
    recipe: dict[str, Any] = {}
    overrides: list[str] = []
    mlflow_run: str = ""


def write_run(folder: Path, facts: dict[str, Any]) -> None:
    write_whole(folder / RUN, json.dumps(facts, indent=2) + "\n")


def read_run(folder: Path) -> dict[str, Any]:
    try:
        return _RunFacts.model_validate(read_table(folder / RUN)).model_dump()
    except (OSError, ValueError) as exc:
        raise UsageError(
            f"{folder} is not the folder of a run ({error_summary(exc)}): name another one, or name the data "
            "with --data"
        ) from exc


def data_of(weights: Path) -> Path:
    """Return the path of the data that `weights` were trained on."""
    return Path(read_run(weights.parent)["data"])


def write_log(folder: Path, epochs: Sequence[dict[str, Any]]) -> None:
    """Write a JSON line for each epoch, and their curves. Both files are replaced as a whole."""
    write_whole(folder / "log.jsonl", "".join(json.dumps(epoch) + "\n" for epoch in epochs))
    write_whole(folder / "log.svg", curves(epochs))


def curves(epochs: Sequence[dict[str, Any]]) -> Drawing:
    """Draw `epochs`: shares from 0 to 1, a loss over its own range, and a mark where a phase begins."""
    names = [key for key, value in epochs[-1].items() if key not in _NOT_CURVES and isinstance(value, float)]
    phases = [str(epoch["phase"]) for epoch in epochs]
    return lines(
        [_series(name, epochs, COLOURS[index % len(COLOURS)]) for index, name in enumerate(names)],
        "training curves",
        ("epoch", "share; a loss over its own range"),
        y_range=(0, 1),
        size=(720, 340),
        marks=[
            (float(epoch["epoch"]), phase)
            for epoch, phase, before in zip(epochs, phases, ["", *phases], strict=False)
            if phase != before
        ],
    )


def _series(name: str, epochs: Sequence[dict[str, Any]], colour: str) -> Series:
    values = [float(epoch[name]) for epoch in epochs]
    low, high = (0.0, 1.0) if max(values) <= 1.0 else (min(values), max(values))
    return Series(
        f"{name.replace('_', ' ')}: {values[0]:.3f} → {values[-1]:.3f}",
        [(float(epoch["epoch"]), (epoch[name] - low) / ((high - low) or 1.0)) for epoch in epochs],
        colour,
        radii=[2.5] * len(values),
        hints=[f"{value:.3f}" for value in values],
    )
