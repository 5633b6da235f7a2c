"""Calls that are answered with text, whole or in parts, by any model of any system that generates.

Flask ends a request before the first part of its answer is made. The stream therefore takes over what the
request holds, such as its place in the admission queue. It releases that after the last part, or when the
client disconnects. The status is sent before the first part, so an error is a part too.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Generator as Pieces
from typing import Any, Final

import numpy as np
from flask import Response, current_app, g, stream_with_context

from app.api import schemas
from app.models import Model, ServedModels
from app.web.admission import admission
from app.web.errors import BadRequest, ServingError, UnknownModel, as_dict, for_visitor, refused_picture
from app.web.http import phases_ms, request_id
from app.web.messages import warning
from app.web.metrics import Metrics
from gourmet.contracts import (
    BadAnswer,
    GeneratedText,
    Generation,
    ModelInfo,
    Options,
    Tensors,
    TooMuch,
    WarnsOfAnswers,
)
from gourmet.pictures import header
from gourmet.pictures.decode import identify
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import InvalidRequest, ModelUnavailable

LINES: Final = "application/x-ndjson"
EVENTS: Final = "text/event-stream"
# Examples in one request to Triton. Requests of others wait while a model reads it.
_AT_ONCE: Final = 8

# A part, or None if the model was silent for a while.
Parts = Iterator[schemas.Schema | None]
# Turns an answer and its times into the last part of a stream.
LastPart = Callable[[Model[Generation], GeneratedText, schemas.GenerationTimings], schemas.Schema]


class Generator(ServedModels[Generation]):
    """Ask served models for texts, whole or in pieces."""

    @property
    def default_system(self) -> str:
        """The only system; with several, requests have to name a model."""
        if len(self.systems) != 1:
            raise BadRequest("name a model: configured are " + ", ".join(self.configured.values()))
        return super().default_system

    def find_streaming(
        self, model: str, streaming: str, deadline: Deadline, system: str
    ) -> Model[Generation]:
        """Find `model`; without a name, `streaming` if the configured model does not stream."""
        served = self.find(model, deadline, system)
        if served.info.decoupled or model:
            return served
        try:
            return self.find(streaming, deadline, system)
        except (ModelUnavailable, UnknownModel):
            return served

    @contextlib.contextmanager
    def checked_and_admitted(
        self, model: Model[Generation], example: bytes, deadline: Deadline
    ) -> Iterator[dict[str, float]]:
        """Check a picture, hold its place while the model decodes it, and yield the time so far."""
        if model.system.example_kind != "picture":
            yield {}
            return
        started = time.perf_counter()
        head = header.parse_header(example)
        with self._decoding.decode_in_app(deadline):
            identify(head)
        with self._decoding.decode_in_model(head, deadline):
            yield {"decode": (time.perf_counter() - started) * 1000}

    def pieces(
        self, model: Model[Generation], example: bytes, options: Options, deadline: Deadline
    ) -> Pieces[GeneratedText | None, None, None]:
        """Yield the model's pieces, or one piece from a model that answers whole; None in a silence."""
        if not model.info.decoupled:
            yield from self._together(model, [example], options, deadline)
            return
        inputs = _inputs(model, example, options)
        with _as_request_error(model):
            for outputs in self._triton.stream(model.info, inputs, deadline):
                yield None if outputs is None else model.system.generated(outputs, model.info)

    def answer_all(
        self, model: Model[Generation], examples: Sequence[bytes], options: Options, deadline: Deadline
    ) -> tuple[list[GeneratedText], dict[str, float]]:
        """Return the answers, and their phases in milliseconds. A picture is the only example of its call.

        Examples share requests to Triton if the model answers whole, else each has its own.
        """
        with self.checked_and_admitted(model, examples[0], deadline) as before:
            started = time.perf_counter()
            if model.info.decoupled:
                answers = [joined(self.pieces(model, example, options, deadline)) for example in examples]
            else:
                answers = [
                    answer
                    for first in range(0, len(examples), _AT_ONCE)
                    for answer in self._together(model, examples[first : first + _AT_ONCE], options, deadline)
                ]
            phases = {**before, "triton": (time.perf_counter() - started) * 1000}
        return [_with_warning(model, *pair) for pair in zip(examples, answers, strict=True)], phases

    def _together(
        self, model: Model[Generation], examples: Sequence[bytes], options: Options, deadline: Deadline
    ) -> list[GeneratedText]:
        """Ask about the examples in one request."""
        rows = [_inputs(model, example, options) for example in examples]
        inputs = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        with _as_request_error(model):
            outputs = self._triton.infer(model.info.target, inputs, deadline).outputs
        rows = [{name: values[row : row + 1] for name, values in outputs.items()} for row in range(len(rows))]
        return [model.system.generated(row, model.info) for row in rows]

    def ask_sample(self, system: str, deadline: Deadline) -> None:
        """Raise an error unless the model configured for `system` answers its sample."""
        model = self.find("", deadline, system)
        answer = joined(self.pieces(model, model.system.sample(), {}, deadline))
        if not answer.text.strip():
            raise BadAnswer(f"{model.info.name} answers its sample with nothing")


@contextlib.contextmanager
def _as_request_error(model: Model[Generation]) -> Iterator[None]:
    """Turn the refusal of a model that decodes into the error of the picture or of the request."""
    try:
        yield
    except InvalidRequest as exc:
        if model.system.example_kind != "picture":
            raise
        raise refused_picture(exc) or BadRequest(str(exc)) from exc


def joined(pieces: Iterator[GeneratedText | None]) -> GeneratedText:
    """Join `pieces` into the whole answer."""
    parts = [piece for piece in pieces if piece]
    last = parts[-1]
    text = "".join(piece.text for piece in parts)
    return GeneratedText(text, last.tokens, last.score, sentences=last.sentences)


