"""The page and the routes of the food classifier."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response, render_template, request

from app.answers import PREDICT_KEYS, add_server_timing, classified, timings_ms
from app.api.openapi import Operation, documented, form
from app.api.routes import MODEL_PARAMETER
from app.api.shapes import Predicted
from app.classifier import Classifier
from app.inference import Deadline
from app.limits import take_turn
from app.settings import Settings
from app.uploads import photo
from app.web import render, request_id
from gourmet.systems.food11 import contract

_PREDICT: Final = Operation(
    Predicted,
    "The page's own form: one photo, answered as JSON for `Accept: application/json` and else as HTML.",
    errors=(400, 404, 408, 413, 415, 500, 502, 503, 504),
    bodies={"multipart/form-data": form(several=False)},
    query=MODEL_PARAMETER,
)


def blueprint(classifier: Classifier, settings: Settings) -> Blueprint:
    routes = Blueprint("food", __name__)

    @routes.get("/")
    def index() -> str:
        return render_template(
            "food.html", model=settings.food_model, max_upload_bytes=settings.max_upload_bytes
        )

    @routes.post("/predict")
    @documented("What food is on this photo", _PREDICT)
    def predict() -> Response:
        return _answer(photo(request, settings))

    @routes.get("/test")
    def test() -> Response:
        take_turn()
        return _answer(contract.sample())

    @routes.get("/sample.jpg")
    def sample() -> Response:
        return Response(contract.sample(), content_type="image/jpeg")

    def _answer(data: bytes) -> Response:
        model = request.args.get("model") or request.form.get("model", "")
        prediction = classifier.classify(data, Deadline(settings.request_deadline_s), request_id(), model)
        timings = timings_ms(prediction)
        answer = classified(prediction, timings)
        shown = {key: answer[key] for key in PREDICT_KEYS}
        response = render("food_result.html", shown, prediction=prediction, timings=timings)
        add_server_timing(response, timings)
        return response

    return routes
