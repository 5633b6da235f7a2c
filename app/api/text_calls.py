"""Calls that are answered with text, whole or in parts, by any model of any system that generates.

Flask ends a request before the first part of its answer is made. The stream therefore takes over what the
request holds, such as its place in the admission queue. It releases that after the last part, or when the
client disconnects. The status is sent before the first part, so an error is a part too.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Generator as Pieces
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
from flask import Response, current_app, g, stream_with_context

from app.admission.queue import Decoding, admission
from app.api import schemas
from app.asking import Served, ServedModels
from app.core.errors import (
    BadRequest,
    InferenceFailed,
    ModelNotReady,
    RefusedRequest,
    UnknownModel,
    as_dict,
    for_visitor,
    refusals_explained,
)
from app.core.http import phases_ms, request_id
from app.core.metrics import Metrics
from gourmet.client.deadline import Deadline
from gourmet.client.triton import Triton
from gourmet.contracts import (
    BadAnswer,
    BadModel,
    GeneratedText,
    Generation,
    ModelInfo,
    Options,
    Tensors,
    TooMuch,
    WarnsOfAnswers,
)

LINES: Final = "application/x-ndjson"
EVENTS: Final = "text/event-stream"
# Examples in one request to Triton. Requests of others wait while a model reads it.
_AT_ONCE: Final = 8

# A part, or None if the model was silent for a while.
Parts = Iterator[schemas.Schema | None]
ReadyModel = Served[Generation]
# Turns an answer and its times into the last part of a stream.
Tell = Callable[[ReadyModel, GeneratedText, schemas.GenerationTimings], schemas.Schema]


class Generator:
    def __init__(
        self,
        triton: Triton,
        systems: Mapping[str, Generation],
        configured: Mapping[str, str],
        expected: Collection[str] = (),
        max_sandboxed: int = 1,
    ) -> None:
        """Let other processes decode at most `max_sandboxed` pictures at a time.

        The other parameters are those of `ServedModels`.
        """
        self._triton = triton
        self._decoding = Decoding(max_sandboxed)
        self.example_kinds = {system.example_kind for system in systems.values()}
        self.models = ServedModels(triton, systems, configured, lambda _, __: True, expected)

    def find(self, model: str, deadline: Deadline, system: str = "") -> ReadyModel:
        """Find `model`; without a name, the model configured for `system` or for the only system."""
        configured = self.models.configured
        asks_configured = model[:1] in ("", "/")  # "/VERSION" names a version of the configured model
        if asks_configured and not system and len(configured) != 1:
            raise BadRequest(
                "name a model: configured are " + ", ".join(configured.values())
                if configured
                else "this app has no system that generates text"
            )
        if asks_configured:
            model = (configured[system] if system else next(iter(configured.values()))) + model
        served = self.models.find(model, deadline, system)
        with _bad_model_explained():
            _ = served.info.threshold  # raises BadModel for one that is not a number
        return served

    def loaded(self, system: str, deadline: Deadline) -> ModelInfo:
        """Return the configured model of `system` as Triton has it now.

        Raise ServingError if it is not ready.
        """
        return self.models.find(self.models.configured[system], deadline, system, afresh=True).info

    def find_streaming(self, model: str, streaming: str, deadline: Deadline, system: str) -> ReadyModel:
        """Find `model`; without a name, `streaming` if the configured model does not stream."""
        served = self.find(model, deadline, system)
        if served.info.decoupled or model:
            return served
        try:
            return self.find(streaming, deadline, system)
        except (ModelNotReady, UnknownModel):
            return served

    def guarded(
        self, model: ReadyModel, example: bytes, deadline: Deadline
    ) -> AbstractContextManager[dict[str, float]]:
        """Return a context manager for a request: it checks a picture and limits slow decoding meanwhile."""
        is_picture = model.system.example_kind == "picture"
        return self._decoding.guarded(example, deadline) if is_picture else contextlib.nullcontext({})

    def pieces(
        self,
        model: ReadyModel,
        example: bytes,
        options: Options,
        deadline: Deadline,
        request_id: str,
    ) -> Pieces[GeneratedText | None, None, None]:
        """Yield the model's pieces, or one piece from a model that answers whole; None in a silence."""
        inputs = _inputs(model, example, options)
        with _explained(model):
            if not model.info.decoupled:
                answer = self._triton.infer(model.info.target, inputs, deadline, request_id)
                yield _read(model, answer.outputs)
                return
            for outputs in self._triton.stream(model.info, inputs, deadline, request_id):
                yield None if outputs is None else _read(model, outputs)

    def answers(
        self,
        model: ReadyModel,
        examples: Sequence[bytes],
        options: Options,
        deadline: Deadline,
        request_id: str,
    ) -> list[GeneratedText]:
        """Return the answers; examples share requests if the model answers whole, else each has its own."""
        answers: list[GeneratedText] = []
        at_once = 1 if model.info.decoupled else _AT_ONCE
        for first in range(0, len(examples), at_once):
            part = examples[first : first + at_once]
            if model.info.decoupled:
                answers.append(joined(self.pieces(model, part[0], options, deadline, request_id)))
                continue
            rows = [_inputs(model, example, options) for example in part]
            together = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
            with _explained(model):
                outputs = self._triton.infer(model.info.target, together, deadline, request_id).outputs
            answers += [
                _read(model, {name: values[row : row + 1] for name, values in outputs.items()})
                for row in range(len(part))
            ]
        return [_with_warning(model, *pair) for pair in zip(examples, answers, strict=True)]

    def ask_sample(self, system: str, deadline: Deadline) -> ModelInfo:
        """Return the model configured for `system` if it answers its sample; else raise ServingError."""
        model = self.find("", deadline, system)
        answer = joined(self.pieces(model, model.system.sample(), {}, deadline, "readyz"))
        if not answer.text.strip():
            raise InferenceFailed(f"{model.info.name} answers its sample with nothing")
        return model.info


