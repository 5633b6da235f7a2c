"""The caption page, and /api/v1/caption for one photo or several.

Captions share the admission queue of texts and not of photos. A caption holds its place while its words are
made, and requests that classify a photo should not wait for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from flask import Blueprint, Flask, Response, request, url_for
from pydantic import Field

from app.api import schemas
from app.api.openapi import MODEL, VERSION, operation, parameter
from app.api.schemas import Generated, Schema
from app.api.texts import generated_fields, in_pieces, whole
from app.api.uploads import form_photo, only_photo, photos_and_more
from app.models import Model
from app.photos import answer_each
from app.services import NavigationEntry, Services
from app.web.admission import deadline_of_request
from app.web.errors import BadRequest
from app.web.http import render, route_options
from app.web.messages import t
from app.web.rate_limit import count_photos
from gourmet.contracts import GeneratedText, Generation
from gourmet.systems.captioner.contract import SYSTEM

ABOUT: Final = SYSTEM.name
_STREAM: Final = ("0", "1")


class CaptionRequest(schemas.Base64Photos):
    """Photos as text, and options."""

    stream: bool = False
    """As the parameter `stream`."""
    options: dict[str, schemas.Whole | str] = Field(default_factory=dict, examples=[{"beams": 4}])
    """The parameters `prompt`, `max_tokens` and `beams`."""


class Captioned(Generated):
    """One photo's caption."""

    alternatives: list[str] | None = None
    """Other sentences, best first; only with `beams`."""
    filename: str | None = None
    """The photo's name in a form."""


class Captions(Schema):
    """One result for each photo, in the order in which they were sent."""

    results: list[Captioned | schemas.Failed]


def add_routes(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    generator, settings = services.generator, services.settings
    readiness = services.readiness[SYSTEM.name]
    routes = Blueprint("caption", __name__)
    longest, beams = SYSTEM.options["max_tokens"][1], SYSTEM.options["beams"][1]

    @routes.get("/caption")
    def page() -> str:
        return services.page("caption.html", SYSTEM, away=readiness.known_problem)

    @routes.get("/caption/sample.jpg")
    def sample() -> Response:
        return Response(SYSTEM.sample(), content_type="image/jpeg")

    @routes.post("/caption")
    @route_options(admitted="texts", charged=True)
    def form() -> Response:
        """Caption one photo, sent by the form without scripts, and show the caption on its own page."""
        photo = form_photo(settings)
        deadline = deadline_of_request()
        model = generator.find("", deadline, SYSTEM.name)
        (answer,), timings = whole(generator, model, [photo], {}, deadline)
        caption = _caption(model, answer, timings)
        again = (url_for("caption.page"), t("caption.another"))
        return render("caption_result.html", lambda: caption, caption=caption, again=again)

    @services.api.post("/caption", endpoint="caption")
    @route_options(admitted="texts")
    @operation(
        answer=Captions,
        json=CaptionRequest,
        max_photos=settings.max_photos,
        each_fails=True,
        events=Captioned,
        parameters=MODEL
        | VERSION
        | {
            "prompt": parameter("The beginning of the sentence"),
            "max_tokens": parameter(f"From 1 to {longest}", pattern=_up_to(longest)),
            "beams": parameter(f"From 1 to {beams}", pattern=_up_to(beams)),
            "stream": parameter("`1` for a single photo's words as they come", *_STREAM),
        },
    )
    def caption() -> Response:
        """Caption each photo of the request.

        Send photos in any way of `classify`, and options as parameters, as fields of the form, or in the
        JSON's `options`. Each photo has its own result. With `stream`, a single photo is answered by
        server-sent events: `piece` events as words come, then `done` with the whole, or `error`. Closing the
        connection ends the work.
        """
        photos, chosen, fields = photos_and_more(settings, CaptionRequest)
        options, stream = _options(fields)
        count_photos(len(photos))
        deadline = deadline_of_request()
        if stream:
            photo = only_photo(photos, "only a single photo is streamed")
            model = generator.find_streaming(chosen, SYSTEM.streaming_model, deadline, SYSTEM.name)
            return in_pieces(generator, model, photo, options, deadline, _caption)
        model = generator.find(chosen, deadline, SYSTEM.name)

        def work(photo: bytes, filename: str | None, wait_ms: float | None) -> Captioned:
            (answer,), timings = whole(generator, model, [photo], options, deadline, wait_ms)
            return _caption(model, answer, timings, filename)

        return answer_each(photos, work, deadline)

    app.register_blueprint(routes)
    return [NavigationEntry("caption.page", "nav.caption", readiness, is_demo=True)]


def _up_to(largest: int) -> str:
    """Return a pattern of the whole numbers from 1 to `largest`."""
    return f"^({'|'.join(map(str, range(1, largest + 1)))})$"


def _caption(
    model: Model[Generation],
    answer: GeneratedText,
    timings: schemas.GenerationTimings,
    filename: str | None = None,
) -> Captioned:
    return Captioned(
        **generated_fields(model, answer, timings),
        alternatives=list(answer.others) or None,
        filename=filename,
    )


def _options(fields: CaptionRequest | None) -> tuple[dict[str, Any], bool]:
    """Return the options of the call, and True if its answer is streamed."""
    from_request = {
        name: request.values[name] for name in ("prompt", *SYSTEM.options) if name in request.values
    }
    stream = request.values.get("stream", "0")
    if stream not in _STREAM:
        raise BadRequest(f"stream is {stream[:50]!r}; allowed: {', '.join(_STREAM)}")
    return {**(fields.options if fields else {}), **from_request}, stream == "1" or bool(
        fields and fields.stream
    )
