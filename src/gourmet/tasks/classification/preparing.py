"""How pictures become the input of somebody's network, and from where that is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gourmet.errors import UsageError
from gourmet.pictures.classifier import IMAGENET_MEAN, IMAGENET_STD, PictureClassifier
from gourmet.reports.table import columns

_SIDE: Final = 224


@dataclass(frozen=True)
class AskedFor:
    """What the options of `gourmet new` say; None or empty where they say nothing."""

    size: int | None = None
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    scale: float | None = None
    layout: str = ""
    outputs: str = ""

    def statistics(self) -> dict[str, Any]:
        """The mean and the standard deviation of pictures from 0 to 1."""
        if not (self.mean or self.std or self.scale):
            return {}
        unit = 255.0 * (self.scale or 1 / 255.0)
        means, stds = self.mean or (0.0,), self.std or (1.0,)
        return {"mean": [each / unit for each in means], "std": [each / unit for each in stds]}


def prepared(
    system: PictureClassifier, asked: AskedFor, known: Sequence[tuple[str, Mapping[str, Any]]]
) -> tuple[PictureClassifier, str]:
    """`system` with the size and the statistics of pictures, and a table of where each is from.

    The first of the sources that are `known` counts; what none says is taken to be as usual.
    """
    channels, takes = len(system.mean), system.datatypes[0]
    usual = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD} if channels == 3 else {"mean": [0.0], "std": [1.0]}
    ours: dict[str, Any] = asked.statistics() | ({"size": asked.size} if asked.size else {})
    sources = [("asked for", ours), *known, ("assumed, as nothing says it", {"size": _SIDE, **usual})]
    found = {key: next(each for each in sources if each[1].get(key)) for key in ("size", "mean", "std")}
    size, mean, std = (source[1][key] for key, source in found.items())
    if takes == "UINT8":
        if asked.statistics():
            raise UsageError("--mean, --std and --scale: this network takes pixels, and prepares them itself")
        mean, std = [0.0], [1.0]
    for option, values in (("--mean", mean), ("--std", std)):
        if len(values) not in (1, channels) or not all(std) or not all(map(math.isfinite, values)):
            raise UsageError(
                f"{option} {','.join(map(str, values))}: give one number, or one for each of {channels} "
                "channels; no standard deviation is 0"
            )
    mean, std = (tuple(values) * (channels if len(values) == 1 else 1) for values in (mean, std))
    rows = [("size", f"{size}×{size}, {'RGB' if channels == 3 else 'grey'}", found["size"][0])]
    if takes == "UINT8":
        rows.append(("values", "pixels from 0 to 255", "its type"))
    else:
        rows += [
            (key, ", ".join(f"{value:.4g}" for value in values), f"of values from 0 to 1; {found[key][0]}")
            for key, values in (("mean", mean), ("std", std))
        ]
    rows.append(("input", f"{takes} {system.layout or 'NCHW'}", ""))
    return replace(system, input_size=size, mean=mean, std=std), columns([("pictures", "", "from"), *rows])
