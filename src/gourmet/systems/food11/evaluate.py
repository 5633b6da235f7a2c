"""Ask the food network about every photo of a data set, as it is asked when served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from gourmet.evaluating.evaluate import Answered
from gourmet.systems.food11 import contract
from gourmet.systems.food11.data import decode, listing, parts, read
from gourmet.systems.food11.network import load

__all__ = ["LABELS", "VIEWS", "answers", "load", "parts"]

Tick = Callable[[float], None]

LABELS: Final = contract.LABELS

# The sharp photos have no soup, and show a bread and cheeses that the training photos do not.
VIEWS: Final[Mapping[str, Sequence[str]]] = {
    "the eight classes that the sharp photos share with the training photos": [
        label for label in contract.LABELS if label not in ("Bread", "Dairy product", "Soup")
    ],
}

_ROWS: Final = 64


def answers(
    network: nn.Module, data: Path, part: str, *, limit: int | None, device: str, tick: Tick
) -> Answered:
    """The network's logits on the photos of `part`, decoded by the contract, a batch at a time."""
    photos = listing(data, part, limit)
    network = network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    logits = []
    with torch.inference_mode():
        for first in range(0, len(photos), _ROWS):
            pixels = decode(photos[first : first + _ROWS], contract.INPUT_SIZE)
            rows = torch.from_numpy(contract.normalise(pixels.images)).to(device)
            logits.append(network(rows.contiguous(memory_format=torch.channels_last)).float().cpu().numpy())
            tick(min(1.0, (first + _ROWS) / len(photos)))
    return Answered(
        logits=np.concatenate(logits),
        classes=np.array([photo.class_id for photo in photos]),
        names=[photo.name for photo in photos],
        picture=lambda row: next(read(photos[row : row + 1])),
    )
