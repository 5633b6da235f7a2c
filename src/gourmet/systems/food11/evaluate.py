"""Ask the food network about every photo of a data set, as it is asked when served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from torch import nn

from gourmet.evaluating.asking import ask
from gourmet.evaluating.evaluate import Answered
from gourmet.systems.food11 import contract
from gourmet.systems.food11.data import Photo, decode, listing, parts, read
from gourmet.systems.food11.network import load

__all__ = ["LABELS", "VIEWS", "WANTED_ACCURACY", "answers", "load", "parts"]

Tick = Callable[[float], None]

LABELS: Final = contract.LABELS

# The sharp photos have no soup, and show a bread and cheeses that the training photos do not.
VIEWS: Final[Mapping[str, Sequence[str]]] = {
    "the eight classes that the sharp photos share with the training photos": [
        label for label in contract.LABELS if label not in ("Bread", "Dairy product", "Soup")
    ],
}

# Of the answers that are given with certainty, so many should be right.
WANTED_ACCURACY: Final = 0.75


def answers(
    network: nn.Module, data: Path, part: str, *, limit: int | None, device: str, tick: Tick
) -> Answered:
    """The network's logits on the photos of `part`, decoded by the contract."""

    def tensor(photos: Sequence[Photo]) -> contract.Floats:
        return contract.normalise(decode(photos, contract.INPUT_SIZE).images)

    return ask(network, listing(data, part, limit), tensor, read, device=device, tick=tick)
