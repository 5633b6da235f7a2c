"""Decode the bytes of a picture into a few pixels, safely and cheaply.

All systems that take photos use this module through their contracts. The bytes are not trusted: the content
tells the format, the header's number of pixels is checked before decoding, and each error of a decoder
becomes a PictureError. A picture that is not known to be harmless is decoded in a sandboxed process
(`decoders`), which runs this module: python -m gourmet.pictures.decode LIMITS (`sandbox`).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import importlib
import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from gourmet.pictures import decoders, header, sandbox
from gourmet.pictures.errors import DecodersBusy as DecodersBusy
from gourmet.pictures.errors import PictureError as PictureError
from gourmet.pictures.errors import too_complex
from gourmet.pictures.header import FORMATS, Header
from gourmet.pictures.sandbox import Facts, Refused
from gourmet.served import malloc

# Only JPEG can be decoded at a fraction of its size, so only JPEG may be as large as photos of 50-megapixel
# phones (8192×6144). Other formats need memory for all pixels: up to 8 bytes a pixel, and 16 if a library
# decodes into its own memory. No picture may take more than 300 MB.
MAX_PIXELS_JPEG: Final = 64_000_000
MAX_PIXELS: Final = 25_000_000
MAX_PIXELS_COPIED: Final = 16_000_000
_LIMITS: Final = {"JPEG": MAX_PIXELS_JPEG, "WEBP": MAX_PIXELS_COPIED, "AVIF": MAX_PIXELS_COPIED}

# All coefficients of a JPEG with several scans are in memory, two bytes each.
MAX_COEFFICIENTS: Final = 120_000_000

# Marks of other formats, where their readers look: browsers in the first 1,445 bytes, PDF readers in the
# first 1,024, archive readers in the last 65,557. Code hides in metadata or behind the end.
_HEAD_BYTES: Final = 4096
_END_BYTES: Final = 65_557
_HEAD_MARKS: Final = (b"<script", b"<html", b"<!doctype", b"<svg", b"%pdf-")
_END_MARKS: Final = (b"pk\x05\x06\x00\x00", b"<?php", b"rar!\x1a\x07", b"7z\xbc\xaf\x27\x1c")

_TIFF_ORIENTATION: Final = 0x0112
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


@dataclass(frozen=True)
class PictureInfo:
    """Facts from the header, before decoding."""

    format: str
    width: int
    height: int


def identify(picture: bytes | Header) -> PictureInfo:
    """Read the header of a picture; raise PictureError unless the picture may be decoded."""
    head = picture if isinstance(picture, Header) else header.parse_header(picture)
    if head.is_harmless:
        return _identified(head)
    facts, _ = decoders.decoders.decode({"task": "identify"}, head.original)
    return PictureInfo(**facts)


def square_pixels(picture: bytes | Header, size: int) -> Pixels:
    """Decode a picture and return its central square as uint8 [size, size, 3]."""
    return framed_pixels(picture, Frame("square", size))


def whole_pixels(picture: bytes | Header, longest: int) -> Pixels:
    """Decode a whole picture as uint8 [height, width, 3], shrunk to at most `longest` pixels a side."""
    return framed_pixels(picture, Frame("whole", longest))


def squashed_pixels(picture: bytes | Header, size: int) -> Pixels:
    """Decode a whole picture as uint8 [size, size, 3], ignoring the ratio of its sides."""
    return framed_pixels(picture, Frame("squashed", size))


class Frame(NamedTuple):
    """Which part of a picture is decoded, and its size afterwards.

    With an `edge`, the shorter side becomes `edge` pixels long, and the central square of `size` is cut out.
    A `resample` filter of Pillow's is applied to all pixels; by default, large pictures are reduced cheaply.
    """

    task: Literal["square", "whole", "squashed"]
    size: int
    edge: int = 0
    resample: str = ""

    def box_and_size(self, width: int, height: int) -> tuple[Box, Size]:
        """Return the box of a picture that is decoded, and its size afterwards."""
        if not self.edge:
            return _FRAMES[self.task](width, height, self.size)
        scale = self.edge / min(width, height)
        wide, high = (max(self.edge, int(side * scale)) for side in (width, height))
        left, top = (wide - self.size) // 2, (high - self.size) // 2
        right, bottom = left + self.size, top + self.size
        box = (left * width / wide, top * height / high, right * width / wide, bottom * height / high)
        return box, (self.size, self.size)


def framed_pixels(picture: bytes | Header, frame: Frame) -> Pixels:
    """Decode the part of a picture that `frame` says, as uint8 [height, width, 3]."""
    head = picture if isinstance(picture, Header) else header.parse_header(picture)
    if head.is_harmless:
        return _decoded(head, frame)
    facts, body = decoders.decoders.decode(frame._asdict(), head.original)
    return np.frombuffer(bytearray(body), np.uint8).reshape(facts["height"], facts["width"], 3)


def _central_square(width: int, height: int, size: int) -> tuple[Box, Size]:
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return (left, top, left + side, top + side), (size, size)


def _everything(width: int, height: int, longest: int) -> tuple[Box, Size]:
    scale = min(1.0, longest / max(width, height))
    return (0.0, 0.0, width, height), (max(1, round(width * scale)), max(1, round(height * scale)))


def _squashed(width: int, height: int, size: int) -> tuple[Box, Size]:
    return (0.0, 0.0, width, height), (size, size)


_FRAMES: Final = {"square": _central_square, "whole": _everything, "squashed": _squashed}


def answer(facts: Facts, data: bytes) -> tuple[Facts, bytes]:
    """Answer a task of another process: with the header's facts, or with pixels, their height and width."""
    head = header.parse_header(data)
    if facts["task"] == "identify":
        return asdict(_identified(head)), b""
    pixels = _decoded(head, Frame(**facts))
    return {"height": pixels.shape[0], "width": pixels.shape[1]}, pixels.tobytes()


