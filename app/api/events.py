"""Answers that are sent part by part, each as soon as it is there.

For Flask a request is over before the first part is made: what it holds, such as its turn at the admission
queue, is handed over and given back after the last part, or when the client goes away. The status was sent
before the first part, so an error is a part too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from flask import Response, stream_with_context

from app.api.schemas import Error, Problem, Schema
from app.core.errors import as_dict, for_visitor

LINES: Final = "application/x-ndjson"
EVENTS: Final = "text/event-stream"

# A part, or None where there was none for a while.
Parts = Iterator[Schema | None]


def streamed(parts: Parts, held: contextlib.ExitStack, content_type: str) -> Response:
    """The answer whose parts are `parts`; `held` is closed at its end, however that comes."""
    written = stream_with_context(_written(parts, held, content_type))
    response = Response(written, content_type=content_type)
    response.call_on_close(held.close)  # also where nobody reads a single part
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"  # nginx would keep the parts until there are many
    return response


def _written(parts: Parts, held: contextlib.ExitStack, content_type: str) -> Iterator[str]:
    with held:
        try:
            for part in parts:
                yield _text(part, content_type)
        except Exception as exc:
            yield _text(Error(error=Problem(**as_dict(for_visitor(exc))["error"])), content_type)


def _text(part: Schema | None, content_type: str) -> str:
    """A line, or a server-sent event: in a silence a comment, which finds out if the client is there."""
    if part is None:
        return ":\n\n" if content_type == EVENTS else ""
    text = part.model_dump_json(exclude_none=True) + "\n"
    return f"event: {part.event}\ndata: {text}\n" if content_type == EVENTS else text
