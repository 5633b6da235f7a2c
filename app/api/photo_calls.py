"""A call with photos: read in any of its three ways, answered with a result for each photo."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from flask import Response, current_app, request
from pydantic import SerializeAsAny

from app.admission.rate_limit import count_photos
from app.api import schemas
from app.api.parallel import Outcome, classify
from app.api.request_parsing import photos_and_model
from app.api.responses import add_server_timing, predicted, timings_ms, unstored
from app.classifier import Prediction
from app.core.errors import BadRequest, ServingError, UnknownModel, as_dict, for_visitor
from app.core.http import render, request_id
from app.features.feature import Services
from app.triton.client import Deadline

ERRORS: Final = (400, 404, 408, 413, 415, 500, 502, 503, 504)
# Those that a photo which failed alone may have too.
PHOTO_ERRORS: Final = (400, 413, 415, 500, 502, 503, 504)
MODEL_PARAMETER: Final = {"model": "One of the models that are ready; the default unless given"}
PARAMETERS: Final = {
    **MODEL_PARAMETER,
    "inside": "`1` to be told as well how long Triton had the photo in its queue and with the model, which "
    "costs two more questions to Triton",
}

Describe = Callable[[Prediction, Mapping[str, float], str | None], schemas.Schema]


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

    def ask(photo: bytes) -> Prediction:
        return services.classifier.classify(
            photo, deadline, asked_as, model, system=system, with_server_timing=closely
        )

    outcomes = classify(services.photos, photos, ask, deadline)
    for outcome in outcomes:
        if isinstance(outcome.result, UnknownModel):  # the fault of the call and of no photo
            raise outcome.result
    return _results(outcomes, describe)


def _results(outcomes: list[Outcome], describe: Describe) -> Response:
    """One photo has the status of its own error; of several, only a server that answered none tells by it."""
    results: list[schemas.Schema] = []
    errors: list[ServingError] = []
    timings: Mapping[str, float] = {}
    for outcome in outcomes:
        name = outcome.photo.filename
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
        _blame(response, errors[0])
    return response


def _blame(response: Response, error: ServingError) -> None:
    response.status_code = error.status
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)


def form_answer(
    services: Services,
    data: bytes,
    system: str,
    describe: Callable[[Prediction, Mapping[str, float]], schemas.Predicted] = predicted,
    **context: Any,
) -> Response:
    """What a model of `system` makes of a form's one photo; JSON is as `describe` has it."""
    model = request.args.get("model") or request.form.get("model", "")
    deadline = Deadline(services.settings.request_deadline_s)
    prediction = services.classifier.classify(data, deadline, request_id(), model, system=system)
    timings = timings_ms(prediction)
    response = render(
        "photo_result.html",
        lambda: describe(prediction, timings),
        prediction=prediction,
        timings=timings,
        **context,
    )
    add_server_timing(response, timings)
    return response
