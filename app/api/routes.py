"""Routes that belong to no system.

These are /models, /classify, /health and the documentation of the API, and the monitoring routes /healthz,
/readyz and /metrics. The documentation page shows the OpenAPI document with Swagger UI, or as text without
scripts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from flask import Blueprint, Flask, Response, jsonify, render_template, request
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import TypeAdapter

from app.api import openapi, schemas
from app.api.openapi import INSIDE, MODEL, VERSION, operation, parameter
from app.api.uploads import one_of
from app.models import Prediction
from app.photos import answer_of, classify_each
from app.services import NavigationEntry, Services
from app.web.errors import RETRY_AFTER_S, ServingError, as_dict
from app.web.http import API, CONTENT_POLICY, JSON, route_options, unstored
from app.web.metrics import Metrics
from gourmet.contracts import COVERAGE_PARAMETER
from gourmet.triton_client.deadline import Deadline

EXAMPLES: Final = Path(__file__).parent / "examples"
# The address in the examples' files; the page shows the reader's own.
_EXAMPLE_BASE: Final = "http://localhost:5000"
_ANSWER: Final = EXAMPLES / "classify" / "answer.json"
_LANGUAGES: Final = {"curl": "curl.txt", "Python": "python.txt", "JavaScript": "javascript.txt"}


def add_routes(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    routes, settings, classifier = services.api, services.settings, services.classifier

    def system() -> str:
        return one_of("system", services.readiness)

    of_system = partial(parameter, enum=list(services.systems))
    photos = partial(operation, max_photos=settings.max_photos)

    @routes.get("/models")
    @operation(
        answer=schemas.Models,
        parameters={"system": of_system("Only the models of this system, and its default")},
    )
    def models() -> Response:
        """List the models that a request may choose.

        These are models of all systems that Triton has ready and that give a picture one label.
        """
        available = [
            schemas.PictureModel(
                name=model.info.name,
                version=model.info.version,
                system=model.system.name,
                labels=list(model.labels),
                input=schemas.TensorInput.model_validate(asdict(model.info.inputs[0])),
                threshold=model.threshold,
                coverage=_coverage(model.info.parameters.get(COVERAGE_PARAMETER, "")),
                bytes_kind=model.bytes_kind,
            )
            for model in classifier.models(Deadline(settings.request_deadline_s), system())
        ]
        default = settings.models[system() or services.first_system]
        return unstored(schemas.Models(default=default, models=available))

    @routes.post("/classify")
    @route_options(admitted="photos")
    @photos(
        answer=schemas.Results,
        json=schemas.Base64Photos,
        each_fails=True,
        parameters=MODEL
        | VERSION
        | INSIDE
        | {"probabilities": parameter("`all` adds the probability of every label", "all")},
        example_answer=json.loads(_ANSWER.read_text(encoding="utf-8")),
    )
    def classify() -> Response:
        """Classify the photos of the request.

        Send photos as the fields `file` of a form, one photo as the body, or base64 texts. `model` and
        `version` may be fields of the form too. Each photo has its own result, in the same order. A photo
        that fails leaves the others unharmed. A single photo determines the status of its request; of
        several, only a server that answers none does.
        """
        with_all = one_of("probabilities", ("all",)) == "all"

        def describe(
            prediction: Prediction, timings: Mapping[str, float], name: str | None
        ) -> schemas.Classified:
            by_label = (
                dict(zip(prediction.labels, prediction.probabilities, strict=True)) if with_all else None
            )
            return answer_of(schemas.Classified, prediction, timings, name, probabilities=by_label)

        return classify_each(services, describe)

    @routes.get("/health")
    @route_options(open=True)
    @operation(
        answer=schemas.Health,
        parameters={"system": of_system("The system whose model is asked; by default the first one")},
    )
    def health() -> Response:
        """Report whether the system's model can answer now.

        The model is asked about its sample, at most once a second. The status is always 200, so that a page
        can poll this address.
        """
        return unstored(services.readiness[system() or services.first_system].health())

    pages = Blueprint("docs", __name__)
    # Made when it is first read: all routes are there then.
    document = cache(partial(openapi.document, app))

    @pages.get(f"{API}openapi.json", endpoint="openapi")
    @route_options(open=True)
    def openapi_document() -> Response:
        return jsonify(document())

    @pages.get("/api/docs")
    def docs() -> Response:
        text = json.dumps(document(), indent=2, ensure_ascii=False)
        examples = _examples(document()["paths"], request.url_root.rstrip("/"))
        page = Response(render_template("api_docs.html", text=text, examples=examples, settings=settings))
        # Swagger UI's icons are data: URLs in its style sheet.
        page.headers["Content-Security-Policy"] = CONTENT_POLICY.replace("blob:", "blob: data:")
        return page

    app.register_blueprint(pages)
    _add_probes(app, services)
    return [NavigationEntry("docs.docs", "nav.api")]


def _add_probes(app: Flask, services: Services) -> None:
    routes = Blueprint("health", __name__)
    measured: Metrics = app.extensions["metrics"]

    @routes.get("/healthz")
    @route_options(probe=True)
    def healthz() -> Response:
        return Response('{"alive":true}\n', content_type=JSON)

    @routes.get("/readyz")
    @route_options(probe=True)
    def readyz() -> Response:
        states = {name: _state(state) for name, state in services.states().items()}
        first = states[services.first_system]  # the first system alone decides
        response = jsonify(**first, systems=states)
        if not first["ready"]:
            response.status_code = 503  # whatever the reason: send no requests here for now
            response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response

    @routes.get("/metrics")
    @route_options(probe=True)
    def metrics() -> Response:
        for system, state in services.last_known().items():
            measured.ready.labels(system).set(not isinstance(state, ServingError))
            older = not isinstance(state, ServingError) and bool(state.instead_of)
            measured.serves_older.labels(system).set(older)
        return Response(measured.text(), content_type=CONTENT_TYPE_LATEST)

    app.register_blueprint(routes)


def _coverage(text: str) -> list[schemas.Coverage] | None:
    """Read the curve in a model's config; None for a model without one."""
    with suppress(ValueError):
        points = TypeAdapter(list[tuple[float, float, float]]).validate_json(text)
        return [schemas.Coverage(threshold=at, answered=share, right=right) for at, share, right in points]
    return None


def _state(state: schemas.HealthModel | ServingError | None) -> dict[str, Any]:
    """Return a system's part of /readyz; `ready` is null until its sample was answered."""
    if state is None:
        return {"ready": None}
    if isinstance(state, ServingError):
        return {"ready": False, **as_dict(state)}
    return {"ready": True, "model": state.as_dict()}


def _examples(paths: Mapping[str, Any], base: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Return, for each operation with examples, its summary and client code by language."""
    for folder in sorted(EXAMPLES.iterdir()):
        if operation := paths.get(API + folder.name, {}).get("post"):
            yield (
                operation["summary"],
                {
                    language: (folder / file).read_text().replace(_EXAMPLE_BASE, base).strip()
                    for language, file in _LANGUAGES.items()
                },
            )
