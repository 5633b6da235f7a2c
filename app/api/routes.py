"""The addresses of /api/v1 that belong to no system: models, classify, health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from flask import Flask, Response

from app.api import openapi, photo_calls, schemas
from app.api.openapi import Operation, documented
from app.api.responses import told, unstored
from app.classifier import Prediction
from app.core.http import marked
from app.features.feature import NavigationEntry, Services
from app.triton.client import Deadline


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    routes, settings, classifier = services.api, services.settings, services.classifier

    def system() -> str:
        return photo_calls.one_of("system", services.readiness)

    @routes.get("/models")
    @documented(
        Operation(
            schemas.Models,
            errors=(400, 502, 503, 504),
            query={"system": "Only the models of this system; `default` is its default then"},
        )
    )
    def models() -> Response:
        """The models to choose from.

        Those that Triton has ready at the moment and that give a picture one label, of all systems.
        """
        found = [
            schemas.PictureModel(
                name=each.name,
                version=each.version,
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
    @marked(admitted=True)
    @documented(
        Operation(
            schemas.Results,
            fails_as_answer=True,
            bodies=openapi.photos(several=True),
            query={
                **photo_calls.PARAMETERS,
                "probabilities": "`all` to be told the probability of every label as well",
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
            return told(schemas.Classified, found, timings, name, probabilities=every)

        return photo_calls.answer(services, describe)

    @routes.get("/health")
    @marked(open=True)
    @documented(
        Operation(
            schemas.Health,
            errors=(400,),
            query={"system": "The system whose configured model is asked; the first of them unless given"},
            guarded=False,
        )
    )
    def health() -> Response:
        """Whether a photo would be answered now.

        Asks the model its sample, at most once a second. Always 200, so that a page may ask again and again.
        """
        return unstored(services.readiness[system() or services.first_system].health())

    return ()
