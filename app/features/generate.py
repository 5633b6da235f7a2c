"""POST /api/v1/generate: a text answered with a text, whole or piece by piece as it is made."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from flask import Flask, Response, current_app, g, request

from app.admission.queue import admission
from app.admission.uploads import receiving
from app.api import schemas
from app.api.openapi import JSON, Operation, documented
from app.api.photo_calls import phases_ms, unstored
from app.api.request_parsing import from_json
from app.core.errors import UploadTooLarge
from app.core.events import EVENTS, Parts, streamed
from app.core.http import marked, request_id
from app.core.metrics import Metrics
from app.features.feature import NavigationEntry, Services
from app.generator import TextModel, joined
from app.triton.client import Deadline
from gourmet.contracts import GeneratedText

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
            errors=(400, 404, 408, 413, 500, 502, 503, 504),
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
        request.max_content_length = _MOST_BYTES
        too_large = UploadTooLarge(f"the text is too long: send at most {_MOST_BYTES // 1000} KB of JSON")
        with receiving(request, settings, too_large):
            body = request.get_data(cache=False)
        asked = from_json(schemas.TextRequest, body, '{"text": "…", "stream": false}')
        deadline = Deadline(settings.generate_deadline_s)
        model = generator.find(request.args.get("model") or asked.model or "", deadline)
        g.model = model.info.name
        started = time.perf_counter()
        pieces = generator.pieces(model, asked.text, asked.options, deadline, request_id())
        if not asked.stream:
            return unstored(_generated(model, [piece for piece in pieces if piece], started, {}))
        with contextlib.ExitStack() as held:
            held.callback(admission().keep_turn())
            held.callback(pieces.close)
            # What goes wrong before the first piece, or a silence, has a status of its own.
            first = list(itertools.islice(pieces, 1))
            return streamed(_parts(model, itertools.chain(first, pieces), started), held.pop_all(), EVENTS)

    return ()


def _parts(model: TextModel, pieces: Iterator[GeneratedText | None], started: float) -> Parts:
    metrics: Metrics = current_app.extensions["metrics"]
    counted, name = metrics.of_system[model.system.name], model.info.name
    found: list[GeneratedText] = []
    inner: dict[str, float] = {}
    last = started
    for piece in pieces:
        if piece is None:
            yield None
            continue
        now = time.perf_counter()
        if found:
            counted["piece_seconds"].labels(name).observe(now - last)
        else:
            counted["first_piece_seconds"].labels(name).observe(now - last)
            inner["first_piece"] = (now - last) * 1000
        last = now
        found.append(piece)
        yield schemas.Piece(text=piece.text)
    yield _generated(model, found, started, inner)


def _generated(
    model: TextModel, pieces: list[GeneratedText], started: float, inner: Mapping[str, float]
) -> schemas.Generated:
    answer = joined(pieces)
    timings = phases_ms({**inner, "triton": (time.perf_counter() - started) * 1000})
    metrics: Metrics = current_app.extensions["metrics"]
    metrics.observe_generation(model.system.name, model.info.name, answer.tokens, timings)
    return schemas.Generated(
        text=answer.text,
        tokens=answer.tokens,
        score=answer.score,
        model=schemas.ModelName(name=model.info.name, version=model.info.version),
        timings_ms=schemas.GenerationTimings(**timings),
        request_id=request_id(),
    )
