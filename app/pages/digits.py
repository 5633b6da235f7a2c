"""The page for drawing a digit. Without scripts, its form sends a picture of a digit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from flask import Blueprint, Flask, Response, url_for

from app import photos
from app.api.schemas import Failed, Photo, Schema
from app.photos import answer_of
from app.services import NavigationEntry, Services
from app.web.http import route_options
from app.web.messages import t
from gourmet.systems.digits.contract import SYSTEM

ABOUT: Final = SYSTEM.name


class Digit(Photo):
    """The digit that one picture shows."""

    probabilities: list[float]


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
        # Texts of the scripts that differ on this page.
        own_texts = {"state_again": t("digits.state_again")}
        return services.page(
            "digits.html", SYSTEM, labels=SYSTEM.labels, away=readiness.known_problem, own_texts=own_texts
        )

    @routes.post("/digits")
    @route_options(admitted="photos", charged=True)
    def read() -> Response:
        again = (url_for("digits.page"), t("digits.another"))
        return photos.form_answer(services, SYSTEM.name, Digit, digit=True, again=again)

    @services.api.post("/digits", endpoint="digits")
    @route_options(admitted="photos")
    def read_digits() -> Response:
        """Read the digit in each picture of the request."""
        return photos.classify_each(services, partial(answer_of, Digit), SYSTEM.name)

    app.register_blueprint(routes)
    return [NavigationEntry("digits.page", t("nav.digits"), readiness, is_demo=True)]
