"""The addresses of /api/v1 that belong to no system: models, classify, health."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from flask import Flask, Response

from app.api import openapi, photo_calls, schemas
from app.api.openapi import EXAMPLES, Operation, documented
from app.api.responses import result, unstored
from app.classifier import ServedModel
from app.core.http import marked
from app.features.feature import NavigationEntry, Services
from app.triton.client import Deadline

SAMPLE_ANSWER: Final = EXAMPLES / "classify" / "answer.json"
_MODELS: Final = Operation(
    "The models to choose from",
    schemas.Models,
    "Those that Triton has ready at the moment and that give a picture one label, of all systems.",
    errors=(400, 502, 503, 504),
    query={"system": "Only the models of this system; `default` is its default then"},
)
_CLASSIFY: Final = Operation(
    "What is on these photos",
    schemas.Results,
    "Send photos as the fields `file` of a form, one photo as it is, or base64 texts. Each has its own "
    "result, in the same order, and one that cannot be used leaves the others unharmed.",
    errors=photo_calls.ERRORS,
    fails_as_answer=photo_calls.PHOTO_ERRORS,
    example=schemas.Results.model_validate_json(SAMPLE_ANSWER.read_bytes()),
    bodies=openapi.photos(several=True),
    query={
        **photo_calls.PARAMETERS,
        "probabilities": "`all` to be told the probability of every label as well",
    },
    examples="classify",
)
_HEALTH: Final = Operation(
    "Whether a photo would be answered now",
    schemas.Health,
    "Asks the model its sample, at most once a second. Always 200, so that a page may ask again and again.",
    errors=(400,),
    query={"system": "The system whose configured model is asked; the first of them unless given"},
    guarded=False,
)


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    routes, settings, classifier = services.api, services.settings, services.classifier

    def system() -> str:
        return photo_calls.one_of("system", services.readiness)

    @routes.get("/models")
    @documented(_MODELS)
    def models() -> Response:
        found = classifier.models(Deadline(settings.request_deadline_s), system())
        default = settings.models[system() or services.first_system]
        return unstored(schemas.Models(default=default, models=[_model(each) for each in found]))

    @routes.post("/classify")
    @marked(admitted=True)
    @documented(_CLASSIFY)
    def classify() -> Response:
        every = photo_calls.one_of("probabilities", ("all",)) == "all"
        describe = functools.partial(result, with_probabilities=every)
        return photo_calls.answer(services, describe)

    @routes.get("/health")
    @marked(open=True)
    @documented(_HEALTH)
    def health() -> Response:
        return unstored(services.readiness[system() or services.first_system].health())

    return ()


def _model(served: ServedModel) -> schemas.PictureModel:
    return schemas.PictureModel.model_validate(
        {
            "name": served.name,
            "version": served.version,
            "system": served.system.name,
            "labels": list(served.labels),
            "input": {**asdict(served.info.inputs[0]), "shape": list(served.info.inputs[0].shape)},
            "threshold": served.threshold,
            "bytes_kind": served.bytes_kind,
        }
    )
