"""Calls that are answered with whole texts, by any model of any system that generates."""

from __future__ import annotations

import time
from collections.abc import Sequence

from flask import g

from app.api import schemas
from app.api.text_calls import Generator, ReadyModel, observed
from app.asking import with_warning
from app.core.http import phases_ms, request_id
from gourmet.client.deadline import Deadline
from gourmet.contracts import GeneratedText, Options


def several(
    generator: Generator,
    model: ReadyModel,
    examples: Sequence[bytes],
    options: Options,
    deadline: Deadline,
) -> tuple[list[GeneratedText], schemas.GenerationTimings]:
    """The answers to these examples, which are asked together, and the time that all of it took."""
    g.model = model.info.name
    started = time.perf_counter()
    found = generator.answers(model, examples, options, deadline, request_id())
    answers = [with_warning(model.system, *each) for each in zip(examples, found, strict=True)]
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
    """The answer and its phases in milliseconds, for a thread without a request too."""
    with generator.guarded(model, example, deadline) as before:
        started = time.perf_counter()
        (answer,) = generator.answers(model, [example], options, deadline, asked_as)
        answer = with_warning(model.system, example, answer)
        return answer, {**before, "triton": (time.perf_counter() - started) * 1000}


def whole(
    generator: Generator, model: ReadyModel, example: bytes, options: Options, deadline: Deadline
) -> tuple[GeneratedText, schemas.GenerationTimings]:
    g.model = model.info.name
    answer, phases = one(generator, model, example, options, deadline, request_id())
    return answer, observed(model, answer.tokens, phases_ms(phases))
