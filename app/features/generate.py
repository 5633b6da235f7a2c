"""POST /api/v1/generate: a text answered with a text, whole or piece by piece as it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flask import Flask, Response, request

from app.api import schemas, text_calls
from app.api.openapi import JSON, Operation, documented
from app.api.photo_calls import unstored
from app.api.request_parsing import from_json
from app.core.events import EVENTS
from app.core.http import marked
from app.features.feature import NavigationEntry, Services
from app.triton.client import Deadline

# Several times the longest text, whose characters may be written as \uXXXX.
_MOST_BYTES: Final = 200_000


def add(app: Flask, services: Services) -> Sequence[NavigationEntry]:
    generator, settings = services.generator, services.settings
    if not any(system.task == "generation" for system in services.systems.values()):
        return ()

    @services.api.post("/generate")
    @marked(admitted=True)
    @documented(
        Operation(
            schemas.Generated,
            kinds={EVENTS: (schemas.Piece, schemas.Error, schemas.Generated), JSON: (schemas.Generated,)},
            errors=text_calls.ERRORS,
            bodies={JSON: schemas.TextRequest},
            query={
                "model": "A model that is ready and answers texts; needed where there are several systems"
                " of them"
            },
        )
    )
    def generate() -> Response:
        """An answer to this text.

        Send a text as JSON. With `stream`, the answer is server-sent events, each sent as soon as it is
        there: `piece` events, and at the end `done` with the whole answer, or `error`. Who closes the
        connection ends the work on it.
        """
        body = text_calls.received(settings, _MOST_BYTES)
        asked = from_json(schemas.TextRequest, body, '{"text": "…", "stream": false}')
        deadline = Deadline(settings.generate_deadline_s)
        model = generator.find(request.args.get("model") or asked.model or "", deadline)
        if asked.stream:
            return text_calls.in_pieces(generator, model, asked.text, asked.options, deadline)
        return unstored(text_calls.whole(generator, model, asked.text, asked.options, deadline))

    return ()
