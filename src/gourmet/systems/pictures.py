"""From the bytes of a picture to a small square of pixels, safely and cheaply.

Every system that looks at photos uses this module through its contract. It trusts nothing about
the bytes: the format is taken from the content, the number of pixels is checked from the header
before anything is decoded, and whatever a decoder throws becomes one error that says what is wrong.

    PictureError            .code, one of
      empty                   no bytes at all
      not_a_picture           no allowed format starts like this
      unsupported_format      a picture or document of a format that is not allowed
      mixed_file              a picture that is a document or an archive too
      animated                a moving picture (GIF excepted: its first frame counts)
      too_many_pixels         more pixels than we are willing to decode
      broken_picture          begins like a picture but cannot be decoded
"""

from __future__ import annotations

import base64
import binascii
import io
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")

# Only JPEG can be decoded at a fraction of its size, so only JPEG may be as large as the pictures
# of today's 48-megapixel phones; anything else is held in memory whole, up to four bytes a pixel.
MAX_PIXELS_JPEG: Final = 50_000_000
MAX_PIXELS: Final = 25_000_000

# What other readers look for, where they look for it: browsers sniff the first 1,445 bytes, PDF
# readers the first 1,024, archive readers the last 65,557.
_HEAD_BYTES: Final = 4096
_TAIL_BYTES: Final = 65_557
_MARKUP: Final = (b"<script", b"<html", b"<!doctype", b"<svg", b"<?php", b"%pdf-")
_ARCHIVE_ENDS: Final = (b"PK\x05\x06",)

_KNOWN_BUT_REFUSED: Final = (
    (b"%PDF-", "a PDF document"),
    (b"<svg", "an SVG drawing"),
    (b"<?xml", "an XML document"),
    (b"<!doctype", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"8BPS", "a Photoshop file"),
    (b"\x00\x00\x01\x00", "an icon"),
    (b"\xff\x0a", "a JPEG XL picture"),
    (b"\x00\x00\x00\x0cJXL ", "a JPEG XL picture"),
    (b"\x00\x00\x00\x0cjP  ", "a JPEG 2000 picture"),
)
_HEIC_BRANDS: Final = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")

_EXIF_ORIENTATION: Final = 0x0112

Pixels = npt.NDArray[np.uint8]


