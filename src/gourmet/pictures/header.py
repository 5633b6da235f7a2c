"""What a picture's own bytes say of it, read before any decoder, and the picture without its metadata.

Pillow takes apart all metadata that a file has: it inflates texts and colour profiles, a megabyte for each
kilobyte, and walks Photoshop's resources in Python. One thing in it is of use, which way up the photo was
held, and that is read here. JPEGs and PNGs come to Pillow without the rest.

Files whose decoding is known to be cheap by what is read here are `is_harmless`: JPEGs of the ordinary coding
in few scans, PNGs and WebPs, all of so many pixels. The most expensive of ten megabytes that was found took
0.3 s, a WebP of noise; a JPEG at most 0.15 s.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from PIL import Image

from gourmet.pictures.errors import PictureError, too_complex

# Of iPhones' photos. Only the process that decodes them loads this, and some platforms have no wheel of it.
HEIF_PLUGIN: Final = "pillow_heif"
_READS_HEIF: Final = find_spec(HEIF_PLUGIN) is not None
# An AVIF may begin like a HEIF, and is tried before.
FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", *(("HEIF",) if _READS_HEIF else ()))
# What the names of such files end in.
SUFFIXES: Final = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif"}
)

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
_HEIF_BRANDS: Final = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")

# Ordinary files have below a hundred of these, and a colour profile of ten megabytes is 160 segments.
MAX_METADATA: Final = 2_000
# A PNG of ten megabytes has some 1,300.
MAX_CHUNKS: Final = 10_000

# A picture is held in memory whole unless it shrinks as it is decoded, which JPEGs of one scan do.
HARMLESS_PIXELS: Final = 4_000_000
# Each scan visits each pixel: a photo of 50 million pixels in one, or ten scans of 5 million.
HARMLESS_VISITS: Final = 50_000_000
# A block of 64 pixels takes two bits at least. Files with less claim pixels that they do not have.
HARMLESS_PIXELS_A_BYTE: Final = 256
# What is left of a JPEG's header without its metadata; ordinary ones have one kilobyte.
HARMLESS_HEADER_BYTES: Final = 16_384

_SOI, _EOI, _SOS, _TEM, _APP1 = 0xD8, 0xD9, 0xDA, 0x01, 0xE1
_ONE_SCAN_FRAMES: Final = (0xC0, 0xC1)
_HUFFMAN_FRAMES: Final = (*_ONE_SCAN_FRAMES, 0xC2)
_OTHER_FRAMES: Final = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}
# All that applications write but JFIF's and Adobe's, which say how colours are meant; and comments.
_JPEG_METADATA: Final = frozenset((*range(0xE1, 0xF0), 0xFE)) - {0xEE}
_MARKER: Final = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])", re.DOTALL)
_EXIF: Final = b"Exif\0\0"
_ORIENTATION: Final = 0x0112

_PNG: Final = b"\x89PNG\r\n\x1a\n"
# What a picture needs; and what tells that it moves, for which it is refused.
_PNG_PIXELS: Final = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"acTL")


@dataclass(frozen=True)
class Header:
    """`data` is the picture as a decoder gets it; `orientation` is Exif's, 1 where none is said."""

    original: bytes
    data: bytes
    is_harmless: bool = False
    orientation: int = 1
    scans: int = 1


def look(data: bytes) -> Header:
    """What no decoder is needed to see; raise PictureError where that is enough to refuse it."""
    if not data:
        raise PictureError("empty", "the file is empty: choose a photo")
    head = read(data)
    if not (head.is_harmless or any(_begins_like(kind, data) for kind in FORMATS)):
        raise not_a_picture(data)
    return head


