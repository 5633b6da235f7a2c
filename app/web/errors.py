"""The errors that clients see, each with its HTTP status and its code.

    ServingError        an error with one of the codes below
    ├── BadRequest      the request cannot be read
    ├── UnknownModel    the request names a model that nobody may ask
    ├── ModelNotReady   Triton answers, but the model is not loaded, or not yet
    └── Overloaded      the server has too much to do

Triton's client, the systems and the decoders have their own errors. `as_serving_error` gives each of them a
code; nothing below the views translates them. An error is answered as JSON,
`{"error": {"code", "message", "request_id"}}`, or as HTML, as the client prefers. Flask's own 404, 405 and
500 are answered in the same way. A 429 or 503 says when to try again.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from typing import Final

from flask import Flask, Response, current_app, g, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from app.web.http import PROTOCOL, render, request_id
from app.web.messages import TEXTS, message_of, t
from app.web.settings import Settings
from gourmet.contracts import BadAnswer, BadModel
from gourmet.errors import GourmetError
from gourmet.pictures.errors import DecodersBusy, PictureError
from gourmet.triton_client import errors as client

RETRY_AFTER_S: Final = 2
# By the codes of gourmet.pictures.errors.
_OF_PICTURES: Final = {
    "empty": 400,
    "not_a_picture": 400,
    "broken_picture": 400,
    "blank": 400,
    "several_digits": 400,
    "too_many_pixels": 413,
    "too_complex": 413,
    "unsupported_format": 415,
    "mixed_file": 415,
    "animated": 415,
    "too_slow": 504,
}
STATUSES: Final = {
    **_OF_PICTURES,
    "bad_request": 400,
    "no_file": 400,
    "wrong_host": 400,
    "unsupported_media_type": 415,  # werkzeug's
    "cross_site": 403,
    "key_needed": 401,
    "unknown_model": 404,
    "too_many_photos": 413,
    "too_many_sentences": 413,
    "upload_too_large": 413,
    "too_many_requests": 429,
    "client_left": 499,  # nginx introduced this status
    "corrections_full": 507,
    "corrections_unavailable": 503,
    "overloaded": 503,
    # Triton and its models.
    "inference_failed": 502,
    "triton_unavailable": 503,
    "model_not_ready": 503,
    "triton_busy": 503,
    "triton_too_slow": 504,
    "sample_unusable": 500,
    "internal": 500,
}
# The message of a served model that could not decode: `INPUT_IMAGE row 0 of 1: <reason> [<code>]`.
_DECODING_FAILED: Final = re.compile(
    r"row \d{1,9} of \d{1,9}: (?P<reason>.{1,200}) \[(?P<code>\w{1,30})\]", re.S
)


class ServingError(GourmetError):
    """An error whose message tells the visitor what is wrong and what to do."""

    def __init__(self, code: str, message: str, *, status: int = 0, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status or STATUSES[code]
        self.retry_after_s = retry_after_s or (RETRY_AFTER_S if self.status == 503 else None)


class BadRequest(ServingError):
    def __init__(self, message: str) -> None:
        super().__init__("bad_request", message)


class UnknownModel(ServingError):
    def __init__(self, model: str, ready: Sequence[str]) -> None:
        message = f"model {model!r} is not available; ready models: {', '.join(ready) or 'none'}"
        super().__init__("unknown_model", message)


class ModelNotReady(ServingError):
    def __init__(self, model: str, ready: Sequence[str], *, loading: bool = False) -> None:
        self.loading = loading
        why = "is still loading" if loading else "does not serve"
        served = ", ".join(ready) or "none"
        message = f"Triton {why} the model {model!r} at the moment; served are: {served}"
        super().__init__("model_not_ready", message)


class Overloaded(ServingError):
    """`at` labels the cause in the count of refusals."""

    def __init__(self, at: str) -> None:
        message = "the server is overloaded at the moment: try again in a few seconds"
        super().__init__("overloaded", message)
        self.at = at


class _Refusals:
    """Log refusals once a second, with their number: a line for each takes time when there is least of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._next_at = 0, 0.0

    def log(self, error: Overloaded) -> None:
        with self._lock:
            self._count += 1
            if (now := time.monotonic()) < self._next_at:
                return
            count, self._count, self._next_at = self._count, 0, now + 1.0
        current_app.logger.warning("503 %s: %s more requests refused (%s)", error.code, count, error.at)


