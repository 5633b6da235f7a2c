"""The page for drawing a digit. Without scripts, its form sends a picture of a digit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from flask import Blueprint, Flask, Response, url_for
from pydantic import Field

from app import photos
from app.api.openapi import INSIDE, MODEL, VERSION, operation
from app.api.schemas import Base64Photos, Failed, Photo, Probability, Schema
from app.photos import answer_of
from app.services import NavigationEntry, Services
from app.web.http import route_options
from app.web.messages import t
from gourmet.systems.digits.contract import SYSTEM

ABOUT: Final = SYSTEM.name


class Digit(Photo):
    """The digit that one picture shows."""

    probabilities: Annotated[list[Probability], Field(min_length=10, max_length=10)]
    """Of the digits 0 to 9, in this order."""


class Digits(Schema):
    """One result for each picture, in the order in which they were sent."""

    results: list[Digit | Failed]


def add_routes(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    routes = Blueprint("digits", __name__)
    readiness = services.readiness[SYSTEM.name]
    app.jinja_env.globals["drawn_digits"] = sorted(
        path.name for path in Path(str(app.static_folder), "digits").glob("*.png")
    )

    @routes.get("/digits")
    def page() -> str:
        return services.page("digits.html", SYSTEM, labels=SYSTEM.labels, away=readiness.known_problem)

    @routes.post("/digits")
    @route_options(admitted="photos", charged=True)
    def predict() -> Response:
        again = (url_for("digits.page"), t("digits.another"))
        return photos.form_answer(services, SYSTEM.name, Digit, digit=True, again=again)

    @services.api.post("/digits", endpoint="digits")
    @route_options(admitted="photos")
    @operation(
        answer=Digits,
        json=Base64Photos,
        max_photos=services.settings.max_photos,
        each_fails=True,
        parameters=MODEL | VERSION | INSIDE,
    )
    def read_digits() -> Response:
        """Read the digit in each picture of the request.

        Send pictures of one digit each in any way of `classify`: drawn or photographed, light on dark or dark
        on light. A picture of one colour is refused as `blank`, one of several digits as `several_digits`.
        """
        return photos.classify_each(services, partial(answer_of, Digit), SYSTEM.name)

    app.register_blueprint(routes)
    return [NavigationEntry("digits.page", "nav.digits", readiness, is_demo=True)]
