"""A network's logits on labelled pictures, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gourmet.evaluating.evaluate import Answered

_ROWS: Final = 64


class Named(Protocol):
    """A labelled picture, perhaps not yet read."""

    @property
    def name(self) -> str: ...
    @property
    def class_id(self) -> int: ...


Picture = TypeVar("Picture", bound=Named)


def ask(
    network: nn.Module,
    pictures: Sequence[Picture],
    tensor: Callable[[Sequence[Picture]], npt.NDArray[Any]],
    read: Callable[[Sequence[Picture]], Iterator[bytes]],
    *,
    device: str,
    tick: Callable[[float], None],
) -> Answered:
    """Ask about all `pictures`: `tensor` makes the network's input of some, `read` their own bytes."""
    network = network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    logits = []
    with torch.inference_mode():
        for first in range(0, len(pictures), _ROWS):
            rows = torch.from_numpy(tensor(pictures[first : first + _ROWS])).to(device)
            logits.append(network(rows.contiguous(memory_format=torch.channels_last)).float().cpu().numpy())
            tick(min(1.0, (first + _ROWS) / len(pictures)))
    return Answered(
        logits=np.concatenate(logits),
        classes=np.array([picture.class_id for picture in pictures]),
        names=[picture.name for picture in pictures],
        picture=lambda row: next(read(pictures[row : row + 1])),
    )
