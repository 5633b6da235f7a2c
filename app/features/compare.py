"""What the pages share, and those for any system of pictures: one compares its models, one is a generic page.

Their forms work without JavaScript.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flask import Blueprint, Flask, Response, abort, url_for

from app.admission.queue import deadline_of_request
from app.api.photo_calls import answer_of, count, form_answer, form_photo, one_of
from app.api.schemas import Classified
from app.api.services import LINK_DEADLINE_S, NavigationEntry, Services
from app.classifier import Classifier, ServedModel
from app.core.errors import BadPicture, ModelNotReady, ServingError, as_dict, for_visitor
from app.core.http import marked, phases_ms, render, request_id
from app.core.messages import starting_with, t
from gourmet.client.deadline import Deadline
from gourmet.contracts import System
from gourmet.pictures.classifier import PictureClassifier


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    routes = Blueprint("pages", __name__)
    classifier, settings = services.classifier, services.settings

    def model_names(default: str, system: str = "") -> list[str]:
        """The default and what else is ready, to choose from; the default alone while Triton is away."""
        try:
            models = classifier.models(Deadline(LINK_DEADLINE_S), system or services.first_system)
            ready = [each.info.target for each in models]
        except ServingError:
            ready = []
        return ready if default in ready else [default, *ready]

    static = Path(str(app.static_folder))
    app.jinja_env.filters["slug"] = _slug
    app.jinja_env.globals.update(
        model_names=model_names,
        icons=re.findall(r'<symbol id="([^"]+)"', (static / "classes.svg").read_text()),
        script_texts=starting_with("js."),
        first_system=services.first_system,
    )

    def chosen() -> System:
        """The system whose models are compared."""
        return services.pictures[one_of("system", services.pictures) or services.first_system]

    @routes.get("/compare")
    def compare() -> str:
        return services.page("compare.html", chosen())

    @routes.post("/compare")
    @marked(admitted="photos", charged=True)
    def compare_photo() -> Response:
        system = chosen().name
        data = form_photo(settings)
        deadline = deadline_of_request(settings.request_deadline_s)
        models = classifier.models(deadline, system)
        if not models:
            raise ModelNotReady(settings.models[system], [])
        found = [(model, _ask(classifier, model, data, deadline)) for model in models]
        errors = [answer for _, answer in found if isinstance(answer, ServingError)]
        if len(errors) == len(found):
            raise errors[0]
        rows = [_row(model, answer) for model, answer in found]
        said = verdict(rows)
        body = {"verdict": said, "default": settings.models[system], "results": rows}
        return render("compare_result.html", lambda: body, rows=rows, verdict=said)

    app.register_blueprint(routes)
    return [NavigationEntry("pages.compare", t("nav.compare"))]


def add_generic_pages(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    """A page for every system of pictures that has no feature of its own."""
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
    @marked(admitted="photos", charged=True)
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


def _ask(
    classifier: Classifier, model: ServedModel, data: bytes, deadline: Deadline
) -> dict[str, Any] | ServingError:
    """The model's answer after one to the sample, which pays for what is loaded and connected only once.

    A sample that cannot be used costs no more than that.
    """
    system = model.system.name
    with contextlib.suppress(Exception):
        classifier.classify(model.system.sample(), deadline, request_id(), model.info.target, system=system)
    try:
        started = time.perf_counter()
        prediction = classifier.classify(data, deadline, request_id(), model.info.target, system=system)
        ms = (time.perf_counter() - started) * 1000
    except BadPicture:
        raise  # the photo's own fault: no other model would answer it
    except ServingError as error:
        return error
    timings = phases_ms(prediction.timings_ms)
    count(prediction, timings)
    return answer_of(Classified, prediction, {**timings, "total": ms}, probabilities=None).as_dict()


def _row(model: ServedModel, answer: dict[str, Any] | ServingError) -> dict[str, Any]:
    found = as_dict(for_visitor(answer)) if isinstance(answer, ServingError) else answer
    about = {
        "model": {"name": model.info.name, "version": model.info.version},
        "bytes_kind": model.bytes_kind,
    }
    return {**about, **found}


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Whether the models that answered agree, in one sentence, and how sure they are."""
    answers = [row for row in rows if "error" not in row]
    said_by = [row["label"] if row.get("relevant", True) else t("js.something_else") for row in answers]
    (label, most), *_ = Counter(said_by).most_common()
    # That a photo shows something else is said by a model that is sure of it.
    sure = sum(
        row["sure"] or not row.get("relevant", True)
        for row, said in zip(answers, said_by, strict=True)
        if said == label
    )
    count = len(answers)
    if count == 1:
        said = t("compare.one" if sure else "compare.one_unsure", label=label)
    elif most == 1:
        said = t("compare.split")
    else:
        agree = "all" if most == count else "most"
        how_sure = "" if sure == most else "_some_sure" if sure else "_unsure"
        said = t(f"compare.{agree}{how_sure}", label=label, most=most, count=count, sure=sure)
    missing = len(rows) - count
    return f"{said} {t('compare.missing', count=missing)}" if missing else said


def _slug(label: str) -> str:
    """The name of a class's picture in classes.svg."""
    return re.sub(r"[^a-z]+", "-", label.lower())
