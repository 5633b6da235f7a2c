"""POST /api/v1/generate: a text or a picture answered with a text, whole or in pieces as they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flask import Flask, Response

from app.admission.queue import deadline_of_request
from app.admission.uploads import WRAPPING_BYTES
from app.api import schemas, text_calls
from app.api.request_parsing import checked, chosen_model, from_json, photo_of_base64, text_body
from app.api.services import NavigationEntry, Services
from app.api.text_calls import ReadyModel, generated
from app.core.errors import BadRequest
from app.core.http import marked, unstored
from app.core.settings import Settings
from gourmet.contracts import ExampleKind

# Several times the longest text, whose characters may be written as \\uXXXX.
_MAX_TEXT_BYTES: Final = 200_000


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    generator, settings = services.generator, services.settings
    kinds = generator.example_kinds
    if not kinds:
        return ()
    # base64 makes four bytes of three.
    max_bytes = 4 * settings.max_upload_bytes // 3 + WRAPPING_BYTES if "picture" in kinds else _MAX_TEXT_BYTES

    @services.api.post("/generate")
    @marked(admitted="texts")
    def generate() -> Response:
        """An answer to this text or picture."""
        body = text_body(settings, max_bytes)
        asked = from_json(schemas.GenerateRequest, body, '{"text": "…"} or {"picture": "<base64>"}')
        deadline = deadline_of_request(settings.generate_deadline_s)
        model = generator.find(chosen_model(asked.model or "", asked.version), deadline)
        example = _example(asked, model, settings)
        if asked.stream:
            return text_calls.in_pieces(generator, model, example, asked.options, deadline)
        found = text_calls.whole(generator, model, example, asked.options, deadline)
        return unstored(generated(model, *found))

    return ()


def _example(asked: schemas.GenerateRequest, model: ReadyModel, settings: Settings) -> bytes:
    sent: ExampleKind = "picture" if asked.text is None else "text"
    if sent != model.system.example_kind:
        raise BadRequest(f"{model.info.name} answers a {model.system.example_kind}: send that, not a {sent}")
    if asked.picture is None:
        return (asked.text or "").encode()
    photo = checked(photo_of_base64(asked.picture), settings)
    if photo.fault:
        raise photo.fault
    return photo.data