def _inputs(model: Model[Generation], example: bytes, options: Options) -> Tensors:
    try:
        return model.system.request_inputs(example, model.info, options)
    except TooMuch as exc:
        raise ServingError("too_many_sentences", str(exc)) from exc
    except ValueError as exc:
        raise BadRequest(str(exc)) from exc


def _with_warning(model: Model[Generation], example: bytes, answer: GeneratedText) -> GeneratedText:
    """Add to the whole answer to `example` the warning of its system, if the system gives warnings."""
    system = model.system
    return system.with_warning(example, answer) if isinstance(system, WarnsOfAnswers) else answer


def whole(
    generator: Generator,
    model: Model[Generation],
    examples: Sequence[bytes],
    options: Options,
    deadline: Deadline,
    wait_ms: float | None = None,
) -> tuple[list[GeneratedText], schemas.GenerationTimings]:
    """Ask about the examples together; return their answers and the time that all of them took."""
    g.model = model.info.name
    answers, phases = generator.answer_all(model, examples, options, deadline)
    return answers, observed(model, sum(answer.tokens or 0 for answer in answers), phases_ms(phases, wait_ms))


def in_pieces(
    generator: Generator,
    model: Model[Generation],
    example: bytes,
    options: Options,
    deadline: Deadline,
    last_part: LastPart | None = None,
) -> Response:
    """Stream the answer as server-sent events."""
    g.model = model.info.name
    with contextlib.ExitStack() as held:
        held.callback(admission().keep_place())
        inner = dict(held.enter_context(generator.checked_and_admitted(model, example, deadline)))
        started = time.perf_counter()
        pieces = generator.pieces(model, example, options, deadline)
        held.callback(pieces.close)
        # An error before the first piece, or before a silence, still sets the status.
        first = list(itertools.islice(pieces, 1))
        parts = _parts(model, example, itertools.chain(first, pieces), started, inner, last_part or generated)
        return streamed(parts, held.pop_all(), EVENTS)


def _parts(
    model: Model[Generation],
    example: bytes,
    pieces: Iterator[GeneratedText | None],
    started: float,
    inner: dict[str, float],
    last_part: LastPart,
) -> Parts:
    metrics: Metrics = current_app.extensions["metrics"]
    counted, name = metrics.of_system[model.system.name], model.info.name
    answered: list[GeneratedText] = []
    last = started
    for piece in pieces:
        if piece is None:
            yield None
            continue
        now = time.perf_counter()
        counted["piece_seconds" if answered else "first_piece_seconds"].labels(name).observe(now - last)
        inner.setdefault("first_piece", (now - last) * 1000)
        last = now
        answered.append(piece)
        yield schemas.Piece(text=piece.text)
    answer = _with_warning(model, example, joined(iter(answered)))
    inner["triton"] = (time.perf_counter() - started) * 1000
    yield last_part(model, answer, observed(model, answer.tokens, phases_ms(inner)))


def observed(
    model: Model[Generation], tokens: int | None, timings: Mapping[str, float]
) -> schemas.GenerationTimings:
    metrics: Metrics = current_app.extensions["metrics"]
    counted = metrics.of_system[model.system.name]
    counted["generations_total"].labels(model.info.name).inc()
    counted["tokens_total"].labels(model.info.name).inc(tokens or 0)
    metrics.observe_phases(model.system.name, timings)
    return schemas.GenerationTimings(**timings)


def answer_fields(model: ModelInfo, answer: GeneratedText) -> dict[str, Any]:
    """Return the fields that every answer to a text has."""
    scored = answer.sentences or ()
    sentences = [
        schemas.Sentence(text=answer.text[begin:end], score=score, sure=model.reaches(score))
        for begin, end, score in scored
    ]
    return {
        "text": answer.text,
        "tokens": answer.tokens,
        "score": answer.score,
        "sure": model.is_sure(answer),
        "sentences": sentences if len(sentences) > 1 else None,
        "warning": warning(answer.warning) or None,
    }


def generated_fields(
    model: Model[Generation], answer: GeneratedText, timings: schemas.GenerationTimings
) -> dict[str, Any]:
    """Return the fields of every answer's shape."""
    return {
        **answer_fields(model.info, answer),
        "model": schemas.ModelName(name=model.info.name, version=model.info.version),
        "timings_ms": timings,
        "request_id": request_id(),
    }


def generated(*answer: Any) -> schemas.Generated:
    return schemas.Generated(**generated_fields(*answer))


def streamed(parts: Parts, held: contextlib.ExitStack, content_type: str) -> Response:
    """Return a response that streams `parts` and closes `held` when it ends, for whatever reason."""
    written = stream_with_context(_written(parts, held, content_type))
    response = Response(written, content_type=content_type)
    response.call_on_close(held.close)  # also where nobody reads a single part
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"  # else nginx would buffer the parts
    return response


def _written(parts: Parts, held: contextlib.ExitStack, content_type: str) -> Iterator[str]:
    with held:
        try:
            for part in parts:
                yield _text(part, content_type)
        except Exception as exc:
            problem = schemas.Problem(**as_dict(for_visitor(exc))["error"])
            yield _text(schemas.Error(error=problem), content_type)


def _text(part: schemas.Schema | None, content_type: str) -> str:
    """Write a part as a line or an event; a silence is a comment, which detects a disconnected client."""
    if part is None:
        return ":\n\n" if content_type == EVENTS else ""
    text = part.model_dump_json(exclude_none=True) + "\n"
    return f"event: {part.event}\ndata: {text}\n" if content_type == EVENTS else text
