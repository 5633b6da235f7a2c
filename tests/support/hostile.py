"""Files, texts and requests that are made to break something, and how a file of them is decoded.

    name, data = hostile.file(4711)  # the same number has always the same bytes

A file begins as one of the seeds, a small picture of every format and mode, and has one to four defects
done to it.
"""

from __future__ import annotations

import base64
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

_EXTREMES: Final = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_TAILS: Final = (
    *(b"<script>alert(1)</script>", b"%PDF-1.7\n", b"PK\x05\x06" + bytes(18), b"<?php x", b"MZ\x90\0"),
    *(b"#!/bin/sh\n", b"GIF89a", b"\xff\xd8\xff\xe0", b"<svg/>", b"\0" * 4096, b"\xff\xd9" * 64),
)
_OTHERS: Final = (
    *(
        b"",
        b"\0",
        b"hello",
        b"\xff",
        b"\xff\xd8",
        b"\x89PNG\r\n\x1a\n",
        b"RIFF\0\0\0\0WEBP",
        b"BM",
        b"GIF89a",
    ),
    *(b"II*\0\x08\0\0\0", b"MM\0*\xff\xff\xff\xff", b"\0\0\0\x1cftypavif", b"{}", b"<html>", b"%PDF-1.4"),
)


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
    """Small pictures in every format, mode and form of storage that is read, and what lies beside them."""
    rgb, grey = scene(), scene().convert("L")
    clear = rgb.convert("RGBA")
    clear.putalpha(grey)
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "maker"
    extras = {"exif": exif, "icc_profile": bytes(range(256)) * 9}
    frames = {"save_all": True, "append_images": [scene().rotate(90)], "duration": 40}
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    files = {
        "jpeg": encoded(rgb, "JPEG", **extras),
        "jpeg progressive": encoded(rgb, "JPEG", progressive=True, subsampling=0),
        "jpeg grey": encoded(grey, "JPEG", comment=b"c" * 300),
        "jpeg cmyk": encoded(rgb.convert("CMYK"), "JPEG"),
        "mpo": encoded(rgb, "MPO", save_all=True, append_images=[scene(60, 40)]),
        "png": encoded(rgb, "PNG", **extras),
        "png palette": encoded(rgb.quantize(16), "PNG", transparency=3),
        "png clear": encoded(clear, "PNG"),
        "png one bit": encoded(rgb.convert("1"), "PNG"),
        "png deep": encoded(deep, "PNG"),
        "apng": encoded(rgb, "PNG", **frames),
        "webp": encoded(rgb, "WEBP", **extras, xmp=b"<x:xmpmeta/>"),
        "webp lossless": encoded(clear, "WEBP", lossless=True),
        "webp moving": encoded(rgb, "WEBP", **frames),
        "gif": encoded(rgb, "GIF"),
        "gif moving": encoded(rgb, "GIF", **frames, comment=b"x" * 300),
        "bmp": encoded(rgb, "BMP"),
        "bmp palette": encoded(rgb.quantize(16), "BMP"),
        "bmp one bit": encoded(rgb.convert("1"), "BMP"),
        "tiff": encoded(rgb, "TIFF", **extras),
        "tiff lzw": encoded(rgb, "TIFF", compression="tiff_lzw"),
        "tiff deflate": encoded(clear, "TIFF", compression="tiff_adobe_deflate"),
        "tiff jpeg": encoded(rgb, "TIFF", compression="jpeg"),
        "tiff packbits": encoded(rgb.convert("1"), "TIFF", compression="packbits"),
        "tiff fax": encoded(rgb.convert("1"), "TIFF", compression="group4"),
        "tiff deep": encoded(deep, "TIFF"),
        "tiff float": encoded(grey.convert("F"), "TIFF"),
        "tiff cmyk": encoded(rgb.convert("CMYK"), "TIFF"),
        "tiff lab": encoded(Image.new("LAB", (30, 20)), "TIFF"),
        "tiff pages": encoded(rgb, "TIFF", save_all=True, append_images=[scene(20, 20)] * 3),
        "avif": encoded(rgb, "AVIF", speed=10, **extras, xmp=b"<x:xmpmeta/>"),
        "avif clear": encoded(clear, "AVIF", speed=10),
        "avif moving": encoded(rgb, "AVIF", speed=10, save_all=True, append_images=[scene().rotate(90)]),
        "heif": encoded(rgb, "HEIF", **extras),
        "heif clear": encoded(clear, "HEIF"),
    }
    return files | {f"other {number}": data for number, data in enumerate(_OTHERS)}


