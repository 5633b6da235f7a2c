"""Read a picture's header before any decoder does, and remove its metadata.

Pillow parses all metadata of a file: it inflates texts and colour profiles, a megabyte for each kilobyte, and
walks Photoshop's resources in Python. We need only the orientation, which is read here. Pillow gets JPEGs and
PNGs without their metadata.

A file is `is_harmless` if its header was understood to the end and proves that decoding is cheap: JPEGs of
the ordinary coding in few scans, PNGs and WebPs, all with a limited number of pixels. Measured: the most
expensive one of ten megabytes, a WebP of noise, took 0.3 s; a JPEG at most 0.15 s.
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

# For iPhone photos. Only the decoding process loads it; some platforms have no wheel.
HEIF_PLUGIN: Final = "pillow_heif"
_READS_HEIF: Final = find_spec(HEIF_PLUGIN) is not None
# AVIF before HEIF: an AVIF may begin like a HEIF.
FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", *(("HEIF",) if _READS_HEIF else ()))
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

# Segments or chunks of metadata. Ordinary files have less than a hundred; a colour profile of ten megabytes
# has 160 segments.
MAX_METADATA: Final = 2_000
# A PNG of ten megabytes has about 1,300.
MAX_CHUNKS: Final = 10_000

# All pixels are in memory, except of JPEGs with one scan, which shrink while they are decoded.
HARMLESS_PIXELS: Final = 4_000_000
# Each scan visits each pixel: 50 million pixels in one scan, or 5 million in ten scans.
HARMLESS_VISITS: Final = 50_000_000
# A block of 64 pixels takes at least two bits. Files with less claim pixels that they do not have.
HARMLESS_PIXELS_A_BYTE: Final = 256
# The size of a JPEG's header without metadata. Ordinary files have one kilobyte.
HARMLESS_HEADER_BYTES: Final = 16_384

_SOI, _EOI, _SOS, _TEM, _APP1 = 0xD8, 0xD9, 0xDA, 0x01, 0xE1
_ONE_SCAN_FRAMES: Final = (0xC0, 0xC1)
_HUFFMAN_FRAMES: Final = (*_ONE_SCAN_FRAMES, 0xC2)
_OTHER_FRAMES: Final = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Comments, and all application segments except JFIF's and Adobe's, which define the colours.
_JPEG_METADATA: Final = frozenset((*range(0xE1, 0xF0), 0xFE)) - {0xEE}
# Frames, tables of quantisation and of Huffman, the restart interval, and the segments of JFIF and Adobe.
_JPEG_PIXELS: Final = (*_HUFFMAN_FRAMES, 0xDB, 0xC4, 0xDD, 0xE0, 0xEE)
_MARKER: Final = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])", re.DOTALL)
_EXIF: Final = b"Exif\0\0"
_ORIENTATION: Final = 0x0112

_PNG: Final = b"\x89PNG\r\n\x1a\n"
# The chunks of a picture, and acTL, which marks an animation: those are refused.
_PNG_PIXELS: Final = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"acTL")


@dataclass(frozen=True)
class Header:
    """A picture's header. `data` are the bytes for the decoder; `orientation` is Exif's, 1 by default."""

    original: bytes
    data: bytes
    is_harmless: bool = False
    orientation: int = 1
    scans: int = 1


def parse_header(data: bytes) -> Header:
    """Read the header; raise PictureError if the file is empty, not a picture, or refused by `read`."""
    if not data:
        raise PictureError("empty", "the file is empty: choose a photo")
    head = read_markers(data)
    if not (head.is_harmless or any(_begins_like(kind, data) for kind in FORMATS)):
        raise not_a_picture(data)
    return head


def read_markers(data: bytes) -> Header:
    """Read the header; raise PictureError if it has too much metadata, or an unsupported coding."""
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg(data)
    if data.startswith(_PNG):
        return _png(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Header(data, data, is_harmless=0 < _webp_pixels(data) <= HARMLESS_PIXELS)
    return Header(data, data)


def _header_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, begin and end of each segment."""
    at = 2
    while match := _MARKER.search(data, at):
        marker, at = match[1][0], match.end()
        if marker not in (_SOI, _EOI, _TEM):
            at += max(2, int.from_bytes(data[at : at + 2], "big"))
        yield marker, match.start(), at


