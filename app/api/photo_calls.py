"""A call with photos: read in any of its three ways, answered with a result for each photo.

Each photo is a request of its own to Triton. One request with a row for each would be a little cheaper, but a
model that decodes fails the whole request for one broken row, and nobody would know which. Requests that
arrive together are what Triton's dynamic batcher makes a batch of, and decoding here uses the other cores
meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from flask import Response, current_app, request
from pydantic import SerializeAsAny

from app.admission.rate_limit import count_photos
from app.api import schemas
from app.api.request_parsing import Photo, photos_and_model
from app.api.responses import add_server_timing, timings_ms, told, unstored
from app.classifier import Prediction
from app.core.errors import BadRequest, ServingError, TritonTooSlow, UnknownModel, as_dict, for_visitor
from app.core.http import render, request_id
from app.core.tracing import carried
from app.triton.client import Deadline

if TYPE_CHECKING:
    from app.features.feature import Services

# Threads of a process for all calls of several photos together, so that one such call leaves the
# others, and those who send one photo, their share of Triton.
THREADS: Final = 4
MODEL_PARAMETER: Final = {"model": "One of the models that are ready; the default unless given"}
PARAMETERS: Final = {
    **MODEL_PARAMETER,
    "inside": "`1` to be told as well how long Triton had the photo in its queue and with the model, which "
    "costs two more questions to Triton",
}

Describe = Callable[[Prediction, Mapping[str, float], str | None], schemas.Schema]


@dataclass(frozen=True)
class _Outcome:
    """What became of a photo; `done_at` is a moment of time.perf_counter()."""

    photo: Photo
    result: Prediction | Exception
    wait_ms: float | None
    done_at: float


class _Results(schemas.Schema):
    """`Results` of whatever schema; what is in them was checked when it was made."""

    results: list[SerializeAsAny[schemas.Schema]]


def one_of(parameter: str, allowed: Collection[str]) -> str:
    """A parameter of the query that is one of `allowed`, or empty."""
    given = request.args.get(parameter, "")
    if given and given not in allowed:
        raise BadRequest(f"{parameter} is {given!r}; allowed: {', '.join(allowed)}")
    return given


def answer(services: Services, describe: Describe, system: str = "") -> Response:
    """What is on this request's photos, each put by `describe`."""
    photos, model = photos_and_model(request, services.settings)
    count_photos(current_app, len(photos))
    deadline = Deadline(services.settings.request_deadline_s)
    asked_as, closely = request_id(), request.args.get("inside") == "1"

    def ask(photo: Photo, submitted: float | None = None) -> _Outcome:
        wait_ms = None if submitted is None else (time.perf_counter() - submitted) * 1000
        result: Prediction | Exception
        try:
            result = photo.fault or services.classifier.classify(
                photo.data, deadline, asked_as, model, system=system, with_server_timing=closely
            )
        except Exception as exc:
            result = exc
        return _Outcome(photo, result, wait_ms, time.perf_counter())

    if len(photos) == 1:
        return _results([ask(photos[0])], describe)
    within, now = carried(ask), time.perf_counter()
    futures = [services.photos.submit(within, photo, now) for photo in photos]
    # A call ends by itself at the deadline; a little later is for those that wait for a thread.
    late = wait(futures, deadline.left_s() + 0.2).not_done
    for future in late:
        future.cancel()
    too_slow = TritonTooSlow(f"there was no answer within {deadline.seconds:g} s")
    return _results(
        [
            _Outcome(photo, too_slow, None, time.perf_counter()) if future in late else future.result()
            for photo, future in zip(photos, futures, strict=True)
        ],
        describe,
    )


def _results(outcomes: list[_Outcome], describe: Describe) -> Response:
    """One photo has the status of its own error; of several, only a server that answered none tells by it."""
    results: list[schemas.Schema] = []
    errors: list[ServingError] = []
    timings: Mapping[str, float] = {}
    for outcome in outcomes:
        name = outcome.photo.filename
        if isinstance(outcome.result, UnknownModel):  # the fault of the call and of no photo
            raise outcome.result
        if isinstance(outcome.result, Prediction):
            timings = timings_ms(outcome.result, done_at=outcome.done_at, wait_ms=outcome.wait_ms)
            results.append(describe(outcome.result, timings, name))
        else:
            errors.append(for_visitor(outcome.result))
            problem = schemas.Problem(**as_dict(errors[-1])["error"])
            results.append(schemas.Failed(filename=name, error=problem))
    response = unstored(_Results(results=results))
    if len(outcomes) == 1 and timings:
        add_server_timing(response, timings)
    if len(errors) == len(outcomes) and (len(errors) == 1 or all(e.status >= 500 for e in errors)):
        response.status_code = errors[0].status
        if errors[0].retry_after_s is not None:
            response.headers["Retry-After"] = str(errors[0].retry_after_s)
    return response


def form_answer(
    services: Services,
    data: bytes,
    system: str,
    shape: type[schemas.Predicted] = schemas.Predicted,
    **context: Any,
) -> Response:
    """What a model of `system` makes of a form's one photo; JSON is of `shape`."""
    model = request.args.get("model") or request.form.get("model", "")
    deadline = Deadline(services.settings.request_deadline_s)
    prediction = services.classifier.classify(data, deadline, request_id(), model, system=system)
    timings = timings_ms(prediction)
    response = render(
        "photo_result.html",
        lambda: told(shape, prediction, timings),
        prediction=prediction,
        timings=timings,
        **context,
    )
    add_server_timing(response, timings)
    return response
