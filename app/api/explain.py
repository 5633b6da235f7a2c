"""POST /api/v1/explain: on which regions of a photo the answer rests, line by line as it is found out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

from flask import Blueprint, Response, current_app, request, stream_with_context

from app.api import intake, shapes
from app.api.openapi import LINES, PHOTO, Operation, documented, form
from app.api.routes import MODEL_PARAMETER
from app.classifier import Classifier, Rows
from app.errors import BadRequest, HeatMapsBusy, as_dict, for_visitor
from app.heat_map import GRIDS, STEPS, HeatMap, Progress, heat_maps
from app.inference import Deadline
from app.limits import keep_turn
from app.rates import count_photos
from app.settings import Settings
from app.tracing import carried
from app.web import request_id

# In one process; each asks Triton for one batch after another, so that others get their share of it.
AT_ONCE: Final = 1
# What a client's rate is charged, or all of it where it is less: about as many batches as there are.
COST_PHOTOS: Final = 16

_EXPLAIN: Final = Operation(
    shapes.HeatMap,
    "Send one photo, in any of the ways of `classify`. Region after region is covered with the photo's mean "
    "colour and the model asked again, many at a time; the answer is lines of JSON, each sent as soon as it "
    "is there: `Progress`, a coarse `HeatMap`, more `Progress`, a finer `HeatMap`. The last line is a map "
    "with `final` true, or the `Error` that ended it. Few are made at a time: beyond that "
    "the answer is 429 with `heat_maps_busy` and `Retry-After`.",
    other_lines=(shapes.Progress, shapes.Error),
    errors=(400, 404, 408, 413, 415, 429, 500, 502, 503, 504),
    bodies={
        "multipart/form-data": form(several=False),
        "image/*": PHOTO,
        "application/octet-stream": PHOTO,
        "application/json": shapes.Base64Photos,
    },
    query={
        **MODEL_PARAMETER,
        "label": "The label to explain; the likeliest unless given",
        "grid": f"{GRIDS[0]} for the coarse map alone; both are made unless given",
    },
)


def add_to(routes: Blueprint, classifier: Classifier, settings: Settings) -> None:
    turns = threading.BoundedSemaphore(AT_ONCE)
    labels = classifier.system.LABELS

    @routes.post("/explain")
    @documented("On which regions of this photo the answer rests", _EXPLAIN)
    def explain() -> Response:
        call = intake.call(request, settings)
        label = _one_of("label", labels)
        grid = int(_one_of("grid", [str(grid) for grid in GRIDS]) or GRIDS[-1])
        if len(call.photos) != 1:
            raise BadRequest(f"one photo at a time is explained, and these are {len(call.photos)}")
        if call.photos[0].fault:
            raise call.photos[0].fault
        deadline = Deadline(settings.explain_deadline_s)
        image = classifier.system.pixels(call.photos[0].data)
        with contextlib.ExitStack() as held:
            held.callback(keep_turn())  # for Flask the request is over before the first line is made
            held.enter_context(_turn(turns))
            _charge(settings)
            rows = classifier.rows(deadline, request_id(), call.model)
            before = rows.ask(image[None])[0]
            class_id = labels.index(label) if label else int(before.argmax())
            steps = [step for step in STEPS if step.grid <= grid]
            ask = carried(rows.ask)
            found = heat_maps(image, before[class_id], class_id, ask, rows.at_once, steps, deadline)
            shown = _shown(found, rows, labels[class_id], class_id, float(before[class_id]))
            ends = held.pop_all()
        response = Response(stream_with_context(_lines(shown, ends)), content_type=LINES)
        response.call_on_close(ends.close)  # also where nobody reads a single line
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Accel-Buffering"] = "no"  # nginx would keep the lines until there are many
        return response


@contextlib.contextmanager
def _turn(turns: threading.BoundedSemaphore) -> Iterator[None]:
    if not turns.acquire(blocking=False):
        raise HeatMapsBusy("another heat map is being made at the moment: ask again in a few seconds")
    try:
        yield
    finally:
        turns.release()


def _charge(settings: Settings) -> None:
    if settings.rate_limit:
        count_photos(current_app, min(COST_PHOTOS, settings.rate_limit.requests))


def _one_of(parameter: str, allowed: tuple[str, ...] | list[str]) -> str:
    given = request.args.get(parameter, "")
    if given and given not in allowed:
        raise BadRequest(f"{parameter} is {given!r}: allowed are {', '.join(allowed)}")
    return given


def _shown(
    found: Iterator[Progress | HeatMap], rows: Rows, label: str, class_id: int, probability: float
) -> Iterator[shapes.Shape]:
    for part in found:
        if isinstance(part, Progress):
            yield shapes.Progress(done=part.done, total=part.total)
            continue
        yield shapes.HeatMap(
            final=part.final,
            label=label,
            class_id=class_id,
            probability=probability,
            grid=part.step.grid,
            cover=part.step.share,
            falls=[[round(float(fall), 4) for fall in row] for row in part.falls],
            model=shapes.ModelName(name=rows.model, version=rows.version),
            request_id=request_id(),
        )


def _lines(shown: Iterator[shapes.Shape], ends: contextlib.ExitStack) -> Iterator[str]:
    """The status was sent before the first line, so an error is a line too."""
    with ends:
        try:
            for shape in shown:
                yield shape.model_dump_json(exclude_none=True) + "\n"
        except Exception as exc:
            problem = shapes.Problem(**as_dict(for_visitor(exc))["error"])
            yield shapes.Error(error=problem).model_dump_json() + "\n"
