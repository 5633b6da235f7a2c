"""An answer in pieces, by Triton's generate_stream: JSON by the tensors' names, as server-sent events.

tritonclient has this over gRPC alone. A connection serves one answer: closing it is what has Triton cancel
the request, so a consumer that stops reading frees the model at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from http import HTTPStatus
from typing import Final

from app.core import tracing
from app.core.errors import InferenceFailed
from app.triton.client import Deadline, Refusal, Triton, path_of
from app.triton.connection import Connection, Reply
from gourmet.contracts import ModelInfo, Tensors
from gourmet.runtime.generate import GenerateError, pieces, request_body

# After so long without a piece the consumer is asked whether it still wants one.
SILENCE_S: Final = 1.0


def stream(
    triton: Triton, model: ModelInfo, inputs: Tensors, deadline: Deadline, request_id: str = ""
) -> Generator[Tensors | None, None, None]:
    """The outputs of each piece; None where there was none for `SILENCE_S`. Closing it ends the request."""
    body = request_body(inputs, request_id)
    path, headers = path_of(model.name, "generate_stream"), {"Content-Type": "application/json"}
    with (
        contextlib.closing(Connection(triton.url, triton.connect_timeout_s)) as connection,
        tracing.span("triton", model=model.name),
        triton.explained(model.name, deadline),
        triton.reached(deadline),
    ):
        headers |= tracing.headers()
        rest = b""
        for came in connection.stream(path, deadline.left_s, body, headers, SILENCE_S):
            if came is None:
                yield None
                continue
            status, part = came
            *lines, rest = (rest + part).split(b"\n")
            if status != HTTPStatus.OK:
                raise Refusal(Reply(status, part, None))
            try:
                yield from pieces(lines, model)
            except GenerateError as exc:
                raise InferenceFailed(f"{model.name} could not answer: {exc}") from exc
            except (ValueError, TypeError) as exc:
                raise InferenceFailed(
                    f"a piece of the answer of {model.name} cannot be read: {exc!r}"
                ) from exc
