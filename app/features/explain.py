"""POST /api/v1/explain: on which regions of a photo the answer rests, line by line as it is found out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from flask import Flask, Response, current_app, request

from app.admission.queue import keep_turn
from app.admission.rate_limit import count_photos
from app.api import openapi, schemas
from app.api.openapi import Operation, documented
from app.api.photo_calls import MODEL_PARAMETER, one_of
from app.api.request_parsing import photos_and_model
from app.classifier import Rows
from app.core.errors import BadRequest, HeatMapsBusy
from app.core.events import LINES, streamed
from app.core.http import marked, request_id
from app.core.tracing import carried
from app.features.feature import NavigationEntry, Services
from app.features.occlusion import GRIDS, STEPS, HeatMap, heat_maps
from app.triton.client import Deadline

# In one process; each asks Triton for one batch after another, so that others get their share of it.
AT_ONCE: Final = 1
# What a client's rate is charged, or all of it where it is less: about as many batches as there are.
COST_PHOTOS: Final = 16

_EXPLAIN: Final = Operation(
    "On which regions of this photo the answer rests",
    schemas.HeatMap,
    "Send one photo, in any of the ways of `classify`. Region after region is covered with the photo's mean "
    "colour and the model asked again, many at a time; the answer is lines of JSON, each sent as soon as it "
    "is there: `Progress`, a coarse `HeatMap`, more `Progress`, a finer `HeatMap`. The last line is a map "
    "with `final` true, or the `Error` that ended it. Few are made at a time: beyond that "
    "the answer is 429 with `heat_maps_busy` and `Retry-After`.",
    kinds={LINES: (schemas.Progress, schemas.Error, schemas.HeatMap)},
    errors=(400, 404, 408, 413, 415, 429, 500, 502, 503, 504),
    bodies=openapi.photos(several=False),
    query={
        **MODEL_PARAMETER,
        "label": "The label to explain; the likeliest unless given",
        "grid": f"{GRIDS[0]} for the coarse map alone; both are made unless given",
    },
    examples="explain",
)


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    settings, classifier = services.settings, services.classifier
    turns = threading.BoundedSemaphore(AT_ONCE)

    @services.api.post("/explain")
    @marked(admitted=True)
    @documented(_EXPLAIN)
    def explain() -> Response:
        photos, model = photos_and_model(request, settings)
        grid = int(one_of("grid", [str(grid) for grid in GRIDS]) or GRIDS[-1])
        if len(photos) != 1:
            raise BadRequest(f"one photo at a time is explained, and these are {len(photos)}")
        if photos[0].fault:
            raise photos[0].fault
        deadline = Deadline(settings.explain_deadline_s)
        rows = classifier.rows(deadline, request_id(), model)
        label = one_of("label", rows.labels)
        image = rows.system.pixels(photos[0].data)
        with contextlib.ExitStack() as held:
            held.callback(keep_turn())  # for Flask the request is over before the first line is made
            if not turns.acquire(blocking=False):
                raise HeatMapsBusy("another heat map is being made at the moment: ask again in a few seconds")
            held.callback(turns.release)
            if settings.rate_limit:
                count_photos(current_app, min(COST_PHOTOS, settings.rate_limit.requests))
            before = rows.ask(image[None])[0]
            class_id = rows.labels.index(label) if label else int(before.argmax())
            steps = [step for step in STEPS if step.grid <= grid]
            ask = carried(rows.ask)
            found = heat_maps(image, before[class_id], class_id, ask, rows.at_once, steps, deadline)
            shown = _shown(found, rows, class_id, float(before[class_id]))
            ends = held.pop_all()
        return streamed(shown, ends, LINES)

    return ()


def _shown(
    found: Iterator[schemas.Progress | HeatMap], rows: Rows, class_id: int, probability: float
) -> Iterator[schemas.Schema]:
    for part in found:
        if isinstance(part, schemas.Progress):
            yield part
            continue
        yield schemas.HeatMap(
            final=part.final,
            label=rows.labels[class_id],
            class_id=class_id,
            probability=probability,
            grid=part.step.grid,
            cover=part.step.share,
            falls=[[round(float(fall), 4) for fall in row] for row in part.falls],
            model=schemas.ModelName(name=rows.model, version=rows.version),
            request_id=request_id(),
        )
