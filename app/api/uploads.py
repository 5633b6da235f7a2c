"""Read the bodies of requests and the models that they name, and refuse what is too large.

A view reads the body into memory, once its request is admitted. It is limited in size and never written to
disk. The proxy in front limits how long a client may take to send (proxy/nginx.conf).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from flask import Flask, Response, current_app, g, request
from gunicorn.http.errors import ParseException
from pydantic import ValidationError
from werkzeug.exceptions import RequestEntityTooLarge, UnsupportedMediaType

from app.api.schemas import Base64Photos, Schema
from app.web.admission import deadline_of_request
from app.web.errors import BadRequest, ServingError
from app.web.http import JSON, options_of_route
from app.web.settings import Settings
from gourmet.pictures.decode import from_base64
from gourmet.pictures.errors import PictureError

# The limit for the rest of a multipart body: boundaries, headers, a few other fields.
WRAPPING_BYTES: Final = 65_536
MAX_OTHER_PARTS: Final = 16
# A client that is still sending does not read the answer. So the app first reads and discards this much, for
# this long; a client that sends more or for longer may find the connection closed.
_DRAINED_BYTES: Final = 50_000_000
_DRAINED_S: Final = 2.0
# Raised while reading a body with invalid chunks or a lost connection.
_BROKEN: Final = (ParseException, OSError)
FIELD: Final = "file"
OTHER_FIELD: Final = "image"  # accepted too
MULTIPART: Final = "multipart/form-data"
RAW: Final = "application/octet-stream"
# A photo as a data: URL has one comma, and one separates two photos. The rest lets a refusal count a few
# photos too many.
_COMMAS_A_PHOTO: Final = 64
_MAX_LOCATION: Final = 100
S = TypeVar("S", bound=Schema)
InJson = TypeVar("InJson", bound=Base64Photos)


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


@dataclass(frozen=True)
class UploadedPhoto:
    """A photo as it was sent; `fault` is the error if it is refused before decoding."""

    data: bytes
    filename: str | None = None
    fault: Exception | None = None

    def checked(self, settings: Settings) -> UploadedPhoto:
        """Return the photo, or its refusal if it is too large; count its bytes."""
        current_app.extensions["metrics"].photo_bytes.observe(len(self.data))
        if len(self.data) <= settings.max_upload_bytes:
            return self
        too_large = ServingError("upload_too_large", _too_large(settings))
        return UploadedPhoto(b"", self.filename, too_large)

    def content(self) -> bytes:
        """Return the photo's bytes, or raise its error."""
        if self.fault:
            raise self.fault
        return self.data


def _too_large(settings: Settings) -> str:
    return f"the photo is larger than {settings.max_upload_mb:g} MB: send a smaller one, or save it as JPEG"


def form_photo(settings: Settings) -> bytes:
    """Return the photo in the form field `file`."""
    with receiving(_too_large(settings)):
        upload = request.files.get(FIELD) or request.files.get(OTHER_FIELD)
        in_form = FIELD in request.form
    if upload is None:
        raise ServingError(
            "no_file",
            f"the form's field `{FIELD}` holds text and not a photo: with curl, write -F {FIELD}=@photo.jpg"
            if in_form
            else f"no photo found: send it as the field `{FIELD}` of a multipart form",
        )
    data = upload.stream.read()
    if not data and not upload.filename:
        raise ServingError("no_file", "no photo was chosen: choose one and send it again")
    return UploadedPhoto(data).checked(settings).content()


def only_photo(photos: list[UploadedPhoto], rule: str) -> bytes:
    """Return the photo of a call that takes one, as the `rule` says."""
    if len(photos) != 1:
        raise BadRequest(f"{rule}, and these are {len(photos)}")
    return photos[0].content()


def photos_and_model(settings: Settings) -> tuple[list[UploadedPhoto], str]:
    """Read the photos and the model's name; raise an error that concerns the whole request."""
    photos, model, _ = photos_and_more(settings, Base64Photos)
    return photos, model


def photos_and_more(
    settings: Settings, shape: type[InJson]
) -> tuple[list[UploadedPhoto], str, InJson | None]:
    """Read photos and the other fields of a JSON body of this shape."""
    request.max_content_length = settings.max_call_bytes + WRAPPING_BYTES
    request.max_form_parts = settings.max_photos + MAX_OTHER_PARTS
    limits = f"send at most {settings.max_photos} photos and {settings.max_call_mb:g} MB"
    with receiving(f"the call is too large: {limits}"):
        received = _receive(settings)
    fields = None
    if isinstance(received, bytes):
        fields = from_json(shape, received, '{"images": ["<base64>", …]}')
        received = [photo_of_base64(text) for text in fields.images], fields.model or "", fields.version
    photos, model, version = received
    if not photos:
        raise ServingError("no_file", f"no photo found: send it as the field `{FIELD}` of a multipart form")
    if len(photos) > settings.max_photos:
        raise ServingError(
            "too_many_photos",
            f"{len(photos)} photos are too many for one call: send at most {settings.max_photos}",
        )
    return [photo.checked(settings) for photo in photos], chosen_model(model, version), fields


def _receive(settings: Settings) -> bytes | tuple[list[UploadedPhoto], str, str | None]:
    """Return the photos, the model's name and its version, or the unparsed JSON body."""
    kind = request.mimetype
    if kind == MULTIPART:
        files = [*request.files.getlist(FIELD), *request.files.getlist(OTHER_FIELD)]
        photos = [UploadedPhoto(file.stream.read(), file.filename or None) for file in files]
        # A browser sends an empty part if no file was chosen.
        chosen = [photo for photo in photos if photo.data or photo.filename]
        return chosen, request.form.get("model", ""), request.form.get("version", "")
    if kind == JSON:
        body = request.get_data(cache=False)
        # A parser makes an object of each value before it counts them: 16 MB of `"a",` took 1.5 s and 290 MB.
        if body.count(b",") > _COMMAS_A_PHOTO * settings.max_photos:
            limits = f"send at most {settings.max_photos} photos"
            raise ServingError("too_many_photos", f"too many photos in one request: {limits}")
        return body
    if kind == RAW or kind.startswith("image/"):
        data = request.get_data(cache=False)
        return [UploadedPhoto(data)] if data else [], "", ""
    raise UnsupportedMediaType(
        f"a body of type {kind or 'none'!r} is not read here: send {MULTIPART} with the field `{FIELD}`, "
        f"one photo as image/* or {RAW}, or {JSON} with base64 texts in `images`"
    )


def photo_of_base64(text: str) -> UploadedPhoto:
    encoded = text.encode()
    data = from_base64(encoded)
    if encoded and data is encoded:
        message = "this is not valid base64: encode the photo's bytes"
        return UploadedPhoto(b"", fault=PictureError("not_a_picture", message))
    return UploadedPhoto(data)
