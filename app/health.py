"""For whoever watches the app: is it alive, does its model really answer, and in numbers."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from flask import Blueprint, Response, current_app, jsonify

from app.errors import RETRY_AFTER_S, ServingError, as_dict
from app.food import Classifier
from app.inference import Deadline
from app.metrics import Metrics
from app.settings import Settings
from gourmet.systems.food11 import contract

_READY_AGE_S: Final = 1.0
_READY_DEADLINE_S: Final = 5.0


class Readiness:
    """Whether the model answers its sample, asked at most once a second however many want to know."""

    def __init__(self, classifier: Classifier, deadline_s: float) -> None:
        self._classifier = classifier
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._checked_at = float("-inf")
        self._state: dict[str, Any] | ServingError = {}

    def check(self) -> dict[str, Any] | ServingError:
        with self._lock:
            if time.monotonic() - self._checked_at >= _READY_AGE_S:
                self._state = self._ask()
                self._checked_at = time.monotonic()
            return self._state

    def _ask(self) -> dict[str, Any] | ServingError:
        try:
            prediction = self._classifier.classify(contract.sample(), Deadline(self._deadline_s), "readyz")
        except ServingError as error:
            return error
        return {"ready": True, "model": {"name": prediction.model, "version": prediction.version}}


def blueprint(classifier: Classifier, settings: Settings) -> Blueprint:
    routes = Blueprint("health", __name__)
    readiness = Readiness(classifier, min(_READY_DEADLINE_S, settings.request_deadline_s))

    @routes.get("/healthz")
    def healthz() -> Response:
        return jsonify(alive=True)

    @routes.get("/readyz")
    def readyz() -> Response:
        state = readiness.check()
        if not isinstance(state, ServingError):
            return jsonify(state)
        response = jsonify(ready=False, **as_dict(state))
        response.status_code = 503  # whatever the reason: send no requests here for now
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response

    @routes.get("/metrics")
    def metrics() -> Response:
        measured: Metrics = current_app.extensions["metrics"]
        text, content_type = measured.text()
        return Response(text, content_type=content_type)

    return routes
