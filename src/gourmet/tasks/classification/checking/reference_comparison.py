"""The answers of a served model beside those of the network that it was made from."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch

from gourmet.runtime import malloc
from gourmet.runtime.instances import available_cpus
from gourmet.tasks.classification import furniture
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.calibration import softmax
from gourmet.tasks.classification.checking.pictures import Pictures
from gourmet.tasks.classification.checking.requests import Asked
from gourmet.tasks.classification.checking.served import Served

_ROWS: Final = 32
_WORST: Final = 10


@dataclass(frozen=True)
class Apart:
    """One picture about which the two disagree, or agree least."""

    name: str
    served: int  # the class answered
    served_sure: float
    eager: int
    eager_sure: float
    difference: float


@dataclass(frozen=True)
class Agreement:
    """How far a served model is from its network, over the pictures that it answered."""

    weights: Path
    pictures: int
    different: int  # answered with another class
    largest_difference: float  # of any probability
    worst: tuple[Apart, ...]
    top1: float | None  # of the network itself, where there are labels


def compare(
    served: Served,
    pictures: Pictures,
    asked: Asked,
    weights: Path,
    tick: Callable[[float], None],
    stopping: Callable[[], bool],
) -> Agreement | None:
    """Ask the network in `weights` about all pictures that were answered; None if stopped."""
    malloc.use(malloc.TRAINING)
    network, _ = furniture.load(served.info.system)(weights)
    probabilities = np.empty_like(asked.probabilities, dtype=np.float64)
    encode = partial(served.contract.encode, datatype="FP32")
    everything = pictures.read(slice(None))
    with ThreadPoolExecutor(available_cpus()) as pool, torch.inference_mode():
        for first in range(0, len(pictures), _ROWS):
            if stopping():
                return None
            blobs = [next(everything) for _ in pictures.names[first : first + _ROWS]]
            there = asked.answered[first : first + _ROWS]
            encoded = pool.map(
                encode, [blob for blob, answered in zip(blobs, there, strict=True) if answered]
            )
            rows = slice(first, first + len(blobs))
            probabilities[rows] = np.nan
            if there.any():
                logits = network(torch.from_numpy(np.concatenate(list(encoded)))).float().numpy()
                probabilities[rows][there] = softmax(logits, served.info.temperature)
            tick((first + len(blobs)) / len(pictures))
    return agreement(asked.probabilities, probabilities, pictures, weights)


def agreement(mine: Scores, theirs: Scores, pictures: Pictures, weights: Path) -> Agreement:
    """Set the served answers `mine` against `theirs`, row by row."""
    there = np.flatnonzero(~np.isnan(mine[:, 0]))
    apart = np.abs(mine[there] - theirs[there]).max(axis=1)
    best, right = mine[there].argmax(axis=1), theirs[there].argmax(axis=1)
    # Other classes first, and the largest differences first among them.
    order = np.lexsort((-apart, best == right))[:_WORST]
    return Agreement(
        weights=weights,
        pictures=len(there),
        different=int((best != right).sum()),
        largest_difference=float(apart.max()),
        worst=tuple(
            Apart(
                pictures.names[int(there[row])],
                int(best[row]),
                float(mine[there[row]].max()),
                int(right[row]),
                float(theirs[there[row]].max()),
                float(apart[row]),
            )
            for row in order
        ),
        top1=None if pictures.classes is None else float(np.mean(right == pictures.classes[there])),
    )
