"""Ask the digits network about every digit of a data set, as it is asked when served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from torch import nn

from gourmet.evaluating.asking import ask
from gourmet.evaluating.evaluate import Answered
from gourmet.systems.digits import contract
from gourmet.systems.digits.data import Digit, listing, parts, read
from gourmet.systems.digits.network import load

__all__ = ["LABELS", "VIEWS", "WANTED_ACCURACY", "answers", "load", "parts"]

Tick = Callable[[float], None]

LABELS: Final = contract.LABELS
VIEWS: Final[Mapping[str, Sequence[str]]] = {}
# Of the answers that are given with certainty, so many should be right.
WANTED_ACCURACY: Final = 0.995


def answers(
    network: nn.Module, data: Path, part: str, *, limit: int | None, device: str, tick: Tick
) -> Answered:
    """The network's logits on the digits of `part`, as pictures that went through the contract."""

    def tensor(digits: Sequence[Digit]) -> contract.Floats:
        return np.concatenate([contract.encode(picture, "FP32") for picture in read(digits)])

    return ask(network, listing(data, part, limit), tensor, read, device=device, tick=tick)
