"""For monitoring: is the app alive, does its model really answer, and in numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from flask import Blueprint, Response, jsonify
from prometheus_client import CONTENT_TYPE_LATEST

from app.api.services import NavigationEntry, Services
from app.core.errors import RETRY_AFTER_S, ServingError, as_dict
from app.core.http import JSON, FlaskApp, WsgiAnswer, given_or_new_id, marked
from app.core.metrics import Metrics

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

_ALIVE: Final = b'{"alive":true}\n'


def add(app: FlaskApp, services: Services) -> Sequence[NavigationEntry]:
    routes = Blueprint("health", __name__)
    readiness = services.readiness[services.first_system]
    measured: Metrics = app.extensions["metrics"]

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
        return Response(measured.text(), content_type=CONTENT_TYPE_LATEST)

    def alive(environ: WSGIEnvironment) -> WsgiAnswer | None:
        """A plain GET /healthz as the view answers it, without what Flask does for every request."""
        has_body = environ.get("CONTENT_LENGTH") or "HTTP_TRANSFER_ENCODING" in environ
        if environ["PATH_INFO"] != "/healthz" or has_body:
            return None
        started = time.perf_counter()
        number = given_or_new_id(environ.get("HTTP_X_REQUEST_ID", ""))
        measured.observe_request("/healthz", "GET", 200, time.perf_counter() - started)
        return "200 OK", {"Content-Type": JSON, "X-Request-ID": number}, _ALIVE

    app.register_blueprint(routes)
    if not services.settings.trusted_hosts and "tracing" not in app.extensions:  # which concern it too
        app.before_flask["GET"] = alive
    return ()