def _jpeg(data: bytes) -> Header:
    kept: list[bytes] = []
    first, exif, frames = 0, b"", list[tuple[int, int, int]]()
    for count, (marker, begin, end) in enumerate(_header_segments(data)):
        if count == MAX_METADATA:
            raise too_complex(f"it has more than {MAX_METADATA} segments")
        if marker == _SOS:
            break
        if marker in _OTHER_FRAMES:
            raise PictureError(
                "unsupported_format",
                f"this JPEG has the coding SOF{marker - 0xC0}, which is not supported: save it as an "
                "ordinary JPEG",
            )
        if marker in _HUFFMAN_FRAMES and min(end, len(data)) - begin >= 10:
            height, width, colours = struct.unpack_from(">HHB", data, begin + 5)
            frames.append((marker, width * height, colours))
        if marker in _JPEG_METADATA:
            if marker == _APP1 and not exif and data.startswith(_EXIF, begin + 4):
                exif = data[begin + 4 : end]
            kept.append(data[first:begin])
            first = end
        elif marker not in _JPEG_PIXELS:
            return Header(data, data)  # Pillow reads on after some of these in another way
    else:
        return Header(data, data)  # it has no scan: it is broken
    header_bytes = sum(map(len, kept)) + begin - first
    plain = b"".join((*kept, data[first:])) if kept else data
    coding, pixels, colours = frames[0] if len(frames) == 1 else (0, 0, 0)
    # After a scan of all colours no other one is decoded. Otherwise libjpeg keeps all coefficients, even for
    # a single scan. Count the two bytes that begin a scan, which never occur among pixels.
    is_whole = coding in _ONE_SCAN_FRAMES and data[begin + 4 : begin + 5] == bytes([colours])
    scans = 1 if is_whole else max(2, data.count(bytes([0xFF, _SOS]), begin))
    is_harmless = (
        0 < pixels * scans <= HARMLESS_VISITS
        and header_bytes <= HARMLESS_HEADER_BYTES
        and (pixels <= HARMLESS_PIXELS_A_BYTE * len(plain) if scans == 1 else pixels <= HARMLESS_PIXELS)
    )
    return Header(data, plain, is_harmless, exif_orientation(exif), scans)


def exif_orientation(exif: bytes) -> int:
    """Return the orientation from the first directory; 1 if it has none that can be read."""
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
    at, first, count, exif, headers, kind = 8, 8, 0, b"", 0, b""
    kept = [_PNG]
    while kind != b"IEND" and at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        count += 1
        if count > MAX_CHUNKS or len(kept) > MAX_METADATA:
            raise too_complex(f"it has more than {MAX_CHUNKS} chunks, or {MAX_METADATA} of metadata")
        end = at + 12 + length
        headers += kind == b"IHDR"
        if kind not in _PNG_PIXELS:
            if kind == b"eXIf" and not exif:
                exif = data[at + 8 : end - 4]
            kept.append(data[first:at])
            first = end
        at = end
    width, height = struct.unpack(">II", data[16:24]) if data[12:16] == b"IHDR" and len(data) > 24 else (0, 0)
    is_harmless = kind == b"IEND" and headers == 1 and 0 < width * height <= HARMLESS_PIXELS
    plain = b"".join((*kept, data[first:])) if len(kept) > 1 else data
    return Header(data, plain, is_harmless, exif_orientation(exif))


def _webp_pixels(data: bytes) -> int:
    """Return the number of pixels of a still picture; 0 if the header does not tell."""
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
        message = f"this server cannot read HEIC photos: save it as a JPEG ({allowed} are allowed)"
        return PictureError("unsupported_format", message)
    start = data[:256].lstrip(b"\xef\xbb\xbf \t\r\n")
    for mark, name in _KNOWN_BUT_REFUSED:
        if start[: len(mark)].lower() == mark.lower():
            return PictureError("unsupported_format", f"this is {name}; allowed are {allowed}")
    for kind in FORMATS:
        if _begins_like(kind, data):
            message = f"this begins like a {kind} but cannot be read: it is damaged"
            return PictureError("broken_picture", message)
    return PictureError("not_a_picture", f"this is not a picture; allowed formats are {allowed}")


def _begins_like(kind: str, data: bytes) -> bool:
    """Return whether Pillow recognises the first bytes as this format."""
    if kind == "HEIF":
        return data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS
    Image.init()
    _, begins_like = Image.OPEN[kind]
    return bool(begins_like and begins_like(data[:16]))
