"""The photos of one call of the API, whichever of its three ways they came by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from flask import Request
from pydantic import ValidationError
from werkzeug.exceptions import UnsupportedMediaType

from app.admission.uploads import (
    FIELD,
    MAX_OTHER_PARTS,
    WRAPPING_BYTES,
    observe_photo,
    photo_too_large,
    receiving,
)
from app.api.schemas import Base64Photos, Schema
from app.core.errors import BadPicture, BadRequest, NoFile, ServingError, TooManyPhotos, UploadTooLarge
from app.core.settings import Settings
from gourmet.pictures.decode import from_base64

MULTIPART = "multipart/form-data"
JSON = "application/json"
RAW = "application/octet-stream"
S = TypeVar("S", bound=Schema)


@dataclass(frozen=True)
class Photo:
    """A photo as it came; `fault` is why it will not even be looked at."""

    data: bytes
    filename: str | None = None
    fault: ServingError | None = None


def photos_and_model(request: Request, settings: Settings) -> tuple[list[Photo], str]:
    """Read the whole request; raise what makes it useless as a whole."""
    request.max_content_length = settings.max_call_bytes + WRAPPING_BYTES
    request.max_form_parts = settings.max_photos + MAX_OTHER_PARTS
    most = f"send at most {settings.max_photos} photos and {settings.max_call_mb:g} MB"
    with receiving(request, settings, UploadTooLarge(f"the call is too large: {most}")):
        photos, model = _read(request)
    if not photos:
        raise NoFile(f"no photo found: send it as the field `{FIELD}` of a multipart form")
    if len(photos) > settings.max_photos:
        raise TooManyPhotos(
            f"{len(photos)} photos are too many for one call: send at most {settings.max_photos}"
        )
    return [_checked(photo, settings) for photo in photos], request.args.get("model") or model


def _read(request: Request) -> tuple[list[Photo], str]:
    kind = request.mimetype
    if kind == MULTIPART:
        files = request.files.getlist(FIELD)
        photos = [Photo(file.stream.read(), file.filename or None) for file in files]
        # What a browser sends for a form in which nothing was chosen.
        chosen = [photo for photo in photos if photo.data or photo.filename]
        return chosen, request.form.get("model", "")
    if kind == JSON:
        asked = from_json(Base64Photos, request.get_data(cache=False), '{"images": ["<base64>", …]}')
        return [_from_text(text) for text in asked.images], asked.model or ""
    if kind == RAW or kind.startswith("image/"):
        data = request.get_data(cache=False)
        return [Photo(data)] if data else [], ""
    raise UnsupportedMediaType(
        f"a body of type {kind or 'none'!r} is not read here: send {MULTIPART} with the field `{FIELD}`, "
        f"one photo as image/* or {RAW}, or {JSON} with base64 texts in `images`"
    )


def from_json(shape: type[S], body: bytes, expected: str) -> S:
    """What came as JSON; raise BadRequest with the first thing that is wrong, and where."""
    try:
        return shape.model_validate_json(body)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        raise BadRequest(f"{place}: {first['msg']}; expected is {expected}") from None


def _from_text(text: str) -> Photo:
    encoded = text.encode()
    data = from_base64(encoded)
    if encoded and data is encoded:
        fault = BadPicture("not_a_picture", "this is not valid base64: encode the photo's bytes")
        return Photo(b"", fault=fault)
    return Photo(data)


def _checked(photo: Photo, settings: Settings) -> Photo:
    observe_photo(photo.data)
    if len(photo.data) > settings.max_upload_bytes:
        return Photo(b"", photo.filename, photo_too_large(settings))
    return photo
