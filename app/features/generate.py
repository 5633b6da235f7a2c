"""POST /api/v1/generate: a text or a picture answered with a text, whole or in pieces as they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flask import Flask, Response

from app.admission.queue import deadline_of_request
from app.admission.uploads import WRAPPING_BYTES
from app.api import schemas, text_calls
from app.api.generated import Generated, generated
from app.api.openapi import EVENTS, Operation, documented
from app.api.photo_calls import MODEL_PARAMETER
from app.api.request_parsing import checked, chosen_model, from_json, photo_of_base64, text_body
from app.api.services import NavigationEntry, Services
from app.api.text_calls import ReadyModel
from app.core.errors import BadRequest
from app.core.http import JSON, marked, unstored
from app.core.settings import Settings
from gourmet.contracts import ExampleKind, Generation

# Several times the longest text, whose characters may be written as \\uXXXX.
_MAX_TEXT_BYTES: Final = 200_000
_Request = schemas.GenerateRequest | schemas.TextRequest


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    generator, settings = services.generator, services.settings
    kinds = generator.example_kinds
    if not kinds:
        return ()
    # base64 makes four bytes of three.
    max_bytes = 4 * settings.max_upload_bytes // 3 + WRAPPING_BYTES if "picture" in kinds else _MAX_TEXT_BYTES

    shape: type[_Request] = schemas.GenerateRequest if "picture" in kinds else schemas.TextRequest

    @services.api.post("/generate")
    @marked(admitted="texts")
    @documented(
        Operation(
            Generated,
            in_parts={EVENTS: (schemas.Piece, schemas.Error, Generated)},
            errors=text_calls.ERRORS,
            bodies={JSON: shape},
            example=_example_of(services),
            asks="generation",
            query={
                "model": "A model that is ready and generates texts; needed where there are several systems"
                " of them",
                "version": MODEL_PARAMETER["version"],
            },
        )
    )
    def generate() -> Response:
        """An answer to this text or picture.

        Send a text, or a picture in base64, as JSON. With `stream`, the answer is server-sent events, each
        sent as soon as it is there: `piece` events, and at the end `done` with the whole answer, or `error`.
        Closing the connection ends the work on it.
        """
        body = text_body(settings, max_bytes)
        asked = from_json(shape, body, '{"text": "…"} or {"picture": "<base64>"}')
        deadline = deadline_of_request(settings.generate_deadline_s)
        model = generator.find(chosen_model(asked.model or "", asked.version), deadline)
        example = _example(asked, model, settings)
        if asked.stream:
            return text_calls.in_pieces(generator, model, example, asked.options, deadline)
        found = text_calls.whole(generator, model, example, asked.options, deadline)
        return unstored(generated(model, *found))

    return ()


def _example_of(services: Services) -> dict[str, str]:
    """A request that is answered; empty where no system takes texts."""
    for name, system in services.systems.items():
        if isinstance(system, Generation) and system.example_kind == "text":
            return {"text": system.sample().decode(), "model": services.settings.models[name]}
    return {}


def _example(asked: _Request, model: ReadyModel, settings: Settings) -> bytes:
    sent: ExampleKind = "picture" if asked.text is None else "text"
    if sent != model.system.example_kind:
        raise BadRequest(f"{model.info.name} answers a {model.system.example_kind}: send that, not a {sent}")
    if asked.picture is None:
        return (asked.text or "").encode()
    photo = checked(photo_of_base64(asked.picture), settings)
    if photo.fault:
        raise photo.fault
    return photo.data