def _explained(model: ReadyModel) -> AbstractContextManager[None]:
    return refusals_explained() if model.system.example_kind == "picture" else contextlib.nullcontext()


def joined(pieces: Iterator[GeneratedText | None]) -> GeneratedText:
    """Join `pieces` into the whole answer."""
    parts = [piece for piece in pieces if piece] or [GeneratedText("")]
    last = parts[-1]
    text = "".join(piece.text for piece in parts)
    return GeneratedText(text, last.tokens, last.score, sentences=last.sentences)


def _inputs(model: ReadyModel, example: bytes, options: Options) -> Tensors:
    try:
        with _bad_model_explained():
            return model.system.request_inputs(example, model.info, options)
    except TooMuch as exc:
        raise RefusedRequest("too_many_sentences", str(exc)) from exc
    except ValueError as exc:
        raise BadRequest(str(exc)) from exc


@contextlib.contextmanager
def _bad_model_explained() -> Iterator[None]:
    try:
        yield
    except BadModel as exc:
        raise InferenceFailed(str(exc)) from exc


def _read(model: ReadyModel, outputs: Tensors) -> GeneratedText:
    try:
        return model.system.generated(outputs, model.info)
    except BadAnswer as exc:
        raise InferenceFailed(str(exc)) from exc


def _with_warning(model: ReadyModel, example: bytes, answer: GeneratedText) -> GeneratedText:
    """Add to the whole answer to `example` the warning of its system, if the system gives warnings."""
    system = model.system
    return system.with_warning(example, answer) if isinstance(system, WarnsOfAnswers) else answer


def several(
    generator: Generator,
    model: ReadyModel,
    examples: Sequence[bytes],
    options: Options,
    deadline: Deadline,
) -> tuple[list[GeneratedText], schemas.GenerationTimings]:
    """Ask about the examples together; return their answers and the time that all of them took."""
    g.model = model.info.name
    started = time.perf_counter()
    answers = generator.answers(model, examples, options, deadline, request_id())
    phases = phases_ms({"triton": (time.perf_counter() - started) * 1000})
    return answers, observed(model, sum(answer.tokens or 0 for answer in answers), phases)


def one(
    generator: Generator,
    model: ReadyModel,
    example: bytes,
    options: Options,
    deadline: Deadline,
    asked_as: str,
) -> tuple[GeneratedText, dict[str, float]]:
    """Return the answer and its phases in milliseconds; works in a thread without a request."""
    with generator.guarded(model, example, deadline) as before:
        started = time.perf_counter()
        (answer,) = generator.answers(model, [example], options, deadline, asked_as)
        return answer, {**before, "triton": (time.perf_counter() - started) * 1000}


def whole(
    generator: Generator, model: ReadyModel, example: bytes, options: Options, deadline: Deadline
) -> tuple[GeneratedText, schemas.GenerationTimings]:
    g.model = model.info.name
    answer, phases = one(generator, model, example, options, deadline, request_id())
    return answer, observed(model, answer.tokens, phases_ms(phases))


def in_pieces(
    generator: Generator,
    model: ReadyModel,
    example: bytes,
    options: Options,
    deadline: Deadline,
    tell: Tell | None = None,
) -> Response:
    """Stream the answer as server-sent events."""
    g.model = model.info.name
    with contextlib.ExitStack() as held:
        held.callback(admission().keep_place())
        inner = dict(held.enter_context(generator.guarded(model, example, deadline)))
        started = time.perf_counter()
        pieces = generator.pieces(model, example, options, deadline, request_id())
        held.callback(pieces.close)
        # An error before the first piece, or before a silence, still sets the status.
        first = list(itertools.islice(pieces, 1))
        parts = _parts(model, example, itertools.chain(first, pieces), started, inner, tell or generated)
        return streamed(parts, held.pop_all(), EVENTS)


def _parts(
    model: ReadyModel,
    example: bytes,
    pieces: Iterator[GeneratedText | None],
    started: float,
    inner: dict[str, float],
    tell: Tell,
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
    yield tell(model, answer, observed(model, answer.tokens, phases_ms(inner)))


def observed(
    model: ReadyModel, tokens: int | None, timings: Mapping[str, float]
) -> schemas.GenerationTimings:
    metrics: Metrics = current_app.extensions["metrics"]
    counted = metrics.of_system[model.system.name]
    counted["generations_total"].labels(model.info.name).inc()
    counted["tokens_total"].labels(model.info.name).inc(tokens or 0)
    metrics.observe_phases(model.system.name, timings)
    return schemas.GenerationTimings(**timings)


def said(model: ModelInfo, answer: GeneratedText) -> dict[str, Any]:
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
        "warning": answer.warning or None,
    }


def facts(model: ReadyModel, answer: GeneratedText, timings: schemas.GenerationTimings) -> dict[str, Any]:
    """Return the fields of every answer's shape."""
    return {
        **said(model.info, answer),
        "model": schemas.ModelName(name=model.info.name, version=model.info.version),
        "timings_ms": timings,
        "request_id": request_id(),
    }


def generated(*answer: Any) -> schemas.Generated:
    return schemas.Generated(**facts(*answer))


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