def read(data: bytes) -> Header:
    """Raise PictureError where there is too much in front of the pixels, or a coding that is not read."""
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg(data)
    if data.startswith(_PNG):
        return _png(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Header(data, data, is_harmless=0 < _webp_pixels(data) <= HARMLESS_PIXELS)
    return Header(data, data)


def _header_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Marker, begin and end of each."""
    at = 2
    while found := _MARKER.search(data, at):
        marker, at = found[1][0], found.end()
        if marker not in (_SOI, _EOI, _TEM):
            at += max(2, int.from_bytes(data[at : at + 2], "big"))
        yield marker, found.start(), at


def _jpeg(data: bytes) -> Header:
    kept: list[bytes] = []
    first, exif, frames = 0, b"", list[tuple[int, int, int]]()
    for count, (marker, begin, end) in enumerate(_header_segments(data)):
        if count == MAX_METADATA:
            raise too_complex(f"it has more than {MAX_METADATA} segments")
        if marker in (_SOS, _EOI):
            break
        if marker in _OTHER_FRAMES:
            raise PictureError(
                "unsupported_format",
                f"this JPEG has the coding SOF{marker - 0xC0}, which is rarely supported: save it again",
            )
        if marker in _HUFFMAN_FRAMES and min(end, len(data)) - begin >= 10:
            height, width, colours = struct.unpack_from(">HHB", data, begin + 5)
            frames.append((marker, width * height, colours))
        if marker in _JPEG_METADATA:
            if marker == _APP1 and not exif and data.startswith(_EXIF, begin + 4):
                exif = data[begin + 4 : end]
            kept.append(data[first:begin])
            first = end
    else:
        return Header(data, data)  # no scan: broken
    header_bytes = sum(map(len, kept)) + begin - first
    plain = b"".join((*kept, data[first:])) if kept else data
    coding, pixels, colours = frames[0] if len(frames) == 1 else (0, 0, 0)
    # A scan of all colours is the only one that is decoded. Else there are at most as many as these two bytes
    # are found, which among pixels stand for nothing else.
    is_whole = coding in _ONE_SCAN_FRAMES and data[begin + 4 : begin + 5] == bytes([colours])
    scans = 1 if is_whole else data.count(bytes([0xFF, _SOS]), begin)
    is_harmless = (
        0 < pixels * scans <= HARMLESS_VISITS
        and header_bytes <= HARMLESS_HEADER_BYTES
        and (pixels <= HARMLESS_PIXELS_A_BYTE * len(plain) if scans == 1 else pixels <= HARMLESS_PIXELS)
    )
    return Header(data, plain, is_harmless, exif_orientation(exif), scans)


def exif_orientation(exif: bytes) -> int:
    """What the first directory says of it; 1 where it says nothing that can be read."""
    tiff = exif.removeprefix(_EXIF)
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    try:
        if order:
            (at,) = struct.unpack_from(f"{order}I", tiff, 4)
            (count,) = struct.unpack_from(f"{order}H", tiff, at)
            for entry in range(count):
                tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, at + 2 + 12 * entry)
                if tag == _ORIENTATION:
                    return int(value)
    except struct.error:
        pass
    return 1


def _png(data: bytes) -> Header:
    at, first, count, exif, headers = 8, 8, 0, b"", 0
    kept = [_PNG]
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if not kind.isalpha():
            break  # it is broken from here on
        count += 1
        if count > MAX_CHUNKS or len(kept) > MAX_METADATA:
            raise too_complex(f"it has more than {MAX_CHUNKS} chunks, or {MAX_METADATA} beside its pixels")
        end = at + 12 + length
        headers += kind == b"IHDR"
        if kind not in _PNG_PIXELS:
            if kind == b"eXIf" and not exif:
                exif = data[at + 8 : end - 4]
            kept.append(data[first:at])
            first = end
        at = end
        if kind == b"IEND":
            break
    width, height = struct.unpack(">II", data[16:24]) if data[12:16] == b"IHDR" and len(data) > 24 else (0, 0)
    is_harmless = headers == 1 and 0 < width * height <= HARMLESS_PIXELS
    plain = b"".join((*kept, data[first:])) if len(kept) > 1 else data
    return Header(data, plain, is_harmless, exif_orientation(exif))


def _webp_pixels(data: bytes) -> int:
    """Of a still picture; 0 where that is not said in the usual way."""
    kind, head = data[12:16], data[20:30]
    if len(head) < 10:
        return 0
    if kind == b"VP8X" and not head[0] & 2:  # not an animation
        return (1 + int.from_bytes(head[4:7], "little")) * (1 + int.from_bytes(head[7:10], "little"))
    if kind == b"VP8L":
        sides = int.from_bytes(head[1:5], "little")
        return (1 + (sides & 0x3FFF)) * (1 + (sides >> 14 & 0x3FFF))
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", head[6:10])
        return int(width & 0x3FFF) * int(height & 0x3FFF)
    return 0


def not_a_picture(data: bytes) -> PictureError:
    allowed = ", ".join(FORMATS)
    if "HEIF" not in FORMATS and _begins_like("HEIF", data):
        message = f"HEIC photos cannot be read on this server: save it as JPEG ({allowed} are allowed)"
        return PictureError("unsupported_format", message)
    start = data[:256].lstrip(b"\xef\xbb\xbf \t\r\n")
    for mark, name in _KNOWN_BUT_REFUSED:
        if start[: len(mark)].lower() == mark.lower():
            return PictureError("unsupported_format", f"this is {name}; allowed are {allowed}")
    for kind in FORMATS:
        if _begins_like(kind, data):
            message = f"this begins like a {kind} but cannot be read: it is damaged"
            return PictureError("broken_picture", message)
    return PictureError("not_a_picture", f"this is not a picture of a format that is read here ({allowed})")


def _begins_like(kind: str, data: bytes) -> bool:
    """Pillow's own look at the first bytes."""
    if kind == "HEIF":
        return data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS
    Image.init()
    _, begins_like = Image.OPEN[kind]
    return bool(begins_like and begins_like(data[:16]))