def file(number: int) -> tuple[str, bytes]:
    """The hostile file of that number, and what was done to it."""
    draw = random.Random(number)
    is_other = draw.random() < 0.05
    names = [name for name in sorted(seeds()) if name.startswith("other") == is_other]
    seed = draw.choice(names)
    data, done = seeds()[seed], [seed]
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 4))):
        defect = draw.choice(_DEFECTS)
        data = defect(draw, data)
        done.append(defect.__name__.strip("_"))
    return ", ".join(done), data


def _cut_short(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _beginning_lost(draw: random.Random, data: bytes) -> bytes:
    return data[draw.randrange(min(len(data), 64) + 1) :]


def _bytes_changed(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 2, 8, 64)) if changed else 0):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def _header_changed(draw: random.Random, data: bytes) -> bytes:
    head = _bytes_changed(draw, data[:128])
    return head + data[128:]


def _number_made_extreme(draw: random.Random, data: bytes) -> bytes:
    size, order = draw.choice((1, 2, 4)), draw.choice((">", "<"))
    value = draw.choice(_EXTREMES) & (1 << 8 * size) - 1
    at = draw.randrange(max(1, min(len(data), draw.choice((64, 512, 1 << 20)))))
    return data[:at] + struct.pack(order + {1: "B", 2: "H", 4: "I"}[size], value) + data[at + size :]


def _part_repeated(draw: random.Random, data: bytes) -> bytes:
    begin, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[begin:end] * draw.choice((1, 2, 30)) + data[end:]


def _part_removed(draw: random.Random, data: bytes) -> bytes:
    begin, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data[:begin] + data[end:]


def _noise_inserted(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.randbytes(draw.choice((1, 4, 100, 3000))) + data[at:]


def _grafted(draw: random.Random, data: bytes) -> bytes:
    """The beginning of one picture and the end of another."""
    other = seeds()[draw.choice(sorted(seeds()))]
    return data[: draw.randrange(len(data) + 1)] + other[draw.randrange(len(other) + 1) :]


def _something_behind(draw: random.Random, data: bytes) -> bytes:
    return data + draw.choice(_TAILS) * draw.choice((1, 1, 40))


def _something_in_front(draw: random.Random, data: bytes) -> bytes:
    return draw.choice(_TAILS) + data


def _as_text(draw: random.Random, data: bytes) -> bytes:
    text = base64.b64encode(data)
    return draw.choice((text, b"data:image/png;base64," + text, text[:-1], b"\n".join([text, text])))


def _metadata_blown_up(draw: random.Random, data: bytes) -> bytes:
    blob = draw.randbytes(64) * draw.choice((10, 900))
    if data[:2] == b"\xff\xd8":
        name = draw.choice((b"\xff\xe1Exif\0\0II*\0", b"\xff\xe2ICC_PROFILE\0\1\1", b"\xff\xfe"))
        segment = name[:2] + struct.pack(">H", min(0xFFFF, len(blob) + len(name))) + name[2:] + blob
        return data[:2] + segment * draw.choice((1, 20)) + data[2:]
    if data[:4] == b"\x89PNG":
        kind = draw.choice((b"tEXt", b"zTXt", b"iTXt", b"iCCP", b"eXIf", b"PLTE", b"acTL", b"tRNS", b"abCd"))
        body = draw.choice((b"name\0\0", b"", b"Raw profile type exif\0\0")) + zlib.compress(blob * 9)
        return data[:33] + png_chunk(kind, body) * draw.choice((1, 30)) + data[33:]
    return data + blob


def _size_lied_about(draw: random.Random, data: bytes) -> bytes:
    side = draw.choice((0, 1, 16, 300, 4000, 5000, 20_000, 65_535))
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
    if data[:4] == b"RIFF" and data[12:16] == b"VP8X":
        return data[:24] + struct.pack("<I", side)[:3] + struct.pack("<I", other)[:3] + data[30:]
    return _tag_lied_about(draw, data)


def _tag_lied_about(draw: random.Random, data: bytes) -> bytes:
    """A TIFF's tag with another type, count or value; also loops in its chain of pages."""
    if data[:4] != b"II*\0" or len(data) < 8:
        return _number_made_extreme(draw, data)
    at = int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[at : at + 2], "little")
    if not count or at + 2 + 12 * count + 4 > len(data):
        return data
    changed = bytearray(data)
    if draw.random() < 0.2:
        struct.pack_into("<I", changed, at + 2 + 12 * count, draw.choice((at, 4, 0xFFFFFFFF)))
        return bytes(changed)
    tag = at + 2 + 12 * draw.randrange(count)
    where, form = draw.choice(((0, "<H"), (2, "<H"), (4, "<I"), (8, "<I")))
    struct.pack_into(form, changed, tag + where, draw.choice(_EXTREMES) & (0xFFFF if form == "<H" else ~0))
    return bytes(changed)


