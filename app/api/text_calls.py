"""Calls that are answered with text: read, asked, and answered whole or piece by piece."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from flask import Response, current_app, g, request

from app.admission.uploads import admission, receiving
from app.api import schemas
from app.api.events import EVENTS, Parts, streamed
from app.api.photo_calls import phases_ms
from app.core.http import request_id
from app.core.metrics import Metrics
from app.core.settings import Settings
from app.generator import Generator, ReadyModel, joined
from gourmet.client.deadline import Deadline
from gourmet.contracts import GeneratedText, Options

ERRORS: Final = (400, 404, 408, 413, 500, 502, 503, 504)


def received(settings: Settings, most_bytes: int) -> bytes:
    """The body of a request, which is JSON of a few texts."""
    request.max_content_length = most_bytes
    too_large = f"the text is too long: send at most {most_bytes // 1000} KB of JSON"
    with receiving(settings, too_large):
        return request.get_data(cache=False)


def whole(
    generator: Generator, model: ReadyModel, example: bytes, options: Options, deadline: Deadline
) -> schemas.Generated:
    started = _begun(model)
    pieces = generator.pieces(model, example, options, deadline, request_id())
    return _generated(model, [piece for piece in pieces if piece], started, {})


def several(
    generator: Generator,
    model: ReadyModel,
    examples: Sequence[bytes],
    options: Options,
    deadline: Deadline,
) -> tuple[list[GeneratedText], schemas.GenerationTimings]:
    """The answers to these examples, which are asked together, and the time that all of it took."""
    started = _begun(model)
    answers = generator.answers(model, examples, options, deadline, request_id())
    return answers, _observed(model, sum(answer.tokens or 0 for answer in answers), started, {})


def in_pieces(
    generator: Generator, model: ReadyModel, example: bytes, options: Options, deadline: Deadline
) -> Response:
    """Server-sent events, each as soon as it is there."""
    started = _begun(model)
    pieces = generator.pieces(model, example, options, deadline, request_id())
    with contextlib.ExitStack() as held:
        held.callback(admission().keep_turn())
        held.callback(pieces.close)
        # What goes wrong before the first piece, or a silence, has a status of its own.
        first = list(itertools.islice(pieces, 1))
        return streamed(_parts(model, itertools.chain(first, pieces), started), held.pop_all(), EVENTS)


def _begun(model: ReadyModel) -> float:
    g.model = model.info.name
    return time.perf_counter()


def _parts(model: ReadyModel, pieces: Iterator[GeneratedText | None], started: float) -> Parts:
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
    model: ReadyModel, pieces: list[GeneratedText], started: float, inner: Mapping[str, float]
) -> schemas.Generated:
    answer = joined(pieces)
    return schemas.Generated(
        text=answer.text,
        tokens=answer.tokens,
        score=answer.score,
        model=schemas.ModelName(name=model.info.name, version=model.info.version),
        timings_ms=_observed(model, answer.tokens, started, inner),
        request_id=request_id(),
    )


def _observed(
    model: ReadyModel, tokens: int | None, started: float, inner: Mapping[str, float]
) -> schemas.GenerationTimings:
    timings = phases_ms({**inner, "triton": (time.perf_counter() - started) * 1000})
    metrics: Metrics = current_app.extensions["metrics"]
    metrics.observe_generation(model.system.name, model.info.name, tokens, timings)
    return schemas.GenerationTimings(**timings)
