"""Pictures by their structure, changed for what they cost: scans of JPEGs, chunks of PNGs, directories.

    found = most_expensive(jpeg, cost, tries=range(500), seed=1)

A file is made from a recipe, a list of numbers from 0 to 1, and the same recipe is always the same file. The
most expensive recipe so far is changed in a few places and tried again. What bytes alone do to decoders,
`hostile` tries.
"""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from PIL import Image

T = TypeVar("T")


class FileRecipe:
    """Choices, in the order in which they are made; those that are missing are made by chance."""

    def __init__(self, numbers: Sequence[float], draw: random.Random) -> None:
        self.numbers = list(numbers)
        self._draw = draw
        self._next = 0

    def _number(self) -> float:
        if self._next == len(self.numbers):
            self.numbers.append(self._draw.random())
        self._next += 1
        return self.numbers[self._next - 1]

    def one(self, of: Sequence[T]) -> T:
        return of[int(self._number() * len(of))]

    def between(self, least: int, most: int) -> int:
        """The smaller ones as often as the larger, by their number of digits."""
        return min(most, int((least + 1) * ((most + 1) / (least + 1)) ** self._number()))

    def noise(self, length: int) -> bytes:
        return random.Random(self._number()).randbytes(length)


Build = Callable[[FileRecipe], bytes]


@dataclass(frozen=True)
class ExpensiveFile:
    cost: float
    data: bytes


def most_expensive(
    build: Build, cost: Callable[[bytes], float], tries: Iterable[int], seed: int
) -> ExpensiveFile:
    """What was found to cost the most."""
    draw = random.Random(seed)
    best, best_numbers = ExpensiveFile(-1.0, b""), list[float]()
    for _ in tries:
        numbers = [] if draw.random() < 0.3 else list(best_numbers)
        for _ in range(draw.choice((1, 1, 2, 5)) if numbers else 0):
            numbers[draw.randrange(len(numbers))] = draw.random()
        recipe = FileRecipe(numbers, draw)
        data = build(recipe)
        found = ExpensiveFile(cost(data), data)
        if found.cost > best.cost:
            best, best_numbers = found, recipe.numbers
    return best


_SIDES: Final = (8, 200, 1500, 1999, 2400, 5000, 7071, 30_000)
# The standard's table for direct currents; for the others codes of two bits each for the end of a block, a
# coefficient, and the end of 16,384 blocks or more.
_DHT: Final = (
    b"\xff\xc4\0\x1f\0\0\1\5\1\1\1\1\1\1\0\0\0\0\0\0\0\0\1\2\3\4\5\6\7\x08\t\n\x0b"
    b"\xff\xc4\0\x16\x10\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\xe0"
)


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def jpeg(recipe: FileRecipe) -> bytes:
    """Every kind of frame, any script of scans, restarts, tables and metadata; scans of zeros or noise."""
    width, height = recipe.one(_SIDES), recipe.one(_SIDES)
    frame = recipe.one((0xC0, 0xC1, 0xC2, 0xC2, 0xC2, 0xC3, 0xC9, 0xCA, 0xCB))
    colours = recipe.one((1, 3, 3, 4))
    parts = [b"\xff\xd8"]
    for _ in range(recipe.between(0, 40)):
        name = recipe.one((b"Exif\0\0", b"ICC_PROFILE\0\1\1", b"Photoshop 3.0\0", b"MPF\0", b"", b"JFIF\0"))
        body = name + recipe.one((exif(recipe), b"8BIM\4\4\0\0\0\0\0\0" * 5000, bytes(40_000)))
        parts.append(_segment(recipe.one((0xE1, 0xE2, 0xED, 0xE0, 0xFE)), body[:65_000]))
    tables = b"".join(bytes([n]) + bytes([recipe.one((1, 16, 255))]) * 64 for n in range(4))
    parts.append(_segment(0xDB, tables * recipe.one((1, 1, 200))) + _DHT)
    layers = b"".join(bytes([n + 1, recipe.one((0x11, 0x22, 0x41, 0x14)), 0]) for n in range(colours))
    parts.append(_segment(frame, struct.pack(">BHHB", 8, height, width, colours) + layers))
    for number in range(recipe.between(0, 60)):
        if recipe.one((True, False)):
            parts.append(_segment(0xDD, struct.pack(">H", recipe.one((0, 1, 7, 65_535)))))
        progressive = frame in (0xC2, 0xCA)
        alone = progressive and number > 0
        chosen = [recipe.between(1, colours)] if alone else list(range(1, colours + 1))
        first, last = (1, recipe.one((1, 5, 63))) if alone else (0, 0 if progressive else 63)
        exact = recipe.one((0, 0x01, 0x10, 0x21, 0x0D)) if alone else 0
        each = b"".join(bytes([colour, 0]) for colour in chosen)
        parts.append(_segment(0xDA, bytes([len(chosen)]) + each + bytes([first, last, exact])))
        length = recipe.between(0, 200_000)
        content = recipe.one((b"", bytes(length), b"\x49\x24\x92" * length, recipe.noise(length)))
        parts.append(content.replace(b"\xff", b"\xff\0") + recipe.one((b"", b"\xff\xd0", b"\xff\x02")))
    return b"".join(parts) + b"\xff\xd9"