_DEFECTS: Final[tuple[Callable[[random.Random, bytes], bytes], ...]] = (
    *(_cut_short, _beginning_lost, _bytes_changed, _header_changed, _number_made_extreme, _part_repeated),
    *(_part_removed, _noise_inserted, _grafted, _something_behind, _something_in_front, _as_text),
    *(_metadata_blown_up, _size_lied_about, _tag_lied_about, _header_changed, _size_lied_about),
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


def request(number: int, host: str = "127.0.0.1") -> tuple[str, bytes]:
    """The hostile HTTP request of that number, whole as it goes over the wire, and what is odd about it."""
    draw = random.Random(f"request {number}")
    name, data = file(draw.randrange(1 << 30))
    route = draw.choice(("/predict",) * 4 + ("/api/v1/classify",) * 4 + ("/api/v1/digits",) * 2)
    if draw.random() < 0.01:
        route = "/api/v1/explain?grid=7"
    shape = draw.choice(_BODIES)
    kind, body = shape(draw, data)
    head = {"Content-Type": kind, "X-Request-ID": f"fuzz-{number}", "Accept": "application/json"}
    framing = draw.choice((_framed, _framed, _framed, _chunked, _lying_length, _lying_chunks))
    method = draw.choice(("POST",) * 30 + ("GET", "PUT", "TRACE", "post", "\x00"))
    if draw.random() < 0.05:
        head[draw.choice(("Expect", "Content-Encoding", "Transfer-Encoding", "X-API-Key", "Cookie"))] = (
            draw.choice(("100-continue", "gzip", "identity", "\xff" * 40, "a" * 9000, "chunked, chunked"))
        )
    more, wire = framing(draw, body)
    lines = "".join(f"{key}: {value}\r\n" for key, value in {**head, **more}.items())
    first = f"{method} {route} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    description = ", ".join((route, shape.__name__.strip("_"), framing.__name__.strip("_"), name))
    return description, (first + lines + "\r\n").encode("latin-1", "replace") + wire


Body = tuple[str, bytes]  # content type, bytes


def _form(draw: random.Random, data: bytes) -> Body:
    field = draw.choice((b"file",) * 8 + (b"photo", b"", b"file[]"))
    filename = draw.choice(
        (b"photo.jpg",) * 4 + (b"../../etc/passwd", b"", b"\xff\xfe", b"a" * 5000, b"x\0.png")
    )
    part = b'Content-Disposition: form-data; name="' + field + b'"; filename="' + filename + b'"\r\n'
    part += b"Content-Type: " + draw.choice((b"image/jpeg", b"text/html", b"", b"multipart/mixed")) + b"\r\n"
    parts = (b"--b\r\n" + part + b"\r\n" + data + b"\r\n") * draw.choice((1,) * 9 + (40,))
    return "multipart/form-data; boundary=b", parts + b"--b--\r\n"


def _form_malformed(draw: random.Random, data: bytes) -> Body:
    kind, body = _form(draw, data)
    defect = draw.choice((_cut_short, _header_changed, _part_removed, _noise_inserted, _part_repeated))
    kinds = (
        kind,
        "multipart/form-data",
        "multipart/form-data; boundary=",
        f"{kind}; boundary=c",
        kind + "x" * 99,
    )
    return draw.choice(kinds), defect(draw, body)


def _as_it_is(draw: random.Random, data: bytes) -> Body:
    return draw.choice(
        ("image/jpeg", "application/octet-stream", "image/svg+xml", "text/plain", "", "*/*")
    ), data


def _as_json(draw: random.Random, data: bytes) -> Body:
    text = base64.b64encode(data).decode()
    body = draw.choice(
        (
            *(f'{{"images": ["{text}"]}}', f'{{"images": "{text}"}}', f'{{"images": ["{text}", 3, null]}}'),
            *('{"images": [' * 200, "[" * 20_000, '{"images": []}', '{"images": ["\\ud800"]}', "nan", ""),
            *(f'{{"images": ["{text}"], "model": "../../x"}}', '{"images": ["' + "A" * 100_000 + '"]}'),
        )
    )
    return "application/json", body.encode()


def _as_urlencoded(draw: random.Random, data: bytes) -> Body:
    return "application/x-www-form-urlencoded", draw.choice((b"file=", b"&" * 5000, b"%ff%")) + data[:2000]


_BODIES: Final = (
    *(_form,) * 5,
    _form_malformed,
    _form_malformed,
    _as_it_is,
    _as_it_is,
    _as_json,
    _as_urlencoded,
)
Framing = tuple[dict[str, str], bytes]  # headers, what follows them


def _framed(draw: random.Random, body: bytes) -> Framing:
    return {"Content-Length": str(len(body))}, body


def _chunked(draw: random.Random, body: bytes) -> Framing:
    step = draw.choice((7, 1000, 65_536)) if len(body) < 4000 else 65_536
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    wire = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return {"Transfer-Encoding": "chunked"}, wire + b"0\r\n\r\n"


def _lying_length(draw: random.Random, body: bytes) -> Framing:
    length = draw.choice((0, len(body) // 2, len(body) + 10, 10**9, 10**30, -1, "x", "1, 2", "+5", ""))
    return {"Content-Length": str(length)}, body


def _lying_chunks(draw: random.Random, body: bytes) -> Framing:
    size = draw.choice((b"-1", b"ffffffffffffffff", b"%x" % (len(body) + 5), b"zz", b"", b"5;" + b"x" * 9000))
    return {"Transfer-Encoding": "chunked"}, size + b"\r\n" + body + draw.choice(
        (b"", b"\r\n", b"\r\n0\r\n\r\n")
    )


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
_LENGTHS: Final = (0, 1, 2, 3, 10, 50, 300)


def text(draw: random.Random) -> str:
    """Of a few kinds of characters, mixed or one after another; now and then longer than is allowed."""
    kinds = draw.sample(_CHARACTERS, draw.randint(1, 3))
    length = draw.choice(_LENGTHS) if draw.random() < 0.98 else draw.randint(1900, 2100)
    if draw.random() < 0.5:
        return "".join(draw.choice(draw.choice(kinds)) for _ in range(length))
    length_per_kind = max(1, length // len(kinds)) if length else 0
    return "".join(draw.choice(kind) * draw.randint(0, length_per_kind) for kind in kinds)
