"""Pages for any picture system: compare its models, or classify with one of them.

Their forms work without JavaScript.
"""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flask import Blueprint, Flask, Response, abort, url_for
from PIL import Image

from app.api.schemas import Classified
from app.api.uploads import form_photo, one_of
from app.models import Classifier, Model, Prediction
from app.photos import answer_of, form_answer, observed
from app.services import LINK_DEADLINE_S, NavigationEntry, Services
from app.web.admission import deadline_of_request
from app.web.errors import ModelNotReady, as_dict, for_visitor
from app.web.http import render, route_options
from app.web.messages import t
from app.web.rate_limit import count_photos
from gourmet.errors import GourmetError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.triton_client.deadline import Deadline

# One answer says little about a model's speed: some answers took twenty times as long as others.
_TURNS: Final = 5
# The longer side of the JPEG that the page shows if the browser does not know a photo's format.
_SHOWN: Final = 1600
Timed = tuple[float, Prediction]
# The time limit of all turns together. Slow models get fewer turns, but at least one.
_ENOUGH_S: Final = 2.0


def add_routes(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    routes = Blueprint("pages", __name__)
    classifier, settings = services.classifier, services.settings

    def model_names(default: str, system: str = "") -> list[str]:
        """List the default and the ready models; only the default while Triton is away."""
        try:
            models = classifier.models(Deadline(LINK_DEADLINE_S), system or services.first_system)
            ready = [model.info.target for model in models]
        except GourmetError:
            ready = []
        return ready if default in ready else [default, *ready]

    static = Path(str(app.static_folder))
    app.jinja_env.filters["slug"] = _slug
    app.jinja_env.globals.update(
        model_names=model_names,
        icons=re.findall(r'<symbol id="([^"]+)"', (static / "classes.svg").read_text()),
        first_system=services.first_system,
    )

    def chosen() -> PictureClassifier:
        """Return the system whose models are compared."""
        return services.pictures[one_of("system", services.pictures) or services.first_system]

    @routes.get("/compare")
    def compare() -> str:
        generic = [system for name, system in services.pictures.items() if name not in services.own_pages]
        comparable = [services.pictures[services.first_system], *generic]
        return services.page("compare.html", chosen(), comparable=comparable)

    @routes.post("/compare")
    @route_options(admitted="photos", charged=True)
    def compare_photo() -> Response:
        system = chosen()
        data = form_photo(settings)
        deadline = deadline_of_request()
        models = classifier.models(deadline, system.name)
        if not models:
            raise ModelNotReady(settings.models[system.name], [])
        count_photos(len(models) * _TURNS, capped=True)
        answers_by_model, turns = _ask_in_turns(classifier, models, data, deadline)
        errors = [answer for answer in answers_by_model if isinstance(answer, GourmetError)]
        if len(errors) == len(answers_by_model):
            raise errors[0]
        rows = [_row(model, answers) for model, answers in zip(models, answers_by_model, strict=True)]
        sentence = verdict(rows, system.subject)
        note = t("compare.measured", turns=turns)
        if system.name == services.first_system:
            note = f"{t('compare.forms')} {note}"
        body = {"verdict": sentence, "note": note, "default": settings.models[system.name], "results": rows}
        return render(
            "compare_result.html",
            lambda: body,
            rows=rows,
            verdict=sentence,
            note=note,
        )

    @routes.post("/thumbnail")
    @route_options(admitted="photos", charged=True)
    def thumbnail() -> Response:
        """Return a photo as a JPEG that any browser shows; the app does not store it."""
        photo = form_photo(settings)
        pixels = classifier.whole(photo, _SHOWN, deadline_of_request())
        picture = io.BytesIO()
        Image.fromarray(pixels).save(picture, "JPEG", quality=92)
        return Response(picture.getvalue(), content_type="image/jpeg", headers={"Cache-Control": "no-store"})

    app.register_blueprint(routes)
    return ()


def add_generic_pages(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    """Add a page for every picture system without its own feature."""
    routes, settings, classifier = Blueprint("pictures", __name__), services.settings, services.classifier
    systems = {name: system for name, system in services.pictures.items() if name not in services.own_pages}

    def labels(system: PictureClassifier) -> tuple[str, ...]:
        """Return the labels of the configured model while it is ready."""
        model = settings.models[system.name]
        try:
            served = classifier.models(Deadline(LINK_DEADLINE_S), system.name)
        except GourmetError:
            served = []
        return next((version.labels for version in served if version.info.name == model), system.labels)

    @routes.get("/classify/<name>")
    def page(name: str) -> str:
        system = systems.get(name) or abort(404)
        action = url_for("pictures.classify", name=name)
        return services.page("picture_page.html", system, labels=labels(system), action=action)

    @routes.post("/classify/<name>")
    @route_options(admitted="photos", charged=True)
    def classify(name: str) -> Response:
        if name not in systems:
            abort(404)
        again = (url_for("pictures.page", name=name), t("result.another"))
        return form_answer(services, name, again=again)

    app.register_blueprint(routes)
    return [
        NavigationEntry("pictures.page", system.title, services.readiness[name], {"name": name}, is_own=True)
        for name, system in systems.items()
    ]


def _ask_in_turns(
    classifier: Classifier, models: Sequence[Model[PictureClassifier]], data: bytes, deadline: Deadline
) -> tuple[list[list[Timed] | GourmetError], int]:
    """Ask each model about a photo several times, in turns; return the answers and the number of turns.

    Because of the turns, a slow moment of the machine affects all models. Each model first answers its sample
    as a warm-up that is not measured, since the first request pays for loading and connecting.
    """
    answers_by_model: list[list[Timed] | GourmetError] = [[] for _ in models]
    for model in models:
        # A sample that cannot be used costs the warm-up only.
        with contextlib.suppress(Exception):
            _ask_model(classifier, model, model.system.sample(), deadline)
    started = time.monotonic()
    for turn in range(_TURNS):
        taken_s = time.monotonic() - started
        if turn and taken_s + taken_s / turn > _ENOUGH_S:
            return answers_by_model, turn
        for index, model in enumerate(models):
            answers = answers_by_model[index]
            if isinstance(answers, GourmetError):
                continue
            try:
                answers.append(_ask_model(classifier, model, data, deadline))
            except GourmetError as error:  # no other model would answer a photo that is at fault
                answers_by_model[index] = error
    return answers_by_model, _TURNS


def _ask_model(
    classifier: Classifier, model: Model[PictureClassifier], data: bytes, deadline: Deadline
) -> Timed:
    started = time.perf_counter()
    system = model.system.name
    prediction = classifier.classify(data, deadline, model.info.target, system=system)
    return (time.perf_counter() - started) * 1000, prediction


def _row(model: Model[PictureClassifier], answers: list[Timed] | GourmetError) -> dict[str, Any]:
    """Return the answer with the median time, or with the lower one of the two in the middle."""
    about = {
        "model": {"name": model.info.name, "version": model.info.version},
        "bytes_kind": model.bytes_kind,
    }
    if isinstance(answers, GourmetError):
        return {**about, **as_dict(for_visitor(answers))}
    ordered = sorted(answers, key=lambda timed: timed[0])
    ms, prediction = ordered[(len(ordered) - 1) // 2]
    timings = {**observed(prediction), "total": ms}
    answer = answer_of(Classified, prediction, timings, probabilities=None).as_dict()
    return {**about, **answer, "spread_ms": [round(ordered[index][0], 2) for index in (0, -1)]}


def verdict(rows: Sequence[Mapping[str, Any]], subject: str) -> str:
    """Say in one sentence if the models that answered agree, and how sure they are."""
    answers = [row for row in rows if "error" not in row]
    labels = [
        row["label"] if row.get("relevant", True) else t("js.irrelevant_short", subject=subject)
        for row in answers
    ]
    (label, votes), *_ = Counter(labels).most_common()
    # A model that denies the subject is sure of that.
    sure = sum(
        row["sure"] or not row.get("relevant", True)
        for row, answered in zip(answers, labels, strict=True)
        if answered == label
    )
    count = len(answers)
    if count == 1:
        sentence = t("compare.one" if sure else "compare.one_unsure", label=label)
    elif votes == 1:
        sentence = t("compare.split")
    else:
        agree = "all" if votes == count else "most"
        how_sure = "_some_sure" if sure else "_unsure"
        how_sure = "" if sure == votes else how_sure
        sentence = t(f"compare.{agree}{how_sure}", label=label, most=votes, count=count, sure=sure)
    missing = len(rows) - count
    return f"{sentence} {t('compare.missing', count=missing)}" if missing else sentence


def _slug(label: str) -> str:
    """Return the name of a class's picture in classes.svg."""
    return re.sub(r"[^a-z]+", "-", label.lower())
