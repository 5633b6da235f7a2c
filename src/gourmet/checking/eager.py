"""The answers of a served model beside those of the network that it was made from."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch

from gourmet.checking.asking import Asked
from gourmet.checking.pictures import Pictures
from gourmet.checking.served import Served
from gourmet.evaluating.accuracy import Scores
from gourmet.evaluating.calibration import softmax
from gourmet.systems import registry
from gourmet.systems.instances import available_cpus
from gourmet.systems.manifest import MANIFEST, sha256
from gourmet.training.memory import keep_freed_blocks

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


def weights_of(served: Served, version: str, repository: Path, runs: Path) -> tuple[Path | None, str]:
    """The weights that the manifest of a served version names, if they are among `runs`, or why not."""
    manifest = repository / served.name / version / MANIFEST
    try:
        digest = json.loads(manifest.read_text(encoding="utf-8"))["training"]["weights_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None, f"{manifest} does not name the weights that were exported: name them with --eager"
    for path in sorted((runs / served.system).glob("*.safetensors")):
        if sha256(path) == digest:
            return path, ""
    return None, (
        f"the weights {digest[:12]}… that version {version} was exported from are not in "
        f"{runs / served.system}: name them with --eager"
    )


def compare(
    served: Served,
    pictures: Pictures,
    asked: Asked,
    weights: Path,
    tick: Callable[[float], None],
    stopping: Callable[[], bool],
) -> Agreement | None:
    """Ask the network in `weights` about all pictures that were answered; None if stopped."""
    keep_freed_blocks()
    network, _ = registry.room(served.system, "evaluate").load(weights)
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
                probabilities[rows][there] = softmax(logits, served.temperature)
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
