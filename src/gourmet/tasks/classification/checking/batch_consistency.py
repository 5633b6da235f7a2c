"""Some pictures asked about once more, each alone: is the answer in a batch the picture's own?

A server that drops, repeats or swaps rows answers with good probabilities for the wrong pictures,
which accuracy alone would show as a bad network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from tritonclient.utils import InferenceServerException

from gourmet.contracts import BadAnswer
from gourmet.serving.client import triton
from gourmet.tasks.classification.checking.pictures import Pictures
from gourmet.tasks.classification.checking.requests import Asked
from gourmet.tasks.classification.checking.served import Served, ask

_PICTURES: Final = 64
# Rows computed in a batch of another size differ in the last digits; on a GPU in half precision, by 0.005.
_SAME_WITHIN: Final = 0.02


@dataclass(frozen=True)
class Again:
    """How alike the two answers about the same pictures are."""

    pictures: int
    largest_difference: float
    different: tuple[str, ...]  # names of pictures that got another answer alone, and whose it was
    refused: tuple[str, ...] = ()  # names of pictures that got none alone, and why


def ask_again(
    served: Served,
    pictures: Pictures,
    asked: Asked,
    tick: Callable[[float], None],
    stopping: Callable[[], bool],
) -> Again:
    """Ask about pictures from all over, one at a time with nothing else under way."""
    there = np.flatnonzero(asked.answered)
    rows = np.sort(np.random.default_rng(0).choice(there, min(_PICTURES, len(there)), replace=False))
    largest, different, refused, done = 0.0, list[str](), list[str](), 0
    with triton(served.url) as client:
        for row in map(int, rows):
            if stopping():
                break
            data = next(pictures.read(slice(row, row + 1)))
            done += 1
            try:
                answers, _ = ask(client, served, served.encode(data))
            except (InferenceServerException, BadAnswer) as exc:
                refused.append(f"{pictures.names[row]} ({exc})")
                continue
            apart = np.abs(asked.probabilities - answers[0]).max(axis=1)
            largest = max(largest, float(apart[row]))
            if apart[row] > _SAME_WITHIN:
                different.append(pictures.names[row] + _whose(pictures, int(np.nanargmin(apart)), apart))
            tick(done / len(rows))
    return Again(done, largest, tuple(different), tuple(refused))


def _whose(pictures: Pictures, nearest: int, apart: np.ndarray) -> str:  # type: ignore[type-arg]
    return f" (its answer went to {pictures.names[nearest]})" if apart[nearest] <= _SAME_WITHIN else ""
