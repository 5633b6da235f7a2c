"""Which regions of a picture an answer rests on: each is covered in turn and the model asked again.

That needs nothing of a model but its answers, so it works for all that are served, whatever they are
made of. A region matters by as much as the probability falls when it is covered with the picture's mean
colour. A coarse grid comes first; a finer one, whose covers overlap, follows if there is time for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.api.schemas import Progress
from app.triton.client import Deadline
from gourmet.pictures.classifier import Floats
from gourmet.pictures.decode import Pixels


@dataclass(frozen=True)
class Step:
    """For each cell of a grid, a cover of so many of its cells a side with that cell in the middle."""

    grid: int
    cells: int

    @property
    def share(self) -> float:
        """What of the picture's side a cover hides."""
        return self.cells / self.grid


STEPS: Final = (Step(7, 1), Step(14, 3))
GRIDS: Final = tuple(step.grid for step in STEPS)


@dataclass(frozen=True)
class HeatMap:
    """By how much covering each cell lowers the probability, row by row; below zero where it rises."""

    step: Step
    falls: Floats
    final: bool


def heat_maps(
    image: Pixels,
    before: float,
    class_id: int,
    ask: Callable[[Pixels], Floats],
    at_once: int,
    steps: Sequence[Step],
    deadline: Deadline,
) -> Iterator[Progress | HeatMap]:
    """The maps of `steps`, each followed by the next if that can be done before the deadline.

    `before` is the probability of `class_id` for the uncovered `image`; `ask` answers at most `at_once`
    pictures with their probabilities.
    """
    total = sum(step.grid**2 for step in steps)
    done = 0
    started = time.monotonic()
    for step, then in zip(steps, [*steps[1:], None], strict=True):
        falls: list[float] = []
        for first in range(0, step.grid**2, at_once):
            cells = range(first, min(first + at_once, step.grid**2))
            falls.extend(before - ask(covered(image, step, cells))[:, class_id])
            done += len(cells)
            yield Progress(done=done, total=total)
        each_s = (time.monotonic() - started) / done
        final = then is None or then.grid**2 * each_s > deadline.left_s()
        yield HeatMap(step, np.asarray(falls, np.float32).reshape(step.grid, step.grid), final)
        if final:
            return


def covered(image: Pixels, step: Step, cells: Sequence[int]) -> Pixels:
    """[cells, height, width, 3]: `image` once for each of `cells`, with what lies around that hidden."""
    variants = np.repeat(image[np.newaxis], len(cells), axis=0)
    colour = image.mean(axis=(0, 1)).round().astype(np.uint8)
    for variant, cell in zip(variants, cells, strict=True):
        row, column = divmod(cell, step.grid)
        variant[_hidden(row, step, image.shape[0]), _hidden(column, step, image.shape[1])] = colour
    return variants


def _hidden(cell: int, step: Step, size: int) -> slice:
    beside = (step.cells - 1) / 2
    first, last = max(0.0, cell - beside), min(float(step.grid), cell + 1 + beside)
    return slice(round(first * size / step.grid), round(last * size / step.grid))
