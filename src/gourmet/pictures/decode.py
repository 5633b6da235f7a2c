"""From the bytes of a picture to a few pixels, safely and cheaply.

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
      too_complex             few pixels, made so that decoding them takes minutes or gigabytes
      broken_picture          begins like a picture but cannot be decoded
      blank                   a picture of one colour where something should be drawn
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import ctypes
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from gourmet.pictures.decode_limits import excess, header_excess, jpeg_scans

FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")

# Only JPEG can be decoded at a fraction of its size, so only JPEG may be as large as the pictures
# of today's 48-megapixel phones; anything else is held in memory whole, up to eight bytes a pixel, and
# sixteen where a library decodes into memory of its own. No picture may take more than 300 MB.
MAX_PIXELS_JPEG: Final = 50_000_000
MAX_PIXELS: Final = 25_000_000
MAX_PIXELS_COPIED: Final = 16_000_000
_LIMITS: Final = {"JPEG": MAX_PIXELS_JPEG, "WEBP": MAX_PIXELS_COPIED, "AVIF": MAX_PIXELS_COPIED}

# Pillow reads headers in Python, piece by piece, and what it does not know byte by byte: ten megabytes of it
# take seconds. A PNG's chunk is three or four pieces, and a photo of ten megabytes has some 1,300 chunks.
MAX_READS: Final = 60_000

# Larger pictures, which may take half a gigabyte each to decode, are decoded one after another, so
# that a process with many threads stays within its memory.
LARGE_PIXELS: Final = 4_000_000
_large = threading.Lock()

# What other readers look for, where they look for it: browsers sniff the first 1,445 bytes, PDF
# readers the first 1,024, archive readers the last 65,557; code hides in metadata or behind the end.
_HEAD_BYTES: Final = 4096
_END_BYTES: Final = 65_557
_HEAD_MARKS: Final = (b"<script", b"<html", b"<!doctype", b"<svg", b"%pdf-")
_END_MARKS: Final = (b"pk\x05\x06\x00\x00", b"<?php", b"rar!\x1a\x07", b"7z\xbc\xaf\x27\x1c")

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
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

Pixels = npt.NDArray[np.uint8]
Box = tuple[float, float, float, float]  # left, top, right, bottom
Size = tuple[int, int]  # width, height


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


class _Metered(io.BytesIO):
    """A file that is read in so many pieces at most, whatever a header says."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._left = MAX_READS

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            reason = f"it is read in more than {MAX_READS} pieces"
            raise PictureError("too_complex", f"this picture is not decoded, as {reason}: save it again")
        return super().read(size)


def identify(data: bytes) -> PictureInfo:
    """Read the header of `data`; raise PictureError unless it may be decoded."""
    with _open(data) as image:
        return PictureInfo(_format(image), image.width, image.height)


def square_pixels(data: bytes, size: int) -> Pixels:
    """Decode `data` and return its central square as uint8 [size, size, 3]."""

    def central_square(width: int, height: int) -> tuple[Box, Size]:
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        return (left, top, left + side, top + side), (size, size)

    return _decoded(data, central_square)


def whole_pixels(data: bytes, longest: int) -> Pixels:
    """Decode `data` whole as uint8 [height, width, 3], shrunk to at most `longest` pixels a side."""

    def everything(width: int, height: int) -> tuple[Box, Size]:
        scale = min(1.0, longest / max(width, height))
        return (0.0, 0.0, width, height), (max(1, round(width * scale)), max(1, round(height * scale)))

    return _decoded(data, everything)


