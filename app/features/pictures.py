"""A page for every system of pictures that has no feature of its own."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Blueprint, Flask, Response, abort, url_for

from app.api.photo_calls import form_answer
from app.api.services import LINK_DEADLINE_S, NavigationEntry, Services
from app.core.errors import ServingError
from app.core.http import marked
from app.core.messages import t
from gourmet.client.deadline import Deadline
from gourmet.pictures.classifier import PictureClassifier


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    routes, settings, classifier = Blueprint("pictures", __name__), services.settings, services.classifier
    systems = {name: each for name, each in services.pictures.items() if name not in services.own_pages}

    def labels(system: PictureClassifier) -> tuple[str, ...]:
        """Those of the configured model itself, while it is ready."""
        model = settings.models[system.name]
        try:
            served = classifier.models(Deadline(LINK_DEADLINE_S), system.name)
        except ServingError:
            served = []
        return next((each.labels for each in served if each.info.name == model), system.labels)

    @routes.get("/classify/<name>")
    def page(name: str) -> str:
        system = systems.get(name) or abort(404)
        action = url_for("pictures.classify", name=name)
        return services.page("picture_page.html", system, labels=labels(system), action=action)

    @routes.post("/classify/<name>")
    @marked(admitted=True, charged=True)
    def classify(name: str) -> Response:
        if name not in systems:
            abort(404)
        again = (url_for("pictures.page", name=name), t("result.another"))
        return form_answer(services, name, again=again)

    app.register_blueprint(routes)
    return [
        NavigationEntry("pictures.page", system.title, services.readiness[name], {"name": name})
        for name, system in systems.items()
    ]