def refused_picture(refusal: Exception) -> PictureError | None:
    """Return the error that a decoding model reported about a picture, if it did."""
    match = _DECODING_FAILED.search(str(refusal))
    return PictureError(match["code"], match["reason"]) if match and match["code"] in _OF_PICTURES else None


def as_serving_error(exc: BaseException) -> ServingError:
    """Return the error that a visitor sees for `exc`; an unexpected one has the code `internal`."""
    match exc:
        case ServingError():
            return exc
        case PictureError():
            return ServingError(exc.code, str(exc))
        case DecodersBusy():
            return Overloaded("decoders")
        case client.TritonUnreachable():
            return ServingError("triton_unavailable", f"no Triton answers at {exc.address}")
        case client.ModelUnavailable():
            return ModelNotReady(exc.model, exc.ready, loading=exc.state == "LOADING")
        case client.NoAnswerInTime():
            return ServingError("triton_too_slow", str(exc))
        case client.NobodyWaits():
            return ServingError("client_left", str(exc))
        case client.ModelBusy():
            return ServingError("triton_busy", str(exc))
        case client.TritonError() | BadModel() | BadAnswer():
            return ServingError("inference_failed", str(exc))
        case RequestEntityTooLarge():  # of a form without photos; uploads say more
            limit = (request.max_content_length or 0) // 1000
            return ServingError("upload_too_large", f"the request is larger than {limit:,} KB: send less")
        case HTTPException():
            code = re.sub(r"[^a-z]+", "_", exc.name.lower()).strip("_")
            return ServingError(code, exc.description or exc.name, status=exc.code or 500)
        case _:
            message = "something went wrong on our side; the log says what, under this request id"
            return ServingError("internal", message)


def for_visitor(exc: BaseException) -> ServingError:
    """Return the error that a visitor sees for `exc`, logged and counted."""
    error = as_serving_error(exc)
    if error.code == "internal" and error is not exc:
        current_app.logger.error("request %s failed unexpectedly", request_id(), exc_info=exc)
    metrics = current_app.extensions["metrics"]
    metrics.errors.labels(error.code).inc()
    if isinstance(error, Overloaded):
        metrics.refusals.labels(error.at).inc()
        current_app.extensions["refusals"].log(error)
    elif error.status >= 500:
        # The cause of a failed connection is of no use to a visitor.
        reason = f"{error}: {exc.__cause__}" if isinstance(exc.__cause__, OSError) else str(error)
        current_app.logger.warning(
            "request %s: %s %s: %s", request_id(), error.status, error.code, " ".join(reason.split())
        )
    return error


def as_dict(error: ServingError) -> dict[str, dict[str, str]]:
    return {
        "error": {
            "code": error.code,
            "message": message_of(error.code, str(error)),
            "request_id": request_id(),
        }
    }


def init_app(app: Flask, _: Settings) -> None:
    app.extensions["refusals"] = _Refusals()
    app.register_error_handler(Exception, answer_error)


def answer_error(exc: Exception) -> Response:
    error = for_visitor(exc)
    g.error_code = error.code
    title = t(f"error.{error.status}" if f"error.{error.status}" in TEXTS else "error.other")
    # An error of the Open Inference Protocol is a message alone.
    body = {"error": str(error)} if request.path.startswith(PROTOCOL) else as_dict(error)
    response = render("error.html", lambda: body, error.status, error=error, title=title)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="GourmetGram API"'
    if isinstance(exc, HTTPException):
        own = ("Content-Type", "Content-Length")
        response.headers.update({name: value for name, value in exc.get_headers() if name not in own})
    return response
