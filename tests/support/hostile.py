"""Pictures and texts that are made to break something, and how such a picture is decoded.

    name, data = hostile.file(4711)  # the same number has always the same bytes

A file begins as one of the seeds, a small picture of each format and mode, and has one to three defects
done to it.
"""

from __future__ import annotations

import functools
import io
import random
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pillow_heif
from PIL import Image

from gourmet.pictures.decode import PictureError, from_base64
from gourmet.systems.food11.contract import SYSTEM

# The product reads these in its process of decoders alone; tests write them.
pillow_heif.register_heif_opener()


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def scene(width: int = 61, height: int = 47) -> Image.Image:
    rows, columns = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(width).integers(0, 60, (height, width))
    return Image.fromarray(
        np.stack([255 * columns / width, 195 * rows / height + noise, noise * 3], -1).astype(np.uint8)
    )


@functools.cache
def seeds() -> Mapping[str, bytes]:
    """Small pictures in every format that is read, and files that are none."""
    rgb, grey = scene(), scene().convert("L")
    clear = rgb.convert("RGBA")
    clear.putalpha(grey)
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "maker"
    extras = {"exif": exif, "icc_profile": bytes(range(256)) * 9}
    frames = {"save_all": True, "append_images": [scene().rotate(90)], "duration": 40}
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    return {
        "jpeg": encoded(rgb, "JPEG", **extras),
        "jpeg progressive": encoded(rgb, "JPEG", progressive=True, subsampling=0),
        "jpeg cmyk": encoded(rgb.convert("CMYK"), "JPEG"),
        "mpo": encoded(rgb, "MPO", save_all=True, append_images=[scene(60, 40)]),
        "png": encoded(rgb, "PNG", **extras),
        "png palette": encoded(rgb.quantize(16), "PNG", transparency=3),
        "png deep": encoded(deep, "PNG"),
        "apng": encoded(rgb, "PNG", **frames),
        "webp": encoded(rgb, "WEBP", **extras, xmp=b"<x:xmpmeta/>"),
        "webp lossless": encoded(clear, "WEBP", lossless=True),
        "webp moving": encoded(rgb, "WEBP", **frames),
        "gif moving": encoded(rgb, "GIF", **frames, comment=b"x" * 300),
        "bmp": encoded(rgb, "BMP"),
        "bmp one bit": encoded(rgb.convert("1"), "BMP"),
        "tiff": encoded(rgb, "TIFF", **extras),
        "tiff deflate": encoded(clear, "TIFF", compression="tiff_adobe_deflate"),
        "tiff fax": encoded(rgb.convert("1"), "TIFF", compression="group4"),
        "tiff float": encoded(grey.convert("F"), "TIFF"),
        "avif": encoded(rgb, "AVIF", speed=10, **extras, xmp=b"<x:xmpmeta/>"),
        "avif moving": encoded(rgb, "AVIF", speed=10, save_all=True, append_images=[scene().rotate(90)]),
        "heif clear": encoded(clear, "HEIF"),
        "none": b"hello",
        "signature of a png": b"\x89PNG\r\n\x1a\n",
        "head of a webp": b"RIFF\0\0\0\0WEBP",
        "head of a tiff": b"MM\0*\xff\xff\xff\xff",
    }


def file(number: int) -> tuple[str, bytes]:
    """The hostile file of that number, and what was done to it."""
    draw = random.Random(number)
    seed = draw.choice(sorted(seeds()))
    data, done = seeds()[seed], [seed]
    for _ in range(draw.choice((1, 1, 2, 3))):
        defect = draw.choice(_DEFECTS)
        data = defect(draw, data)
        done.append(defect.__name__.strip("_"))
    return ", ".join(done), data


def cut_short(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def bytes_changed(draw: random.Random, data: bytes) -> bytes:
    """Some bytes, of all or of the first ones."""
    changed, end = bytearray(data), draw.choice((len(data), 128))
    for _ in range(draw.choice((1, 2, 8, 64)) if changed else 0):
        changed[draw.randrange(min(end, len(changed)))] = draw.randrange(256)
    return bytes(changed)


def part_removed_or_repeated(draw: random.Random, data: bytes) -> bytes:
    begin, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data[:begin] + data[begin:end] * draw.choice((0, 2, 30)) + data[end:]


def _number_made_extreme(draw: random.Random, data: bytes) -> bytes:
    size, order = draw.choice((1, 2, 4)), draw.choice((">", "<"))
    value = draw.choice((0, 1, 0x7F, 0x80, 0x7FFF, 0x8000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF))
    at = draw.randrange(max(1, min(len(data), draw.choice((64, 512)))))
    number = struct.pack(order + {1: "B", 2: "H", 4: "I"}[size], value & (1 << 8 * size) - 1)
    return data[:at] + number + data[at + size :]


def _something_behind(draw: random.Random, data: bytes) -> bytes:
    tail = draw.choice((b"<script>alert(1)</script>", b"PK\x05\x06" + bytes(18), b"GIF89a", b"\xff\xd9" * 64))
    return data + tail * draw.choice((1, 40))


def _size_lied_about(draw: random.Random, data: bytes) -> bytes:
    side = draw.choice((0, 1, 300, 5000, 65_535))
    other = draw.choice((1, side, 65_535))
    if data[:4] == b"\x89PNG":
        return data[:8] + png_chunk(b"IHDR", struct.pack(">II", side, other) + data[24:29]) + data[33:]
    if data[:2] == b"\xff\xd8" and (at := max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))) > 0:
        return data[: at + 5] + struct.pack(">HH", side, other) + data[at + 9 :]
    if data[:3] == b"GIF":
        return data[:6] + struct.pack("<HH", side, other) + data[10:]
    if data[:2] == b"BM":
        return data[:18] + struct.pack("<ii", side, draw.choice((other, -other))) + data[26:]
    if (at := data.find(b"ispe")) > 0:
        return data[: at + 8] + struct.pack(">II", side, other) + data[at + 16 :]
    return _number_made_extreme(draw, data)