def _decoded(data: bytes, frame: Callable[[int, int], tuple[Box, Size]]) -> Pixels:
    """Decode what `frame` shows of a picture so large, at the size that it wants.

    Cropping and shrinking come first and everything else after, so that turning the picture
    upright, flattening its transparency and changing its colours cost what the small one costs.
    """
    with _open(data) as image:
        turn = _turn(image, data)
        with turn, _explained(f"this {_format(image)} cannot be decoded"):
            image.draft(None, frame(*image.size)[1])
            image.load()
            small = _flat_rgb(_upright(_shrink(image, *frame(*image.size)), image))
    del image
    if turn is _large:
        # Otherwise a process that keeps what it frees, as the Python model does for torch, keeps the memory
        # of the largest picture that it ever decoded.
        with contextlib.suppress(OSError, AttributeError):  # where there is another C library
            ctypes.CDLL(None).malloc_trim(0)
    return np.asarray(small)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Decoders of hostile bytes raise anything, struct.error to MemoryError."""
    try:
        yield
    except PictureError:
        raise
    except Exception as exc:
        raise PictureError("broken_picture", f"{what}: {exc}") from exc


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
    if reason := header_excess(data):
        raise PictureError("too_complex", f"this picture is not decoded, as {reason}: save it again")
    try:
        image = Image.open(_Metered(data), formats=FORMATS)
    except PictureError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        raise PictureError("too_many_pixels", f"too many pixels: {exc}") from exc
    except Exception as exc:  # the header parsers of hostile bytes raise anything
        raise _not_a_picture(data) from exc
    with _explained(f"this {_format(image)} cannot be read"):
        _check(image, data)
    return image


def _check(image: Image.Image, data: bytes) -> None:
    kind = _format(image)
    limit = _LIMITS.get(kind, MAX_PIXELS)
    pixels = image.width * image.height
    if pixels > limit:
        raise PictureError(
            "too_many_pixels",
            f"{image.width}×{image.height} is {pixels / 1e6:.0f} million pixels; "
            f"at most {limit / 1e6:.0f} million are allowed for {kind}: shrink the photo",
        )
    if kind in ("PNG", "WEBP", "AVIF") and getattr(image, "is_animated", False):
        raise PictureError("animated", f"an animated {kind} is not a photo: send a single picture")
    if image.mode in ("I", "F"):  # whose white is anybody's guess
        raise PictureError("unsupported_format", f"this {kind} has 32 bits a pixel: save it with 8 or 16")
    if _has_marks(data):
        raise PictureError(
            "mixed_file",
            f"this {kind} is a document, a program or an archive as well: save it again as a plain picture",
        )
    if reason := excess(image, data):
        raise PictureError("too_complex", f"this {kind} is not decoded, as {reason}: save it again")


def _has_marks(data: bytes) -> bool:
    """Whether other readers would find a beginning or an end of theirs in `data`."""
    whole = len(data) <= 2 * _END_BYTES
    looked_at = (data if whole else data[:_END_BYTES] + b"\n" + data[-_END_BYTES:]).lower()
    head = looked_at[:_HEAD_BYTES]
    return any(mark in head for mark in _HEAD_MARKS) or any(mark in looked_at for mark in _END_MARKS)


def _turn(image: Image.Image, data: bytes) -> AbstractContextManager[object]:
    """Held while `image` is decoded: the lock of large pictures, or nothing."""
    if image.format == "AVIF":  # its header may say less than its frame has, up to 268 million pixels
        return _large
    if image.width * image.height <= LARGE_PIXELS:
        return contextlib.nullcontext()
    shrinks_as_it_decodes = _format(image) == "JPEG" and jpeg_scans(data) == 1
    return contextlib.nullcontext() if shrinks_as_it_decodes else _large


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
    for kind in FORMATS:
        _, begins_like = Image.OPEN[kind]  # Pillow's own look at the first bytes
        if begins_like and begins_like(data[:16]):
            message = f"this begins like a {kind} but cannot be read: it is damaged"
            return PictureError("broken_picture", message)
    return PictureError("not_a_picture", f"this is not a picture of a format that is read here ({allowed})")


def _shrink(image: Image.Image, box: Box, size: Size) -> Image.Image:
    """What lies in `box`, brought to `size`, in a mode that can still be made RGB faithfully."""
    deep = image.mode.startswith("I;16")
    if image.mode == "PA" or (image.mode in ("1", "L", "P", "RGB") and "transparency" in image.info):
        image = image.convert("RGBA")
    elif image.mode in ("1", "P"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    elif deep:
        image = image.convert("I")
    small = image.resize(size, Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
    return Image.fromarray((np.asarray(small) / 257.0).round().astype(np.uint8)) if deep else small


def _upright(small: Image.Image, original: Image.Image) -> Image.Image:
    """`small` as its photographer held it; photos with unreadable metadata are left as they are."""
    try:
        turn = _UPRIGHT.get(original.getexif().get(_EXIF_ORIENTATION, 1))
    except Exception:
        turn = None
    return small if turn is None else small.transpose(turn)


def _flat_rgb(image: Image.Image) -> Image.Image:
    """RGB, with what is transparent shown on white."""
    if image.mode in ("RGBA", "LA", "RGBa", "La"):
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")
