"""For monitoring: is the app alive, does its model really answer, and in numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from flask import Blueprint, Response, current_app, jsonify
from prometheus_client import CONTENT_TYPE_LATEST

from app.api.schemas import Health, HealthModel
from app.classifier import Classifier
from app.core.errors import RETRY_AFTER_S, ModelNotReady, ServingError, TritonUnavailable, as_dict
from app.core.http import JSON, App, WsgiAnswer, given_or_new_id, marked
from app.core.metrics import Metrics
from app.core.settings import Settings
from app.core.ttl_cache import TtlCache
from app.generator import Generator
from app.triton.client import Deadline
from gourmet.contracts import System

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

_READY_AGE_S: Final = 1.0
DEADLINE_S: Final = 5.0
# A page is shown without what it would list rather than late.
LINK_DEADLINE_S: Final = 1.0
# How long a Triton that was never seen counts as starting; a large model on a slow disk takes minutes.
_STARTING_S: Final = 180.0
_ALIVE: Final = b'{"alive":true}\n'


class Readiness:
    """Whether `model` answers its sample, asked at most once a second however many want to know."""

    def __init__(self, ask: Callable[[], HealthModel], model: str) -> None:
        self._ask_sample = ask
        self._model = model
        self.check = TtlCache(self._ask, _READY_AGE_S).get
        self._starting_until = time.monotonic() + _STARTING_S

    def health(self) -> Health:
        """The same for people and their pages."""
        found = self.check()
        if not isinstance(found, ServingError):
            message = f"{found.name} answers"
            return Health(alive=True, ready=True, state="ready", message=message, model=found)
        state: Literal["starting", "loading", "not_ready", "away"] = "away"
        if isinstance(found, ModelNotReady):
            state = "loading" if found.loading else "not_ready"
        elif isinstance(found, TritonUnavailable) and time.monotonic() < self._starting_until:
            state = "starting"
        model = HealthModel(name=self._model)
        return Health(alive=True, ready=False, state=state, code=found.code, message=str(found), model=model)

    def _ask(self) -> HealthModel | ServingError:
        answer: HealthModel | ServingError
        try:
            answer = self._ask_sample()
        except ServingError as error:
            answer = error
        if not isinstance(answer, TritonUnavailable):
            # Triton opens its port only when its models are loaded: until then nobody can tell whether it
            # starts or is away, and from now on it is away.
            self._starting_until = 0.0
        return answer


def readiness_of(
    systems: Mapping[str, System], settings: Settings, classifier: Classifier, generator: Generator
) -> dict[str, Readiness]:
    """For each system, whether the model that is configured for it answers; first of all the first one."""

    def ask(system: System, wait_s: float) -> HealthModel:
        deadline = Deadline(wait_s)
        if system.task == "classification":
            answered = classifier.classify(system.sample(), deadline, "readyz", system=system.name)
            return HealthModel(name=answered.model, version=answered.version)
        info = generator.ask_sample(system.name, deadline)
        return HealthModel(name=info.name, version=info.version)

    found: dict[str, Readiness] = {}
    for name, system in systems.items():
        # Others are asked for every page's navigation, which does not wait for long.
        wait_s = LINK_DEADLINE_S if found else min(DEADLINE_S, settings.request_deadline_s)
        found[name] = Readiness(partial(ask, system, wait_s), settings.models[name])
    return found


def answer_before_flask(app: App) -> None:
    """Answer a plain GET /healthz as the view does, without what Flask does for every request."""
    metrics: Metrics = app.extensions["metrics"]

    def answer(environ: WSGIEnvironment) -> WsgiAnswer | None:
        has_body = environ.get("CONTENT_LENGTH") or "HTTP_TRANSFER_ENCODING" in environ
        if environ["PATH_INFO"] != "/healthz" or environ["REQUEST_METHOD"] != "GET" or has_body:
            return None
        started = time.perf_counter()
        number = given_or_new_id(environ.get("HTTP_X_REQUEST_ID", ""))
        metrics.observe_request("/healthz", "GET", 200, time.perf_counter() - started)
        return "200 OK", {"Content-Type": JSON, "X-Request-ID": number}, _ALIVE

    app.before_flask.append(answer)


def blueprint(readiness: Readiness) -> Blueprint:
    routes = Blueprint("health", __name__)

    @routes.get("/healthz")
    @marked(probe=True)
    def healthz() -> Response:
        return Response(_ALIVE, content_type=JSON)

    @routes.get("/readyz")
    @marked(probe=True)
    def readyz() -> Response:
        state = readiness.check()
        if not isinstance(state, ServingError):
            return jsonify(ready=True, model=state.as_dict())
        response = jsonify(ready=False, **as_dict(state))
        response.status_code = 503  # whatever the reason: send no requests here for now
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response

    @routes.get("/metrics")
    @marked(probe=True)
    def metrics() -> Response:
        measured: Metrics = current_app.extensions["metrics"]
        return Response(measured.text(), content_type=CONTENT_TYPE_LATEST)

    return routes
