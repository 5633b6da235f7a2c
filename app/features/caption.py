"""The page on which sentences about photos grow, and /api/v1/caption for one photo or several.

Captions take turns with texts and not with photos: a turn lasts as long as words are made, for which nobody
who has a photo classified should wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from flask import Blueprint, Flask, Response, current_app, g, request, url_for
from pydantic import Field

from app.admission.queue import deadline_of_request
from app.admission.rate_limit import count_photos
from app.api import schemas, text_calls
from app.api.photo_calls import answer_each, form_photo
from app.api.request_parsing import photos_and_more
from app.api.schemas import Generated, Schema
from app.api.services import PHOTO_THREADS, NavigationEntry, Services
from app.api.text_calls import ReadyModel, facts
from app.core.errors import BadRequest
from app.core.http import marked, render, request_id
from app.core.messages import starting_with, t
from gourmet.contracts import GeneratedText
from gourmet.systems.captioner.contract import SYSTEM

ABOUT: Final = SYSTEM.name
_STREAM: Final = ("0", "1")


class CaptionRequest(schemas.Base64Photos):
    stream: bool = False
    options: dict[str, schemas.Whole | str] = Field(default_factory=dict)


class Captioned(Generated):
    """One photo's caption."""

    alternatives: list[str] | None = None
    filename: str | None = None


class Captions(Schema):
    """One result for each photo, in the order in which they were sent."""

    results: list[Captioned | schemas.Failed]


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    generator, settings = services.generator, services.settings
    readiness = services.readiness[SYSTEM.name]
    routes = Blueprint("caption", __name__)
    # As many as photos have, which several captions do not keep waiting.
    threads = ThreadPoolExecutor(PHOTO_THREADS, thread_name_prefix="caption")
    # What scripts say in other words on this page.
    own_texts = starting_with("caption.js.")

    @routes.get("/caption")
    def page() -> str:
        return services.page("caption.html", SYSTEM, away=readiness.known_problem, own_texts=own_texts)

    @routes.get("/caption/sample.jpg")
    def sample() -> Response:
        return Response(SYSTEM.sample(), content_type="image/jpeg")

    @routes.post("/caption")
    @marked(admitted="texts", charged=True)
    def form() -> Response:
        """Without a script: one photo, and its caption on a page of its own."""
        photo = form_photo(settings)
        deadline = deadline_of_request(settings.generate_deadline_s)
        model = generator.find("", deadline, SYSTEM.name)
        caption = _caption(model, *text_calls.whole(generator, model, photo, {}, deadline))
        again = (url_for("caption.page"), t("caption.another"))
        return render("caption_result.html", lambda: caption, caption=caption, again=again)

    @services.api.post("/caption", endpoint="caption")
    @marked(admitted="texts")
    def caption() -> Response:
        """A sentence about each of these photos."""
        photos, chosen, asked = photos_and_more(settings, CaptionRequest)
        options, stream = _options(asked)
        if settings.rate_limit:
            count_photos(current_app, len(photos))
        deadline, asked_as = deadline_of_request(settings.generate_deadline_s), request_id()
        if stream:
            if len(photos) != 1:
                raise BadRequest(f"only a single photo is streamed, and these are {len(photos)}")
            if photos[0].fault:
                raise photos[0].fault
            model = generator.find_streaming(chosen, SYSTEM.streaming_model, deadline, SYSTEM.name)
            return text_calls.in_pieces(generator, model, photos[0].data, options, deadline, _caption)
        model = generator.find(chosen, deadline, SYSTEM.name)
        g.model = model.info.name

        def ask(photo: bytes) -> tuple[GeneratedText, Mapping[str, float]]:
            return text_calls.one(generator, model, photo, options, deadline, asked_as)

        def tell(found: GeneratedText, timings: Mapping[str, float], name: str | None) -> Captioned:
            return _caption(model, found, text_calls.observed(model, found.tokens, timings), name)

        return answer_each(photos, ask, tell, deadline, threads)

    app.register_blueprint(routes)
    return [NavigationEntry("caption.page", t("nav.caption"), readiness, is_demo=True)]


def _caption(
    model: ReadyModel,
    answer: GeneratedText,
    timings: schemas.GenerationTimings,
    filename: str | None = None,
) -> Captioned:
    return Captioned(
        **facts(model, answer, timings),
        alternatives=list(answer.others) or None,
        filename=filename,
    )


def _options(asked: CaptionRequest | None) -> tuple[dict[str, Any], bool]:
    """Return the options of the call, and whether its answer is streamed."""
    given = {name: request.values[name] for name in ("prompt", *SYSTEM.options) if name in request.values}
    stream = request.values.get("stream", "0")
    if stream not in _STREAM:
        raise BadRequest(f"stream is {stream[:50]!r}; allowed: {', '.join(_STREAM)}")
    return {**(asked.options if asked else {}), **given}, stream == "1" or bool(asked and asked.stream)