class PictureError(ValueError):
    """A picture that cannot be used; `code` says which kind of fault, the message says it in words."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class PictureInfo:
    """What the header says, before anything is decoded."""

    format: str
    width: int
    height: int


def identify(data: bytes) -> PictureInfo:
    """Read the header of `data`; raise PictureError unless it may be decoded."""
    with _open(data) as image:
        return PictureInfo(_format(image), image.width, image.height)


def square_pixels(data: bytes, size: int) -> Pixels:
    """Decode `data` and return its central square as uint8 [size, size, 3].

    Cropping and shrinking come first and everything else after, so that turning the picture
    upright, flattening its transparency and changing its colours cost what a small square costs.
    """
    with _open(data) as image:
        image.draft(None, (size, size))
        try:
            image.load()
            small = _shrink(image, size)
        except Exception as exc:  # decoders of hostile bytes raise anything, struct.error to MemoryError
            raise PictureError("broken_picture", f"the {_format(image)} cannot be decoded: {exc}") from exc
        small = _upright(small, image)
    return np.asarray(_flat_rgb(small))


def from_base64(blob: bytes) -> bytes:
    """Return the picture in `blob`, which is the picture itself or base64 text of it.

    No allowed format begins with four characters of base64's alphabet followed only by more of
    them, so text that decodes is text that was meant to be decoded.
    """
    if blob[:1] in (b"\xff", b"\x89", b"\x00"):  # JPEG, PNG and AVIF: the common case at no cost
        return blob
    text = blob
    if text.startswith(b"data:"):
        text = text.partition(b",")[2]
    try:
        return base64.b64decode(b"".join(text.split()), validate=True) or blob
    except (binascii.Error, ValueError):
        return blob


def _open(data: bytes) -> Image.Image:
    if not data:
        raise PictureError("empty", "the file is empty: choose a photo")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        raise PictureError("too_many_pixels", f"too many pixels: {exc}") from exc
    except Exception as exc:  # the header parsers of hostile bytes raise anything
        raise _not_a_picture(data) from exc
    try:
        _check(image, data)
    except BaseException:
        image.close()
        raise
    return image


def _check(image: Image.Image, data: bytes) -> None:
    limit = MAX_PIXELS_JPEG if _format(image) == "JPEG" else MAX_PIXELS
    pixels = image.width * image.height
    if pixels > limit:
        raise PictureError(
            "too_many_pixels",
            f"{image.width}×{image.height} is {pixels / 1e6:.0f} million pixels; "
            f"at most {limit / 1e6:.0f} million are allowed for {_format(image)}: shrink the photo",
        )
    if _format(image) in ("PNG", "WEBP", "AVIF") and getattr(image, "is_animated", False):
        raise PictureError("animated", f"an animated {image.format} is not a photo: send a single picture")
    head = data[:_HEAD_BYTES].lower()
    if any(mark in head for mark in _MARKUP) or any(end in data[-_TAIL_BYTES:] for end in _ARCHIVE_ENDS):
        raise PictureError(
            "mixed_file",
            f"this {_format(image)} is a document or an archive as well: save it again as a plain picture",
        )


def _format(image: Image.Image) -> str:
    # An MPO is a JPEG with further JPEGs behind it, as phones write them for depth and live photos.
    return "JPEG" if image.format == "MPO" else str(image.format)


def _not_a_picture(data: bytes) -> PictureError:
    allowed = ", ".join(FORMATS)
    if data[4:8] == b"ftyp" and data[8:12] in _HEIC_BRANDS:
        return PictureError("unsupported_format", f"HEIC is not read here: save it as JPEG ({allowed})")
    start = data[:256].lstrip(b"\xef\xbb\xbf \t\r\n")
    for mark, name in _KNOWN_BUT_REFUSED:
        if start[: len(mark)].lower() == mark.lower():
            return PictureError("unsupported_format", f"this is {name}; allowed are {allowed}")
    return PictureError("not_a_picture", f"this is not a picture of a format that is read here ({allowed})")


def _shrink(image: Image.Image, size: int) -> Image.Image:
    """The central square, `size` pixels wide, in a mode that can still be made RGB faithfully."""
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA" if "transparency" in image.info or image.mode == "PA" else "RGB")
    elif image.mode == "1":
        image = image.convert("L")
    elif image.mode.startswith("I") or image.mode == "F":
        image = _eight_bits(image)
    elif image.mode == "RGB" and "transparency" in image.info:
        image = image.convert("RGBA")
    side = min(image.width, image.height)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return image.resize(
        (size, size),
        Image.Resampling.BILINEAR,
        box=(left, top, left + side, top + side),
        reducing_gap=2.0,
    )


def _eight_bits(image: Image.Image) -> Image.Image:
    """Sixteen-bit and floating-point greys as eight bits, by range and not by clipping."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float32), posinf=0.0, neginf=0.0)
    top = float(values.max(initial=0.0))
    if image.mode.startswith("I;16") or top > 255.0:
        scale = 255.0 / 65535.0
    else:
        scale = 255.0 if image.mode == "F" and top <= 1.0 else 1.0
    return Image.fromarray(np.clip(values * scale, 0, 255).astype(np.uint8))


def _upright(small: Image.Image, original: Image.Image) -> Image.Image:
    try:
        orientation = original.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # a photo with unreadable metadata is still a photo
        return small
    if orientation not in range(2, 9):
        return small
    small.getexif()[_EXIF_ORIENTATION] = orientation
    return ImageOps.exif_transpose(small)


def _flat_rgb(image: Image.Image) -> Image.Image:
    """RGB, with what is transparent shown on white."""
    if image.mode in ("RGBA", "LA", "RGBa", "La"):
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")
