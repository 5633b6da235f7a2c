"""Read an API call: its photos, as a form, raw bytes or JSON, or its texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from flask import current_app, request
from pydantic import ValidationError
from werkzeug.exceptions import UnsupportedMediaType

from app.admission.uploads import (
    FIELD,
    MAX_OTHER_PARTS,
    OTHER_FIELD,
    WRAPPING_BYTES,
    photo_too_large,
    receiving,
)
from app.api.schemas import Base64Photos, Schema
from app.core.errors import BadPicture, BadRequest, RefusedRequest, ServingError
from app.core.http import JSON
from app.core.settings import Settings
from gourmet.pictures.decode import from_base64

MULTIPART = "multipart/form-data"
RAW = "application/octet-stream"
# A photo as a data: URL has one comma, and one separates two photos. The rest lets a refusal count a few
# photos too many.
_COMMAS_A_PHOTO: Final = 64
_MOST_OF_A_NAME: Final = 100
S = TypeVar("S", bound=Schema)
InJson = TypeVar("InJson", bound=Base64Photos)


@dataclass(frozen=True)
class UploadedPhoto:
    """A photo as it was sent; `fault` is the error if it is refused before decoding."""

    data: bytes
    filename: str | None = None
    fault: ServingError | None = None


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
        raise RefusedRequest("no_file", f"no photo found: send it as the field `{FIELD}` of a multipart form")
    if len(photos) > settings.max_photos:
        raise RefusedRequest(
            "too_many_photos",
            f"{len(photos)} photos are too many for one call: send at most {settings.max_photos}",
        )
    return [checked(photo, settings) for photo in photos], chosen_model(model, version), fields


def chosen_model(model: str, version: str | None = "") -> str:
    """Return NAME or NAME/VERSION; the query string overrides the body."""
    model = request.args.get("model") or model
    version = request.args.get("version") or version
    return f"{model}/{version}" if version else model


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
            raise RefusedRequest("too_many_photos", f"too many photos in one request: {limits}")
        return body
    if kind == RAW or kind.startswith("image/"):
        data = request.get_data(cache=False)
        return [UploadedPhoto(data)] if data else [], "", ""
    raise UnsupportedMediaType(
        f"a body of type {kind or 'none'!r} is not read here: send {MULTIPART} with the field `{FIELD}`, "
        f"one photo as image/* or {RAW}, or {JSON} with base64 texts in `images`"
    )


def from_json(shape: type[S], body: bytes, expected: str) -> S:
    """Read a JSON body; raise BadRequest with the first error and its location."""
    try:
        return shape.model_validate_json(body, strict=True)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, first["loc"]))[:_MOST_OF_A_NAME] or "the body"
        # pydantic puts the kind of exception before the message of our own validators.
        message = first["msg"].removeprefix("Value error, ")
        raise BadRequest(f"{location}: {message}; expected is {expected}") from None


def text_body(settings: Settings, max_bytes: int) -> bytes:
    """Read the body of a request that sends texts as JSON."""
    if request.mimetype != JSON:
        raise UnsupportedMediaType(
            f"a body of type {request.mimetype or 'none'!r} is not read here: send {JSON}"
        )
    request.max_content_length = max_bytes
    with receiving(f"the text is too long: send at most {max_bytes // 1000} KB of JSON"):
        return request.get_data(cache=False)


def photo_of_base64(text: str) -> UploadedPhoto:
    encoded = text.encode()
    data = from_base64(encoded)
    if encoded and data is encoded:
        fault = BadPicture("not_a_picture", "this is not valid base64: encode the photo's bytes")
        return UploadedPhoto(b"", fault=fault)
    return UploadedPhoto(data)


def checked(photo: UploadedPhoto, settings: Settings) -> UploadedPhoto:
    current_app.extensions["metrics"].photo_bytes.observe(len(photo.data))
    if len(photo.data) > settings.max_upload_bytes:
        return UploadedPhoto(
            b"", photo.filename, RefusedRequest("upload_too_large", photo_too_large(settings))
        )
    return photo