_DEFECTS: Final[tuple[Callable[[random.Random, bytes], bytes], ...]] = (
    *(cut_short, bytes_changed, bytes_changed, part_removed_or_repeated),
    *(_number_made_extreme, _something_behind, _size_lied_about),
)


def decode(data: bytes) -> str:
    """Return "pixels" or the code of a refusal that has words; unexpected errors propagate."""
    try:
        picture = from_base64(data)
        SYSTEM.identify(picture)
        image = SYSTEM.pixels(picture)
    except PictureError as exc:
        return exc.code if str(exc) else ""
    assert image.shape == (SYSTEM.input_size, SYSTEM.input_size, 3), image.shape
    assert image.dtype == "uint8"
    return "pixels"


def arithmetic_jpeg(scans: int = 24) -> bytes:
    """Four kilobytes: 8000×6000, progressive, of arithmetic coding, whose scans say nothing."""

    def segment(marker: int, body: bytes) -> bytes:
        return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body

    head = segment(0xDB, b"\0" + b"\x10" * 64) + segment(
        0xCA, struct.pack(">BHHBBBB", 8, 6000, 8000, 1, 1, 17, 0)
    )
    first = segment(0xDA, bytes((1, 1, 0, 0, 0, 0))) + b"\x5a" * 150
    more = segment(0xDA, bytes((1, 1, 0, 1, 63, 0))) + b"\x5a" * 140
    return b"\xff\xd8" + head + first + more * scans + b"\xff\xd9"


def tiff_of(jpeg: bytes, width: int = 8000, height: int = 3000) -> bytes:
    """A TIFF whose only strip is that JPEG."""
    at = 8 + len(jpeg) + len(jpeg) % 2
    values = {256: width, 257: height, 258: 8, 259: 7, 262: 1, 273: 8, 277: 1, 278: height, 279: len(jpeg)}
    rows = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in values.items())
    head = struct.pack("<4sI", b"II*\0", at) + jpeg
    return head.ljust(at, b"\0") + struct.pack("<H", len(values)) + rows + bytes(4)


def lying_avif(side: int) -> bytes:
    """An AVIF whose container says 100×100 and whose frame is much larger."""
    data = encoded(Image.new("RGB", (side, side), "red"), "AVIF", speed=10)
    at = data.index(b"ispe") + 8
    return data[:at] + struct.pack(">II", 100, 100) + data[at + 8 :]


_CHARACTERS: Final = (
    "abcdefghij XYZ",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя АБВ",
    "".join(map(chr, range(32))) + "\x7f\x80\x85\x9f",
    "אבגדהابتث\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f",
    "😀👩‍👩‍👧‍👦🏳️‍🌈🇷🇺🇬🇧👍🏿\U000e0067\U000e007f",
    "\u0300\u0301\u0308\u20dd\u0489\u1ab0\ufe20",
    "\ufeff\ufffe\uffff\ufffd\u2028\u2029\u00a0\u3000\u200b\u2060",
    "\ud800\udbff\udc00\udfff",
    ".!?…\"'»”’)]([{<«“„ \n\t,;:—–-",
    "▁</s><pad><unk>",
    "中文日本語한국어ไทยहिन्दी𝔘𝔫𝔦ⅷ①㍿ﷺ",
)


def text(draw: random.Random) -> str:
    """Of a few kinds of characters, mixed or one after another; now and then longer than is allowed."""
    kinds = draw.sample(_CHARACTERS, draw.randint(1, 3))
    length = draw.choice((0, 1, 3, 50, 300)) if draw.random() < 0.98 else draw.randint(1900, 2100)
    if draw.random() < 0.5:
        return "".join(draw.choice(draw.choice(kinds)) for _ in range(length))
    return "".join(draw.choice(kind) * draw.randint(0, length // len(kinds)) for kind in kinds)
