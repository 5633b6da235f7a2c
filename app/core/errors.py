"""The errors that clients see, each with its HTTP status and its code.

Each error is answered as JSON, `{"error": {"code", "message", "request_id"}}`, or as HTML, as the client
prefers. Flask's own 404, 405 and 500 are answered in the same way. A 429 or 503 says when to try again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final

from flask import Flask, Response, current_app, g
from werkzeug.exceptions import HTTPException

from app.core.http import render, request_id
from app.core.messages import TEXTS
from app.core.settings import Settings
from gourmet.pictures.errors import DecodersBusy, PictureError

RETRY_AFTER_S: Final = 2
# The message of a served model that could not decode: `INPUT_IMAGE row 0 of 1: <reason> [<code>]`.
_DECODING_FAILED: Final = re.compile(
    r"row \d{1,9} of \d{1,9}: (?P<reason>.{1,200}) \[(?P<code>\w{1,30})\]", re.S
)


class ServingError(Exception):
    """An error whose message tells the visitor what is wrong and what to do."""

    status = 500
    code = "internal"
    retry_after_s: int | None = None

    def __init__(
        self, message: str, *, status: int = 0, code: str = "", retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code = status or self.status, code or self.code
        self.retry_after_s = retry_after_s or self.retry_after_s


class RefusedRequest(ServingError):
    """The model refused the request; the code tells the reason."""

    STATUSES: ClassVar[dict[str, int]] = {
        "no_file": 400,
        "wrong_host": 400,
        "cross_site": 403,
        "key_needed": 401,
        "too_many_photos": 413,
        "too_many_sentences": 413,
        "upload_too_large": 413,
        "corrections_full": 507,
        "corrections_unavailable": 503,
    }

    def __init__(self, code: str, message: str) -> None:
        status = self.STATUSES[code]
        super().__init__(
            message, status=status, code=code, retry_after_s=RETRY_AFTER_S if status == 503 else None
        )


class BadPicture(RefusedRequest):
    """The upload cannot be used as a picture; the code is that of gourmet.pictures.errors."""

    STATUSES: ClassVar[dict[str, int]] = {
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


class BadRequest(ServingError):
    """The request cannot be read as what it claims to be."""

    status = 400
    code = "bad_request"


class BrokenBody(BadRequest):
    """The body's chunks are not valid, or the connection was lost."""


class UnknownModel(ServingError):
    status = 404
    code = "unknown_model"

    def __init__(self, model: str, served: Sequence[str]) -> None:
        super().__init__(f"model {model!r} is not available; ready models: {', '.join(served) or 'none'}")


class TooManyRequests(ServingError):
    """The client exceeded its rate limit."""

    status = 429
    code = "too_many_requests"


class Overloaded(ServingError):
    """The server has too much to do; `at` labels the cause in the count of refusals."""

    status = 503
    code = "overloaded"
    retry_after_s = RETRY_AFTER_S

    def __init__(self, at: str) -> None:
        super().__init__("the server is overloaded at the moment: try again in a few seconds")
        self.at = at


class InferenceFailed(ServingError):
    """Triton answered, with an error or nonsense."""

    status = 502
    code = "inference_failed"


class RefusedByModel(InferenceFailed):
    """The model refused the request: for its picture, or because its inputs have changed."""


def refused_picture(error: RefusedByModel) -> BadPicture | None:
    """Return the error that a decoding model reported about a picture, if it did."""
    match = _DECODING_FAILED.search(str(error))
    if match and match["code"] in BadPicture.STATUSES:
        return BadPicture(match["code"], match["reason"])
    return None


@contextmanager
def refusals_explained() -> Iterator[None]:
    """Turn the refusal of a model that decodes into the error of the picture or of the request."""
    try:
        yield
    except RefusedByModel as exc:
        raise refused_picture(exc) or BadRequest(str(exc)) from exc


class TritonUnavailable(ServingError):
    """No server answers at Triton's address."""

    status = 503
    code = "triton_unavailable"
    retry_after_s = RETRY_AFTER_S


class ModelNotReady(ServingError):
    """Triton answers, but the model is not loaded, or not yet."""

    status = 503
    code = "model_not_ready"
    retry_after_s = RETRY_AFTER_S

    def __init__(self, model: str, served: Sequence[str], *, loading: bool = False) -> None:
        self.loading = loading
        why = "is still loading" if loading else "does not serve"
        super().__init__(
            f"Triton {why} the model {model!r} at the moment; served are: {', '.join(served) or 'none'}"
        )


class TritonBusy(ServingError):
    """The model's queue is full."""

    status = 503
    code = "triton_busy"
    retry_after_s = RETRY_AFTER_S


class TritonTooSlow(ServingError):
    """Triton did not answer before the deadline."""

    status = 504
    code = "triton_too_slow"


class VisitorLeft(ServingError):
    """The client has disconnected; nginx introduced this status."""

    status = 499
    code = "client_left"


def as_dict(error: ServingError) -> dict[str, dict[str, str]]:
    return {"error": {"code": error.code, "message": str(error), "request_id": request_id()}}


def for_visitor(exc: BaseException) -> ServingError:
    """Return the error that a visitor sees for `exc`; details of an unexpected one are only logged."""
    if isinstance(exc, ServingError):
        error = exc
    elif isinstance(exc, PictureError):
        error = BadPicture(exc.code, str(exc))
    elif isinstance(exc, DecodersBusy):
        error = Overloaded("decoders")
    elif isinstance(exc, HTTPException):
        code = re.sub(r"[^a-z]+", "_", exc.name.lower()).strip("_")
        error = ServingError(exc.description or exc.name, status=exc.code or 500, code=code)
    else:
        current_app.logger.error("request %s failed unexpectedly", request_id(), exc_info=exc)
        error = ServingError("something went wrong on our side; the log says what, under this request id")
    if error.status >= 500:
        # The cause of a failed connection is of no use to a visitor.
        reason = f"{error}: {exc.__cause__}" if isinstance(exc.__cause__, OSError) else str(error)
        current_app.logger.warning(
            "request %s: %s %s: %s", request_id(), error.status, error.code, " ".join(reason.split())
        )
    metrics = current_app.extensions["metrics"]
    metrics.errors.labels(error.code).inc()
    if isinstance(error, Overloaded):
        metrics.refusals.labels(error.at).inc()
    return error


def init_app(app: Flask, _: Settings) -> None:
    app.register_error_handler(Exception, _answer)


def _answer(exc: Exception) -> Response:
    error = for_visitor(exc)
    g.error_code = error.code
    title = TEXTS.get(f"error.{error.status}", TEXTS["error.other"])
    made = render("error.html", lambda: as_dict(error), error.status, error=error, title=title)
    if error.retry_after_s is not None:
        made.headers["Retry-After"] = str(error.retry_after_s)
    if error.status == 401:
        made.headers["WWW-Authenticate"] = 'Bearer realm="GourmetGram API"'
    if isinstance(exc, HTTPException):
        own = ("Content-Type", "Content-Length")
        made.headers.update({name: value for name, value in exc.get_headers() if name not in own})
    return made
