"""For whoever watches the app: is it alive, does its model really answer, and in numbers."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final, Literal

from flask import Blueprint, Response, current_app, jsonify

from app.api.shapes import Health, HealthModel
from app.classifier import Classifier, Prediction
from app.errors import RETRY_AFTER_S, ModelNotReady, ServingError, TritonUnavailable, as_dict
from app.inference import Deadline
from app.metrics import Metrics
from app.remembered import Remembered

SEEN_ENV: Final = "WEB_TRITON_SEEN_FILE"
_READY_AGE_S: Final = 1.0
DEADLINE_S: Final = 5.0
# How long a Triton that was never seen counts as starting; a large model on a slow disk takes minutes.
_STARTING_S: Final = 180.0


class Sighting:
    """Whether Triton was ever met; in `path`, which appears then, or in this process alone.

    gunicorn's workers share it: one that was started just now would take a Triton that went away for
    one that starts.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._seen = False

    @classmethod
    def shared(cls) -> Sighting:
        return cls(Path(os.environ[SEEN_ENV]) if os.environ.get(SEEN_ENV) else None)

    def __bool__(self) -> bool:
        self._seen = self._seen or (self._path is not None and self._path.exists())
        return self._seen

    def remember(self) -> None:
        if not self:
            self._seen = True
            if self._path is not None:
                with contextlib.suppress(OSError):  # a full disk; this process knows
                    self._path.touch()


class Readiness:
    """Whether `model` answers its sample, asked at most once a second however many want to know."""

    def __init__(self, classifier: Classifier, model: str, deadline_s: float, seen: Sighting) -> None:
        self._classifier = classifier
        self._model = model
        self._deadline_s = deadline_s
        self._remembered = Remembered(self._ask, _READY_AGE_S)
        self._started_at = time.monotonic()
        self._seen = seen

    def check(self) -> Prediction | ServingError:
        return self._remembered.get()

    def health(self) -> Health:
        """The same for people and their pages."""
        found = self.check()
        if not isinstance(found, ServingError):
            model = HealthModel(name=found.model, version=found.version)
            message = f"{found.model} answers"
            return Health(alive=True, ready=True, state="ready", message=message, model=model)
        state: Literal["starting", "loading", "not_ready", "away"] = "away"
        if isinstance(found, ModelNotReady):
            state = "loading" if found.loading else "not_ready"
        elif isinstance(found, TritonUnavailable) and self._just_started():
            state = "starting"
        return Health(
            alive=True,
            ready=False,
            state=state,
            code=found.code,
            message=str(found),
            model=HealthModel(name=self._model),
        )

    def _just_started(self) -> bool:
        # Triton opens its port only when its models are loaded: until then nobody can tell the two apart.
        return not self._seen and time.monotonic() - self._started_at < _STARTING_S

    def _ask(self) -> Prediction | ServingError:
        try:
            sample = self._classifier.system.sample()
            answer = self._classifier.classify(sample, Deadline(self._deadline_s), "readyz")
        except ServingError as error:
            if not isinstance(error, TritonUnavailable):
                self._seen.remember()
            return error
        self._seen.remember()
        return answer


def blueprint(readiness: Readiness) -> Blueprint:
    routes = Blueprint("health", __name__)

    @routes.get("/healthz")
    def healthz() -> Response:
        return jsonify(alive=True)

    @routes.get("/readyz")
    def readyz() -> Response:
        state = readiness.check()
        if not isinstance(state, ServingError):
            return jsonify(ready=True, model={"name": state.model, "version": state.version})
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
