"""Limit and read the bodies of requests, and the models that they name.

A view reads the body into memory, once its request is admitted. It is limited in size and never written to
disk. The proxy in front limits how long a client may take to send (proxy/nginx.conf).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Collection, Iterator
from typing import Final, TypeVar

from flask import Flask, Response, current_app, g, request
from gunicorn.http.errors import ParseException
from pydantic import ValidationError
from werkzeug.exceptions import RequestEntityTooLarge, UnsupportedMediaType

from app.api.schemas import Schema
from app.web.admission import deadline_of_request
from app.web.errors import BadRequest, ServingError
from app.web.http import JSON, options_of_route
from app.web.settings import Settings

# The limit for the rest of a multipart body: boundaries, headers, a few other fields.
WRAPPING_BYTES: Final = 65_536
MAX_OTHER_PARTS: Final = 16
# A client that is still sending does not read the answer. So the app first reads and discards this much, for
# this long; a client that sends more or for longer may find the connection closed.
_DRAINED_BYTES: Final = 50_000_000
_DRAINED_S: Final = 2.0
# Raised while reading a body with invalid chunks or a lost connection.
_BROKEN: Final = (ParseException, OSError)
_MAX_LOCATION: Final = 100
S = TypeVar("S", bound=Schema)


def init_app(app: Flask, settings: Settings) -> None:
    app.config["MAX_CONTENT_LENGTH"] = settings.max_upload_bytes + WRAPPING_BYTES
    app.config["MAX_FORM_PARTS"] = MAX_OTHER_PARTS
    app.after_request(_discard)


def _discard(response: Response) -> Response:
    """Read and discard the rest of the body for a moment, so that the client reads the refusal."""
    has_end = request.content_length is not None or "wsgi.input_terminated" in request.environ
    if response.status_code < 400 or not options_of_route().admitted or not has_end:
        return response
    connection = request.environ.get("gunicorn.socket")
    if connection is None:
        return response
    left, end = min(_DRAINED_BYTES, request.content_length or _DRAINED_BYTES), time.monotonic() + _DRAINED_S
    try:
        while left > 0:
            connection.settimeout(max(0.001, end - time.monotonic()))
            chunk = request.environ["wsgi.input"].read(min(left, 65_536))
            left = left - len(chunk) if chunk else 0
    except _BROKEN:
        # Nobody waits for the rest: reading the socket returns its end at once.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RD)
    connection.settimeout(None)
    return response


@contextlib.contextmanager
def receiving(too_large: str) -> Iterator[None]:
    """Time the reading of the body; raise the error of one that is too large or broken."""
    uploading = current_app.extensions["metrics"].in_flight[options_of_route().admitted].labels("upload")
    started = time.perf_counter()
    try:
        with uploading.track_inprogress():
            yield
    except RequestEntityTooLarge:
        raise ServingError("upload_too_large", too_large) from None
    except _BROKEN as exc:
        raise BadRequest("the request's body has invalid chunks, or its connection was lost") from exc
    g.receive_ms = (time.perf_counter() - started) * 1000
    deadline_of_request().restart()  # the client's connection may be slow


def one_of(parameter: str, allowed: Collection[str]) -> str:
    """Return a query parameter that is one of `allowed`, or an empty string if it is missing."""
    value = request.args.get(parameter)
    if value is None:
        return ""
    if value not in allowed:
        raise BadRequest(f"{parameter} is {value!r}; allowed: {', '.join(allowed)}")
    return value


def chosen_model(model: str, version: str | None = "") -> str:
    """Return NAME or NAME/VERSION; the query string overrides the body."""
    model = request.args.get("model") or model
    version = request.args.get("version") or version
    return f"{model}/{version}" if version else model


def json_body(shape: type[S], max_bytes: int, expected: str) -> S:
    """Read a body that is JSON of this shape."""
    if request.mimetype != JSON:
        raise UnsupportedMediaType(
            f"a body of type {request.mimetype or 'none'!r} is not read here: send {JSON}"
        )
    request.max_content_length = max_bytes
    with receiving(f"the text is too long: send at most {max_bytes // 1000} KB of JSON"):
        body = request.get_data(cache=False)
    return from_json(shape, body, expected)


def from_json(shape: type[S], body: bytes, expected: str) -> S:
    """Parse JSON; raise BadRequest with the first error and its location."""
    try:
        return shape.model_validate_json(body, strict=True)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, first["loc"]))[:_MAX_LOCATION] or "the body"
        # pydantic puts the kind of exception before the message of our own validators.
        message = first["msg"].removeprefix("Value error, ")
        raise BadRequest(f"{location}: {message}; expected is {expected}") from None
