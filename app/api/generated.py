"""What a generated answer is to clients: its text, its score, and how far it may be relied on."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from app.api import schemas
from app.api.schemas import Maybe, Schema
from app.asking import Served
from app.core.http import request_id
from gourmet.contracts import GeneratedText, Generation, ModelInfo


class Sentence(Schema):
    """A sentence of an answer of several, with a score of its own."""

    text: str
    score: float
    sure: bool | Maybe = None


class Said(Schema):
    """An answer's text, and how far it may be relied on."""

    text: str
    tokens: int | Maybe = Field(default=None, ge=0)
    score: float | Maybe = None
    sure: bool | Maybe = None
    sentences: list[Sentence] | Maybe = None
    warning: str | Maybe = None


class Generated(Said):
    """The whole answer to a text; of a streamed one, the last part."""

    model: schemas.ModelName
    timings_ms: schemas.GenerationTimings
    request_id: str


def said(model: ModelInfo, answer: GeneratedText) -> dict[str, Any]:
    """What every answer says of its text."""
    scored = answer.sentences or ()
    sentences = [
        Sentence(text=answer.text[begin:end], score=score, sure=model.reaches(score))
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


def facts(
    model: Served[Generation], answer: GeneratedText, timings: schemas.GenerationTimings
) -> dict[str, Any]:
    """What the shape of every answer says."""
    return {
        **said(model.info, answer),
        "model": schemas.ModelName(name=model.info.name, version=model.info.version),
        "timings_ms": timings,
        "request_id": request_id(),
    }


def generated(*found: Any) -> Generated:
    return Generated(**facts(*found))
