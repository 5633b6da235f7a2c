"""The addresses of /api/v1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from flask import Blueprint, Response, current_app, jsonify, request

from app.answers import add_server_timing, classified, digit, timings_ms
from app.api import intake, shapes
from app.api.openapi import PHOTO, Operation, documented, form
from app.api.sample_answer import RESULTS
from app.api.several import Outcome, Several
from app.classifier import Classifier, Prediction, ServedModel
from app.errors import BadRequest, ServingError, UnknownModel, as_dict, for_visitor
from app.health import Readiness
from app.inference import Deadline
from app.rates import count_photos
from app.settings import Settings
from app.web import request_id
from gourmet.systems.digits import contract as digits
from gourmet.systems.food11 import contract as food11

_WAYS: Final = {
    "multipart/form-data": form(several=True),
    "image/*": PHOTO,
    "application/octet-stream": PHOTO,
    "application/json": shapes.Base64Photos,
}
MODEL_PARAMETER: Final = {"model": "One of the models that are ready; the default unless given"}
_PARAMETERS: Final = {
    **MODEL_PARAMETER,
    "inside": "`1` to be told as well how long Triton had the photo in its queue and with the model, which "
    "costs two more questions to Triton",
}

_MODELS: Final = Operation(
    shapes.Models,
    "Those of the food system that Triton has ready at the moment.",
    errors=(502, 503, 504),
)
_CLASSIFY: Final = Operation(
    shapes.Results,
    "Send photos as the fields `file` of a form, one photo as it is, or base64 texts. Each has its own "
    "result, in the same order, and one that cannot be used leaves the others unharmed.",
    errors=(400, 404, 408, 413, 415, 500, 502, 503, 504),
    fails_as_answer=(400, 413, 415, 500, 502, 503, 504),
    example=RESULTS,
    bodies=_WAYS,
    query=_PARAMETERS,
)
_DIGITS: Final = Operation(
    shapes.Digits,
    "Send pictures of one digit each, in the ways of `classify`: drawn or photographed, light on dark or "
    "dark on light. A picture of one colour is refused as `blank`.",
    errors=(400, 404, 408, 413, 415, 500, 502, 503, 504),
    fails_as_answer=(400, 413, 415, 500, 502, 503, 504),
    bodies=_WAYS,
    query=_PARAMETERS,
)
_HEALTH: Final = Operation(
    shapes.Health,
    "Asks the model its sample, at most once a second. Always 200, so that a page may ask again and again.",
    errors=(400,),
    query={"system": f"{food11.NAME}, which is meant unless given, or {digits.NAME}"},
    guarded=False,
)

Described = Callable[[Prediction, Mapping[str, float], str | None], dict[str, Any]]


def blueprint(
    classifiers: Mapping[str, Classifier],
    settings: Settings,
    readiness: Mapping[str, Readiness],
    several: Several,
) -> Blueprint:
    """The routes of the systems in `classifiers`, by their names; that of food photos is always there."""
    routes = Blueprint("api", __name__, url_prefix="/api/v1")

    def answered(system: str, described: Described) -> Response:
        call = intake.call(request, settings)
        count_photos(current_app, len(call.photos))
        deadline = Deadline(settings.request_deadline_s)
        asked_as = request_id()

        closely = request.args.get("inside") == "1"

        def ask(photo: bytes) -> Prediction:
            return classifiers[system].classify(photo, deadline, asked_as, call.model, closely=closely)

        outcomes = several.classify(call.photos, ask, deadline)
        for outcome in outcomes:
            if isinstance(outcome.result, UnknownModel):  # the fault of the call and of no photo
                raise outcome.result
        return _results(outcomes, described)

    @routes.get("/models")
    @documented("The models to choose from", _MODELS)
    def models() -> Response:
        found = classifiers[food11.NAME].models(Deadline(settings.request_deadline_s))
        listed = shapes.Models(default=settings.food_model, models=[_model(food) for food in found])
        return _answer(listed.as_dict())

    @routes.post("/classify")
    @documented("What food is on these photos", _CLASSIFY)
    def classify() -> Response:
        return answered(food11.NAME, classified)

    if digits.NAME in classifiers:

        @routes.post("/digits", endpoint="digits")
        @documented("Which digits these pictures show", _DIGITS)
        def read_digits() -> Response:
            return answered(digits.NAME, digit)

    @routes.get("/health")
    @documented("Whether a photo would be answered now", _HEALTH)
    def health() -> Response:
        system = request.args.get("system") or food11.NAME
        if system not in readiness:
            raise BadRequest(f"there is no system {system!r} here; there is {', '.join(readiness)}")
        return _answer(readiness[system].health().as_dict())

    return routes


def _answer(body: dict[str, Any]) -> Response:
    response = jsonify(body)
    response.headers["Cache-Control"] = "no-store"
    return response


def _results(outcomes: list[Outcome], described: Described) -> Response:
    """One photo has the status of its own error; of several, only a server that answered none tells by it."""
    results, errors, timings = [], [], {}
    for outcome in outcomes:
        name = outcome.photo.filename
        if isinstance(outcome.result, Prediction):
            timings = timings_ms(outcome.result, done_at=outcome.done_at, wait_ms=outcome.wait_ms)
            results.append(described(outcome.result, timings, name))
        else:
            errors.append(for_visitor(outcome.result))
            problem = shapes.Problem(**as_dict(errors[-1])["error"])
            results.append(shapes.Failed(filename=name, error=problem).as_dict())
    response = _answer({"results": results})
    if len(outcomes) == 1 and timings:
        add_server_timing(response, timings)
    if len(errors) == len(outcomes) and (len(errors) == 1 or all(e.status >= 500 for e in errors)):
        _blame(response, errors[0])
    return response


def _blame(response: Response, error: ServingError) -> None:
    response.status_code = error.status
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)


def _model(food: ServedModel) -> shapes.FoodModel:
    return shapes.FoodModel.model_validate(
        {
            "name": food.name,
            "version": food.version,
            "system": food11.NAME,
            "input": {**asdict(food.input), "shape": list(food.input.shape)},
            "threshold": food.threshold,
            "bytes_kind": food.bytes_kind,
        }
    )
