"""POST /api/v1/generate: answer a text or a picture with a text, whole or streamed in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flask import Flask, Response

from app.api import schemas
from app.api.openapi import VERSION, operation, parameter
from app.api.texts import generated, in_pieces, whole
from app.api.uploads import WRAPPING_BYTES, chosen_model, json_body, photo_of_base64
from app.models import Model
from app.services import NavigationEntry, Services
from app.web.admission import deadline_of_request
from app.web.errors import BadRequest
from app.web.http import route_options, unstored
from app.web.settings import Settings
from gourmet.contracts import ExampleKind, Generation

# Several times the longest text, since each character may be sent as \\uXXXX.
_MAX_TEXT_BYTES: Final = 200_000


def add_routes(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    generator, settings = services.generator, services.settings
    kinds = {system.example_kind for system in generator.systems.values()}
    if not kinds:
        return ()
    # base64 encodes three bytes as four.
    max_bytes = 4 * settings.max_upload_bytes // 3 + WRAPPING_BYTES if "picture" in kinds else _MAX_TEXT_BYTES

    @services.api.post("/generate")
    @route_options(admitted="texts")
    @operation(
        answer=schemas.Generated,
        json=schemas.GenerateRequest,
        events=schemas.Generated,
        parameters={"model": parameter("A model that is ready and generates texts")} | VERSION,
        example={"text": "Я люблю чай.", "model": "translator"},
    )
    def generate() -> Response:
        """Generate a text from the text or picture of the request.

        Send a text, or a picture in base64. Name a model if several systems have one. With `stream`, the
        answer is server-sent events: `piece` events, then `done` with the whole, or `error`. Closing the
        connection ends the work.
        """
        expected = '{"text": "…"} or {"picture": "<base64>"}'
        fields = json_body(schemas.GenerateRequest, max_bytes, expected)
        deadline = deadline_of_request()
        model = generator.find(chosen_model(fields.model or "", fields.version), deadline)
        example = _example(fields, model, settings)
        if fields.stream:
            return in_pieces(generator, model, example, fields.options, deadline)
        (answer,), timings = whole(generator, model, [example], fields.options, deadline)
        return unstored(generated(model, answer, timings))

    return ()


def _example(fields: schemas.GenerateRequest, model: Model[Generation], settings: Settings) -> bytes:
    sent: ExampleKind = "picture" if fields.text is None else "text"
    if sent != model.system.example_kind:
        raise BadRequest(f"{model.info.name} answers a {model.system.example_kind}: send that, not a {sent}")
    if fields.picture is None:
        return (fields.text or "").encode()
    return photo_of_base64(fields.picture).checked(settings).content()