def _identified(head: Header) -> PictureInfo:
    with _open(head) as image:
        return PictureInfo(str(image.format), image.width, image.height)


def _decoded(head: Header, frame: Frame) -> Pixels:
    """Decode the box of a picture that `frame` says, at the size that it says.

    Cropping and shrinking come first, so that rotating, flattening transparency and converting colours work
    on the small picture.
    """
    with _open(head) as image, _as_picture_error(f"this {image.format} cannot be decoded"):
        if not frame.resample:
            image.draft(None, frame.box_and_size(*image.size)[1])
        image.load()
        shrunk = _shrink(image, *frame.box_and_size(*image.size), frame.resample)
        small = _flat_rgb(_upright(shrunk, _orientation(image, head)))
    return np.asarray(small)


@contextlib.contextmanager
def _as_picture_error(what: str) -> Iterator[None]:
    """Turn all errors into PictureError: decoders raise many types for hostile bytes."""
    try:
        yield
    except PictureError:
        raise
    except MemoryError as exc:
        raise too_complex("it takes more memory than any picture may") from exc
    except Exception as exc:
        raise PictureError("broken_picture", f"{what}: {exc}") from exc


def from_base64(blob: bytes) -> bytes:
    """Return the picture in `blob`, which is the picture itself or its base64 text.

    No file of an allowed format consists of base64 characters only, so a blob that decodes is base64.
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


def _open(head: Header) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(head.data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        raise PictureError("too_many_pixels", f"too many pixels: {exc}") from exc
    except Exception as exc:  # header parsers raise many types for hostile bytes
        raise header.not_a_picture(head.original) from exc
    with _as_picture_error(f"this {image.format} cannot be read"):
        _check(image, head)
    return image


def _check(image: Image.Image, head: Header) -> None:
    kind = str(image.format)
    limit = _LIMITS.get(kind, MAX_PIXELS)
    pixels = image.width * image.height
    if pixels > limit:
        raise PictureError(
            "too_many_pixels",
            f"{image.width}×{image.height} is {pixels:,} pixels; "
            f"at most {limit:,} are allowed for {kind}: shrink the photo",
        )
    if kind in ("PNG", "WEBP", "AVIF") and getattr(image, "is_animated", False):
        raise PictureError("animated", f"an animated {kind} is not a photo: send a single picture")
    if image.mode in ("I", "F"):  # the value of white is not known
        raise PictureError("unsupported_format", f"this {kind} has 32 bits a pixel: save it with 8 or 16")
    if _has_marks(head.original):
        raise PictureError(
            "mixed_file",
            f"this {kind} is also a document, a program or an archive: save it again as a plain picture",
        )
    coefficients = pixels * len(image.getbands())
    if head.scans > 1 and coefficients > MAX_COEFFICIENTS:
        raise too_complex(
            f"its {head.scans} scans need {coefficients / 1e6:.0f} million coefficients at once"
        )


def _has_marks(data: bytes) -> bool:
    """Return whether readers of other formats would find a mark of theirs in `data`."""
    is_short = len(data) <= 2 * _END_BYTES
    searched = (data if is_short else data[:_END_BYTES] + b"\n" + data[-_END_BYTES:]).lower()
    head = searched[:_HEAD_BYTES]
    return any(mark in head for mark in _HEAD_MARKS) or any(mark in searched for mark in _END_MARKS)


def _shrink(image: Image.Image, box: Box, size: Size, resample: str) -> Image.Image:
    """Return the box of the image at `size`, in a mode that converts to RGB without loss."""
    is_16_bit = image.mode.startswith("I;16")
    if image.mode == "PA" or (image.mode in ("1", "L", "P", "RGB") and "transparency" in image.info):
        image = image.convert("RGBA")
    elif image.mode in ("1", "P"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    elif is_16_bit:
        image = image.convert("I")
    kind = Image.Resampling[resample.upper() or "BILINEAR"]
    small = image.resize(size, kind, box=box, reducing_gap=None if resample else 2.0)
    return Image.fromarray((np.asarray(small) / 257.0).round().astype(np.uint8)) if is_16_bit else small


def _orientation(image: Image.Image, head: Header) -> object:
    """Return the orientation from the metadata; photos with unreadable metadata are not rotated."""
    if image.format == "TIFF":
        with contextlib.suppress(Exception):
            return image.tag_v2.get(_TIFF_ORIENTATION)  # type: ignore[attr-defined]
    exif = image.info.get("exif")
    return header.exif_orientation(exif) if isinstance(exif, bytes) else head.orientation


def _upright(small: Image.Image, orientation: object) -> Image.Image:
    """Rotate the image as its photographer held the camera."""
    method = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return small if method is None else small.transpose(method)


def _flat_rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB, with transparent parts on white."""
    if image.mode in ("RGBA", "LA", "RGBa", "La"):
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")  # `convert` always copies


def _reply(facts: Facts, data: bytes) -> tuple[Facts, bytes]:
    try:
        return answer(facts, data)
    except PictureError as exc:
        raise Refused(exc.code, str(exc)) from exc


def _run_sandboxed() -> None:
    malloc.use(malloc.WEB)
    Image.init()
    if "HEIF" in FORMATS:
        # Without thumbnails: one may show something else than its photo.
        plugin = importlib.import_module(header.HEIF_PLUGIN)
        plugin.register_heif_opener(decode_threads=1, thumbnails=False, depth_images=False, aux_images=False)
    sandbox.serve(_reply)


if __name__ == "__main__":
    _run_sandboxed()