def exif(recipe: FileRecipe) -> bytes:
    """A directory of many entries that all point to the same bytes, or to other directories."""
    order = recipe.one(("<", ">"))
    entries, length = recipe.between(1, 4000), recipe.between(1, 30_000)
    kind = recipe.one((1, 2, 3, 4, 7, 13))
    at = recipe.one((8, 10 + 12 * entries))
    rows = [struct.pack(f"{order}HHII", 1 + n, kind, length, at) for n in range(entries)]
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8)
    last = struct.pack(f"{order}I", recipe.one((0, 8)))
    return head + struct.pack(f"{order}H", entries) + b"".join(rows) + last + bytes(length)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(recipe: FileRecipe) -> bytes:
    """Any sequence of chunks, some of which unpack to megabytes each; pixels in many or few pieces."""
    width, height = recipe.one(_SIDES[:5]), recipe.one(_SIDES[:5])
    depth, colour = recipe.one(((8, 2), (16, 6), (1, 3), (16, 0), (8, 6), (8, 3)))
    row = 1 + width * depth * {0: 1, 2: 3, 3: 1, 6: 4}[colour] // 8
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, recipe.one((0, 0, 1)))
    parts = [b"\x89PNG\r\n\x1a\n", _chunk(b"IHDR", head), _chunk(b"PLTE", bytes(768))]
    packed = zlib.compress(bytes(recipe.one((1_000, 1_000_000, 1_048_000, 4_000_000))))
    for _ in range(recipe.between(0, 6)):
        kind = recipe.one((b"iCCP", b"zTXt", b"iTXt", b"tEXt", b"eXIf", b"tRNS", b"abCd", b"acTL", b"fdAT"))
        body = exif(recipe) if kind == b"eXIf" else recipe.one((b"x\0\0", b"x\0\1\0\0\0", b"")) + packed
        parts.append(_chunk(kind, body) * recipe.between(1, 3000 if len(body) < 3000 else 3))
    line = recipe.one((bytes(row), b"\4" + b"\x55" * (row - 1), b"\3" + recipe.noise(row - 1)))
    pixels = zlib.compress(line * min(height, 40_000_000 // row), 1)
    step = recipe.one((len(pixels), 8192, 100, 1)) or 1
    step = max(step, len(pixels) // 20_000 + 1)
    parts += [_chunk(b"IDAT", pixels[at : at + step]) for at in range(0, len(pixels), step)]
    parts += [_chunk(recipe.one((b"iCCP", b"tEXt", b"IDAT")), b"x\0\0" + packed)] * recipe.between(0, 30)
    return b"".join(parts) + _chunk(b"IEND", b"")


def tiff(recipe: FileRecipe) -> bytes:
    """Directories in a ring or a row, with strips and tiles that lie over each other."""
    width, height = recipe.one(_SIDES[:6]), recipe.one(_SIDES[:6])
    pages = recipe.between(1, 30)
    compression, bits = recipe.one((1, 5, 8, 32773, 7, 4)), recipe.one((1, 8, 16))
    strip = recipe.one((zlib.compress(bytes(3_000_000)), bytes(500), recipe.noise(5000)))
    strips = recipe.between(1, 3000)
    values = {256: width, 257: height, 258: bits, 259: compression, 262: recipe.one((1, 2, 3)), 277: 1}
    values |= recipe.one(({278: 1}, {322: recipe.one((16, 2048)), 323: recipe.one((16, 2048))}))
    rows_of_strips = 8 + len(strip)
    places = struct.pack("<I", 8) * strips + struct.pack("<I", len(strip)) * strips
    found = b"II*\0" + struct.pack("<I", rows_of_strips + len(places)) + strip + places
    for page in range(pages):
        rows = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(values.items())]
        at, counts = (273, 279) if 278 in values else (324, 325)
        rows += [
            struct.pack("<HHII", at, 4, strips, rows_of_strips),
            struct.pack("<HHII", counts, 4, strips, rows_of_strips + 4 * strips),
        ]
        rows += [struct.pack("<HHII", 40_000 + n, 1, len(strip), 8) for n in range(recipe.between(0, 3000))]
        begin = len(found)
        after = begin + 6 + 12 * len(rows)
        following = recipe.one((0, begin, after if page + 1 < pages else 0))
        found += struct.pack("<H", len(rows)) + b"".join(rows) + struct.pack("<I", following)
    return found


def webp(recipe: FileRecipe) -> bytes:
    side = recipe.one((8, 400, 1500, 1999))
    options: dict[str, Any] = recipe.one(({"lossless": True, "method": 0}, {"quality": 1}, {"quality": 100}))
    image = Image.new("RGBA", (side, side))
    noisy = 1 + (side - 1) * recipe.between(1, 400) // 400
    image.paste(Image.frombytes("RGBA", (noisy, 1), recipe.noise(4 * noisy)).resize((noisy, side)))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", **options)
    data = buffer.getvalue()
    kind = recipe.one((b"abcd", b"EXIF", b"ICCP"))
    body = exif(recipe) if kind == b"EXIF" else bytes(recipe.between(0, 50))
    extra = kind + struct.pack("<I", len(body)) + body + bytes(len(body) % 2)
    data += extra * recipe.between(0, 2000 if len(body) < 1000 else 1)
    return data[:4] + struct.pack("<I", len(data) - 8) + data[8:]


def avif(recipe: FileRecipe) -> bytes:
    """Items and properties of a small one repeated, and the sizes that it says changed."""
    buffer = io.BytesIO()
    mode = recipe.one(("RGB", "RGBA", "L"))
    Image.new(mode, (recipe.between(8, 600), recipe.between(8, 600))).save(buffer, "AVIF", speed=10)
    data = bytearray(buffer.getvalue())
    for name in (b"ispe", b"iloc", b"ipma", b"iref", b"grid", b"iinf"):
        at = data.find(name)
        if at > 0 and recipe.one((True, False)):
            place = at + recipe.between(4, 20)
            data[place : place + 4] = struct.pack(">I", recipe.one((1, 64, 4000, 65_535, 0x02030405)))
    return bytes(data)


def json_call(recipe: FileRecipe) -> bytes:
    """A call of the API, whose values are many, deep, long, or written in the longest way."""
    kinds = (
        b'"a",',
        b"[",
        b'{"images":',
        b'"\\u00e9\\ud83d\\ude00",',
        b"1e308,",
        b"0.1234567890123456789,",
        b" \t\n",
        b'"QUJD",',
        b'{"a":{},"b":[]},',
        b"9",
    )
    inner = b"".join(recipe.one(kinds) * recipe.between(1, 2_000_000) for _ in range(recipe.between(1, 4)))
    begin = recipe.one((b'{"images": [', b"[", b'{"model": "x", "images": [', b'{"images": "'))
    return (begin + inner)[:30_000_000] + recipe.one((b"", b'""]}', b"]" * 1000))


BUILDERS: Final = (jpeg, png, tiff, webp, avif)
