"""POST /api/v1/explain: stream heat maps of the regions of a photo that matter for the answer.

Each region is covered in turn with the picture's mean colour, and the model is asked again. A region matters
as much as the probability falls when it is covered. This needs only a model's answers, so it works for every
served model. A coarse grid comes first. A finer grid, whose covers overlap, follows if there is time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from flask import Flask, Response

from app.api import schemas
from app.api.openapi import MODEL, VERSION, operation, parameter
from app.api.texts import LINES, streamed
from app.api.uploads import one_of, only_photo, photos_and_model
from app.models import AskRows, Model
from app.services import NavigationEntry, Services
from app.web.admission import admission, deadline_of_request
from app.web.errors import ServingError
from app.web.http import request_id, route_options
from app.web.rate_limit import count_photos
from app.web.tracing import carried
from gourmet.pictures.certainty import Floats
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import Pixels
from gourmet.served.fair_queue import FairQueue
from gourmet.triton_client.deadline import Deadline

# A heat map's charge against the client's rate limit, unless the limit itself is lower.
COST_PHOTOS: Final = 16
# Covered pictures in a request to Triton. With sixteen, requests of others wait twice as long.
_TOGETHER: Final = 4


class Step(NamedTuple):
    """A pass over the photo with one cover around each cell of a grid, `cells` cells wide and high."""

    grid: int
    cells: int


STEPS: Final = (Step(7, 1), Step(14, 3))
GRIDS: Final = tuple(step.grid for step in STEPS)
_GRIDS: Final = tuple(map(str, GRIDS))


def add_routes(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    settings, classifier = services.settings, services.classifier
    queue = FairQueue(1)

    @services.api.post("/explain")
    @route_options(admitted="heat maps")
    @operation(
        json=schemas.Base64Photo,
        max_photos=1,
        lines=(schemas.Progress, schemas.Error, schemas.HeatMap),
        parameters=MODEL
        | VERSION
        | {
            "label": parameter("The label to explain, or `not food`; by default the model's answer"),
            "grid": parameter("`7` for the coarse map only; by default both", *_GRIDS),
        },
    )
    def explain() -> Response:
        """Stream heat maps that show which regions of the photo matter for the answer.

        Send one photo in any way of `classify`. The app covers region after region with the photo's mean
        colour and asks the model again. The answer is lines of JSON, each sent as soon as it is there:
        `Progress`, a coarse `HeatMap`, more `Progress`, a finer `HeatMap`. The last line is a map with
        `final` true, or an `Error`.
        """
        photos, model = photos_and_model(settings)
        grid = int(one_of("grid", _GRIDS) or GRIDS[-1])
        photo = only_photo(photos, "one photo at a time is explained")
        deadline = deadline_of_request()
        served, ask = classifier.rows(deadline, model)
        labels = served.labels
        if served.system.subject and served.subject_threshold:
            labels = (*labels, f"not {served.system.subject}")
        label = one_of("label", labels)
        image = classifier.pixels(served.system, photo, deadline)
        with contextlib.ExitStack() as held:
            # Flask ends the request before the first line is made.
            held.callback(admission().keep_place())
            count_photos(COST_PHOTOS, capped=True)
            before = ask(image[None])[0]
            class_id = labels.index(label) if label else _answered_column(before, served)
            maps = heat_maps(
                image,
                in_turn(carried(ask), queue, deadline),
                min(_TOGETHER, max(1, served.info.max_batch_size)),
                [step for step in STEPS if step.grid <= grid],
                deadline,
                label=labels[class_id],
                class_id=class_id,
                probability=float(before[class_id]),
                model=schemas.ModelName(name=served.info.name, version=served.info.version),
                request_id=request_id(),
            )
            ends = held.pop_all()
        return streamed(maps, ends, LINES)

    return ()


def _answered_column(row: Floats, served: Model[PictureClassifier]) -> int:
    """Return the column of `row` with the model's answer: a label, or the last one for something else."""
    labels = len(served.labels)
    is_denied = len(row) > labels and 1.0 - row[labels] < served.subject_threshold
    return labels if is_denied else int(row[:labels].argmax())


def in_turn(ask: AskRows, queue: FairQueue, deadline: Deadline) -> AskRows:
    """Return `ask` limited to one batch of all heat maps at a time, so that photos get their share."""

    def ask_in_turn(images: Pixels) -> Floats:
        try:
            until = time.monotonic() + deadline.left_s()
            with queue.place(deadline.client, until, deadline.is_cancelled):
                return ask(images)
        except TimeoutError:
            raise ServingError("triton_too_slow", "the heat map could not be made in time") from None

    return ask_in_turn


def heat_maps(
    image: Pixels,
    ask: AskRows,
    at_once: int,
    steps: Sequence[Step],
    deadline: Deadline,
    **about: Any,
) -> Iterator[schemas.Progress | schemas.HeatMap]:
    """Yield progress and the map of each step, until the next map would miss the deadline.

    `ask` returns the probabilities of at most `at_once` pictures; `about` are the fields that all maps share.
    """
    total = sum(step.grid**2 for step in steps)
    done = 0
    started = time.monotonic()
    for step, then in zip(steps, [*steps[1:], None], strict=True):
        falls: list[float] = []
        for first in range(0, step.grid**2, at_once):
            cells = range(first, min(first + at_once, step.grid**2))
            falls.extend(about["probability"] - ask(covered(image, step, cells))[:, about["class_id"]])
            done += len(cells)
            yield schemas.Progress(done=done, total=total)
        cover_s = (time.monotonic() - started) / done
        final = then is None or then.grid**2 * cover_s > deadline.left_s()
        rows = np.reshape(falls, (step.grid, step.grid)).astype(float).round(4).tolist()
        yield schemas.HeatMap(**about, final=final, grid=step.grid, cover=step.cells / step.grid, falls=rows)
        if final:
            return


def covered(image: Pixels, step: Step, cells: Sequence[int]) -> Pixels:
    """Return [cells, height, width, 3]: a copy of `image` for each cell, with the cell's region covered."""
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
