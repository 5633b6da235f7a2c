"""The addresses that belong to no system: models, classify, health and documentation of the API; and, for
monitoring, whether the app is alive, whether its model really answers, and in numbers.

The documentation's page is our own and not Swagger's or Redoc's: those are a megabyte of script with inline
styles, which the app's content policy forbids.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from typing import Any, Final

from flask import Blueprint, Flask, Response, jsonify, render_template, request
from markupsafe import Markup, escape
from prometheus_client import CONTENT_TYPE_LATEST

from app.api import photo_calls, schemas
from app.api.openapi import Operation, Parameter, document, documented, examples_of, operation_id, photos
from app.api.photo_calls import answer_of
from app.api.services import LINK_DEADLINE_S, NavigationEntry, Services
from app.classifier import Prediction
from app.core.errors import RETRY_AFTER_S, ServingError, as_dict
from app.core.http import API, JSON, marked, unstored
from app.core.messages import starting_with, t
from app.core.metrics import Metrics
from gourmet.client.deadline import Deadline
from gourmet.contracts import System

# The address in the examples as they lie there, so that each runs as it is; shown is the reader's own.
_EXAMPLE_BASE: Final = "http://localhost:5000"
_LANGUAGES: Final = {"curl": "curl.txt", "Python": "python.txt", "JavaScript": "javascript.txt"}


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    routes, settings, classifier = services.api, services.settings, services.classifier

    def system() -> str:
        return photo_calls.one_of("system", services.readiness)

    @routes.get("/models")
    @documented(
        Operation(
            schemas.Models,
            errors=(400, 502, 503, 504),
            query={
                "system": Parameter(
                    "Only the models of this system; `default` is its default then", services.readiness
                )
            },
        )
    )
    def models() -> Response:
        """The models to choose from.

        Those that Triton has ready at the moment and that give a picture one label, of all systems.
        """
        found = [
            schemas.PictureModel(
                name=each.info.name,
                version=each.info.version,
                system=each.system.name,
                labels=list(each.labels),
                input=schemas.TensorInput.model_validate(asdict(each.info.inputs[0])),
                threshold=each.threshold,
                bytes_kind=each.bytes_kind,
            )
            for each in classifier.models(Deadline(settings.request_deadline_s), system())
        ]
        default = settings.models[system() or services.first_system]
        return unstored(schemas.Models(default=default, models=found))

    @routes.post("/classify")
    @marked(admitted="photos")
    @documented(
        Operation(
            schemas.Results,
            fails_as_answer=True,
            bodies=photos(max_photos=settings.max_photos),
            query={
                **photo_calls.PARAMETERS,
                "probabilities": Parameter("`all` for the probability of every label as well", ("all",)),
            },
        )
    )
    def classify() -> Response:
        """What is on these photos.

        Send photos as the fields `file` of a form, one photo as it is, or base64 texts. Each has its own
        result, in the same order, and one that cannot be used leaves the others unharmed.
        """
        with_all = photo_calls.one_of("probabilities", ("all",)) == "all"

        def describe(found: Prediction, timings: Mapping[str, float], name: str | None) -> schemas.Classified:
            every = dict(zip(found.labels, found.probabilities, strict=True)) if with_all else None
            return answer_of(schemas.Classified, found, timings, name, probabilities=every)

        return photo_calls.answer(services, describe)

    @routes.get("/health")
    @marked(open=True)
    @documented(
        Operation(
            schemas.Health,
            errors=(400,),
            query={
                "system": Parameter(
                    "The system whose configured model is asked; the first of them unless given",
                    services.readiness,
                )
            },
        )
    )
    def health() -> Response:
        """Whether a photo would be answered now.

        Asks the model its sample, at most once a second. Always 200, so that a page may ask again and again.
        """
        return unstored(services.readiness[system() or services.first_system].health())

    pages = Blueprint("docs", __name__)

    @cache
    def made() -> dict[str, Any]:
        return document(app, settings)

    @pages.get(f"{API}openapi.json")
    @marked(open=True)
    def openapi() -> Response:
        return jsonify(made())

    def menus() -> dict[str, list[str]]:
        """The models that each operation may ask, as far as they are ready."""
        ready: list[tuple[System, str]] = []
        deadline = Deadline(LINK_DEADLINE_S)
        with contextlib.suppress(ServingError):
            ready += [(each.system, each.info.target) for each in classifier.models(deadline)]
            ready += [(each.system, each.info.target) for each in services.generator.models.ready(deadline)]
        views = ((name, getattr(view, "openapi", None)) for name, view in app.view_functions.items())
        return {
            operation_id(endpoint): [
                name for system, name in ready if about.asks in (system.name, system.task)
            ]
            for endpoint, about in views
            if about
        }

    @pages.get("/api/docs")
    def docs() -> str:
        return render_template(
            "api_docs.html",
            document=made(),
            examples=_examples(made(), request.url_root.rstrip("/")),
            settings=settings,
            texts=starting_with("api.js."),
            menus=menus(),
        )

    pages.add_app_template_filter(prose)
    pages.add_app_template_filter(partial(json.dumps, ensure_ascii=False), "plain_json")
    app.register_blueprint(pages)
    _add_probes(app, services)
    return [NavigationEntry("docs.docs", t("nav.api"))]


def _add_probes(app: Flask, services: Services) -> None:
    routes = Blueprint("health", __name__)
    measured: Metrics = app.extensions["metrics"]

    @routes.get("/healthz")
    @marked(probe=True)
    def healthz() -> Response:
        return Response('{"alive":true}\n', content_type=JSON)

    @routes.get("/readyz")
    @marked(probe=True)
    def readyz() -> Response:
        states = {name: _state(each) for name, each in services.states().items()}
        first = states[services.first_system]  # which alone decides
        response = jsonify(**first, systems=states)
        if not first["ready"]:
            response.status_code = 503  # whatever the reason: send no requests here for now
            response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response

    @routes.get("/metrics")
    @marked(probe=True)
    def metrics() -> Response:
        for system, state in services.last_known().items():
            measured.ready.labels(system).set(not isinstance(state, ServingError))
            older = not isinstance(state, ServingError) and bool(state.instead_of)
            measured.serves_older.labels(system).set(older)
        return Response(measured.text(), content_type=CONTENT_TYPE_LATEST)

    app.register_blueprint(routes)


def _state(found: schemas.HealthModel | ServingError | None) -> dict[str, Any]:
    """What /readyz says of a system; `ready` is null where its sample was not answered yet."""
    if found is None:
        return {"ready": None}
    if isinstance(found, ServingError):
        return {"ready": False, **as_dict(found)}
    return {"ready": True, "model": found.as_dict()}


def _examples(document: dict[str, Any], base: str) -> list[tuple[str, dict[str, str], str]]:
    """What a client's code can do, its code by language and, if there is one, a sample of an answer."""
    found = []
    for operation in (each for methods in document["paths"].values() for each in methods.values()):
        folder = examples_of(operation["operationId"])
        if folder.is_dir():
            code = {
                language: (folder / file).read_text().replace(_EXAMPLE_BASE, base).strip()
                for language, file in _LANGUAGES.items()
            }
            answer = folder / "answer.json"
            found.append((operation["summary"], code, answer.read_text() if answer.exists() else ""))
    return found


def prose(text: str) -> Markup:
    """Text with `code` between backticks as HTML."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - of our own files
