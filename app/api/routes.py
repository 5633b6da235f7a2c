"""The addresses of /api/v1."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from flask import Blueprint, Response, current_app, jsonify, request

from app.answers import add_server_timing, classified, timings_ms
from app.api import intake, shapes
from app.api.openapi import PHOTO, Operation, documented, form
from app.api.sample_answer import RESULTS
from app.api.several import Outcome, Several
from app.errors import ServingError, UnknownModel, as_dict, for_visitor
from app.food import Classifier, FoodModel, Prediction
from app.health import Readiness
from app.inference import Deadline
from app.rates import count_photos
from app.settings import Settings
from app.web import request_id
from gourmet.systems.food11 import contract

MODEL_PARAMETER: Final = {"model": "One of the models that are ready; the default unless given"}

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
    bodies={
        "multipart/form-data": form(several=True),
        "image/*": PHOTO,
        "application/octet-stream": PHOTO,
        "application/json": shapes.Base64Photos,
    },
    query=MODEL_PARAMETER,
)
_HEALTH: Final = Operation(
    shapes.Health,
    "Asks the model its sample, at most once a second. Always 200, so that a page may ask again and again.",
    guarded=False,
)


def blueprint(
    classifier: Classifier, settings: Settings, readiness: Readiness, several: Several
) -> Blueprint:
    routes = Blueprint("api", __name__, url_prefix="/api/v1")

    @routes.get("/models")
    @documented("The models to choose from", _MODELS)
    def models() -> Response:
        found = classifier.models(Deadline(settings.request_deadline_s))
        listed = shapes.Models(default=settings.food_model, models=[_model(food) for food in found])
        return _answer(listed.as_dict())

    @routes.post("/classify")
    @documented("What food is on these photos", _CLASSIFY)
    def classify() -> Response:
        call = intake.call(request, settings)
        count_photos(current_app, len(call.photos))
        deadline = Deadline(settings.request_deadline_s)
        asked_as = request_id()

        def ask(photo: bytes) -> Prediction:
            return classifier.classify(photo, deadline, asked_as, call.model)

        outcomes = several.classify(call.photos, ask, deadline)
        for outcome in outcomes:
            if isinstance(outcome.result, UnknownModel):  # the fault of the call and of no photo
                raise outcome.result
        return _results(outcomes)

    @routes.get("/health")
    @documented("Whether a photo would be answered now", _HEALTH)
    def health() -> Response:
        return _answer(readiness.health().as_dict())

    return routes


def _answer(body: dict[str, Any]) -> Response:
    response = jsonify(body)
    response.headers["Cache-Control"] = "no-store"
    return response


def _results(outcomes: list[Outcome]) -> Response:
    """One photo has the status of its own error; of several, only a server that answered none tells by it."""
    results, errors, timings = [], [], {}
    for outcome in outcomes:
        name = outcome.photo.filename
        if isinstance(outcome.result, Prediction):
            timings = timings_ms(outcome.result, done_at=outcome.done_at, wait_ms=outcome.wait_ms)
            results.append(classified(outcome.result, timings, name))
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


def _model(food: FoodModel) -> shapes.FoodModel:
    return shapes.FoodModel.model_validate(
        {
            "name": food.name,
            "version": food.version,
            "system": contract.NAME,
            "input": {**asdict(food.input), "shape": list(food.input.shape)},
            "threshold": food.threshold,
            "bytes_kind": food.bytes_kind,
        }
    )
