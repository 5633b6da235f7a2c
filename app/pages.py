"""What the pages share, and the page that compares models; with a form that needs no script."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

from flask import Blueprint, Flask, Response, current_app, render_template, request

from app.answers import classified, timings_ms
from app.classifier import Classifier
from app.errors import ModelNotReady, ServingError
from app.inference import Deadline
from app.settings import Settings
from app.texts import TEXTS, t
from app.uploads import photo
from app.web import render, request_id
from gourmet.systems.food11 import contract

# A page is shown without its list of models rather than late.
LIST_DEADLINE_S: Final = 1.0
_FOR_SCRIPTS: Final = "js."


def init_app(app: Flask, classifier: Classifier, settings: Settings) -> None:
    def model_names(default: str) -> list[str]:
        """The default and what else is ready, to choose from; the default alone while Triton is away."""
        try:
            ready = [food.name for food in classifier.models(Deadline(LIST_DEADLINE_S))]
        except ServingError:
            ready = []
        return ready if default in ready else [default, *ready]

    samples = Path(str(app.static_folder)) / "samples"
    app.jinja_env.filters["slug"] = _slug
    app.jinja_env.globals.update(
        model_names=model_names,
        endpoints=app.view_functions,
        labels=contract.LABELS,
        dishes=sorted(path.stem for path in samples.glob("*.jpg")),
        script_texts={
            key[len(_FOR_SCRIPTS) :]: text for key, text in TEXTS.items() if key.startswith(_FOR_SCRIPTS)
        },
    )
    app.register_blueprint(_blueprint(classifier, settings))


def _blueprint(classifier: Classifier, settings: Settings) -> Blueprint:
    routes = Blueprint("pages", __name__)

    @routes.get("/compare")
    def compare() -> str:
        return render_template(
            "compare.html", model=settings.food_model, max_upload_bytes=settings.max_upload_bytes
        )

    @routes.post("/compare")
    def compare_photo() -> Response:
        data = photo(request, settings)
        deadline = Deadline(settings.request_deadline_s)
        rows: list[dict[str, Any]] = []
        for food in classifier.models(deadline):
            try:
                prediction = classifier.classify(data, deadline, request_id(), food.name)
            except ModelNotReady:  # unloaded since it was listed
                current_app.logger.info("%s went away before it was compared", food.name)
                continue
            rows.append(classified(prediction, timings_ms(prediction)))
        if not rows:
            raise ModelNotReady(settings.food_model, [])
        return render("compare_result.html", {"results": rows}, rows=rows, verdict=_verdict(rows))

    return routes


def _verdict(rows: list[dict[str, Any]]) -> str:
    (label, most), *others = Counter(row["label"] for row in rows).most_common()
    if len(rows) == 1:
        return t("js.agree_one", label=label)
    if not others:
        return t("js.agree_all", count=most, label=label)
    if most == 1:
        return t("js.agree_split")
    return t("js.agree_most", most=most, count=len(rows), label=label)


def _slug(label: str) -> str:
    """The name of a class's picture in classes.svg."""
    return re.sub(r"[^a-z]+", "-", label.lower())
