"""The page and routes of the food classifier."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from flask import Blueprint, Flask, Response

from app.api.openapi import MODEL, VERSION, operation
from app.api.schemas import Predicted
from app.photos import form_answer
from app.services import NavigationEntry, Services
from app.web.http import route_options
from app.web.messages import NAMES, language
from gourmet.systems.food11.contract import SAMPLES, SYSTEM

ABOUT: Final = SYSTEM.name


@functools.cache
def _dishes(language: str) -> dict[str, list[tuple[str, str]]]:
    """Return the dishes by class, each with its other names; those of several classes come last."""
    names = NAMES[language]
    kinds: dict[str, list[tuple[str, str]]] = {label: [] for label in (*SYSTEM.labels, "")}
    for dish in filter(lambda dish: dish.name, SYSTEM.dishes):
        kinds[dish.label].append((names.get(dish.name, dish.name), "|".join((dish.name, *dish.also))))
    return {label: sorted(dishes, key=lambda dish: dish[0].casefold()) for label, dishes in kinds.items()}


def add_routes(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    routes = Blueprint("food", __name__, static_folder=SAMPLES, static_url_path="/samples")
    # The sample photos by file name, with the name of the dish.
    app.jinja_env.globals["food_samples"] = {
        path.name: path.stem.split("_")[1].replace("-", " ").capitalize()
        for path in sorted(SAMPLES.glob("*.jpg"))
    }

    @routes.get("/")
    def index() -> str:
        return services.page("food.html", SYSTEM, labels=SYSTEM.labels, dishes=_dishes(language()))

    @routes.post("/predict")
    @route_options(admitted="photos", charged=True)
    @operation(answer=Predicted, max_photos=1, parameters=MODEL | VERSION, html=True)
    def predict() -> Response:
        """Classify the photo of the page's own form.

        The answer is HTML for browsers and JSON for other clients.
        """
        return form_answer(services, SYSTEM.name)

    @routes.get("/test")
    @route_options(admitted="photos", charged=True)
    def test() -> Response:
        return form_answer(services, SYSTEM.name, data=SYSTEM.sample())

    @routes.get("/sample.jpg")
    def sample() -> Response:
        return Response(SYSTEM.sample(), content_type="image/jpeg")

    app.register_blueprint(routes)
    return [NavigationEntry("food.index", "nav.food")]
