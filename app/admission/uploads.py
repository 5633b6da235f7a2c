"""Uploads: read into memory once the request is admitted, limited in size, never written to disk.

The proxy in front limits how long a client may take to send (proxy/nginx.conf).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from flask import Flask, Response, current_app, g, request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import RequestEntityTooLarge

from app.admission.queue import admission
from app.core.errors import BrokenBody, RefusedRequest
from app.core.http import marks
from app.core.settings import Settings

FIELD: Final = "file"
OTHER_FIELD: Final = "image"  # accepted too
# The limit for the rest of a multipart body: boundaries, headers, a few other fields.
WRAPPING_BYTES: Final = 65_536
MAX_OTHER_PARTS: Final = 16
# A client that is still sending does not read the answer. So the app reads and discards this much first;
# a client that sends more may find the connection closed.
_DRAINED_BYTES: Final = 50_000_000
# Raised while reading a body with invalid chunks or a lost connection.
_BROKEN: Final = (ParseException, OSError)


def init_app(app: Flask, settings: Settings) -> None:
    app.config["MAX_CONTENT_LENGTH"] = settings.max_upload_bytes + WRAPPING_BYTES
    app.config["MAX_FORM_PARTS"] = MAX_OTHER_PARTS
    app.after_request(_discard)


@contextlib.contextmanager
def receiving(too_large: str) -> Iterator[None]:
    """Admit the request before its body is read, and time the reading.

    Raise Overloaded, RefusedRequest for a body that is too large, or BrokenBody.
    """
    uploading = current_app.extensions["metrics"].in_flight.labels("upload")
    try:
        admission().acquire()
        started = time.perf_counter()
        with uploading.track_inprogress():
            yield
    except RequestEntityTooLarge:
        raise RefusedRequest("upload_too_large", too_large) from None
    except _BROKEN as exc:
        raise BrokenBody("the request's body has invalid chunks, or its connection was lost") from exc
    g.receive_ms = (time.perf_counter() - started) * 1000


def _discard(response: Response) -> Response:
    """Read and discard the rest of the body, so that the client reads the refusal."""
    has_end = request.content_length is not None or "wsgi.input_terminated" in request.environ
    if response.status_code < 400 or not marks().admitted or not has_end:
        return response
    left = min(_DRAINED_BYTES, request.content_length or _DRAINED_BYTES)
    with contextlib.suppress(*_BROKEN):
        while left > 0 and (chunk := request.environ["wsgi.input"].read(min(left, 65_536))):
            left -= len(chunk)
    return response


def photo_too_large(settings: Settings) -> str:
    return f"the photo is larger than {settings.max_upload_mb:g} MB: send a smaller one, or save it as JPEG"
