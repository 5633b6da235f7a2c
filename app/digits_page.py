"""The page on which a digit is drawn; without a script, a picture of one is sent by a form."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from flask import Blueprint, Flask, Response, render_template, request

from app.answers import add_server_timing, digit, timings_ms
from app.classifier import Classifier
from app.errors import ServingError
from app.health import Readiness
from app.inference import Deadline
from app.settings import Settings
from app.texts import t
from app.uploads import photo
from app.web import render, request_id

# The texts for scripts that say something else on this page.
_OWN_TEXTS: Final = ("state_again",)


def init_app(app: Flask, classifier: Classifier, readiness: Readiness, settings: Settings) -> None:
    def digits_are_read() -> bool:
        """Whether the link to the page is shown: only where somebody would have an answer."""
        return not isinstance(readiness.check(), ServingError)

    app.jinja_env.globals.update(
        digits_are_read=digits_are_read,
        drawn_digits=sorted(path.name for path in Path(str(app.static_folder), "digits").glob("*.png")),
    )
    app.register_blueprint(_blueprint(classifier, readiness, settings))


def _blueprint(classifier: Classifier, readiness: Readiness, settings: Settings) -> Blueprint:
    routes = Blueprint("digits", __name__)

    @routes.get("/digits")
    def page() -> str:
        return render_template(
            "digits.html",
            model=settings.digits_model,
            max_upload_bytes=settings.max_upload_bytes,
            labels=classifier.system.LABELS,
            health=readiness.health(),
            own_texts={text_id: t(f"digits.{text_id}") for text_id in _OWN_TEXTS},
        )

    @routes.post("/digits")
    def read() -> Response:
        data = photo(request, settings)
        prediction = classifier.classify(data, Deadline(settings.request_deadline_s), request_id())
        timings = timings_ms(prediction)
        answer = digit(prediction, timings)
        response = render("food_result.html", answer, prediction=prediction, timings=timings, digit=True)
        add_server_timing(response, timings)
        return response

    return routes
