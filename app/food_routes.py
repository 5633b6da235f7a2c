"""The page and the routes of the food classifier."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, current_app, g, render_template, request

from app.food import Classifier, Prediction
from app.inference import Deadline
from app.metrics import Metrics
from app.settings import Settings
from app.uploads import photo
from app.web import render, request_id, since_start_ms
from gourmet.systems.food11 import contract


def blueprint(classifier: Classifier, settings: Settings) -> Blueprint:
    routes = Blueprint("food", __name__)

    @routes.get("/")
    def index() -> str:
        return render_template(
            "food.html", model=settings.food_model, max_upload_bytes=settings.max_upload_bytes
        )

    @routes.post("/predict")
    def predict() -> Response:
        return _answer(photo(request, settings))

    @routes.get("/test")
    def test() -> Response:
        return _answer(contract.sample())

    @routes.get("/sample.jpg")
    def sample() -> Response:
        return Response(contract.sample(), content_type="image/jpeg")

    def _answer(data: bytes) -> Response:
        prediction = classifier.classify(data, Deadline(settings.request_deadline_s), request_id())
        timings = {
            "receive": float(g.get("receive_ms", 0.0)),
            **prediction.timings_ms,
            "total": since_start_ms(),
        }
        metrics: Metrics = current_app.extensions["metrics"]
        metrics.observe_prediction(prediction.model, prediction.label, timings)
        response = render(
            "food_result.html", _as_dict(prediction, timings), prediction=prediction, timings=timings
        )
        response.headers["Server-Timing"] = ", ".join(
            f"{phase};dur={ms:.1f}" for phase, ms in timings.items()
        )
        return response

    return routes


def _as_dict(prediction: Prediction, timings: dict[str, float]) -> dict[str, Any]:
    return {
        "label": prediction.label,
        "probability": prediction.probability,
        "sure": prediction.sure,
        "top": [{"label": label, "probability": probability} for label, probability in prediction.top],
        "model": {"name": prediction.model, "version": prediction.version},
        "timings_ms": {phase: round(ms, 2) for phase, ms in timings.items()},
        "request_id": request_id(),
    }
