"""How large the frames in an AVIF really are, from the AV1 stream itself.

The container says one size and the stream another, and decoders go by the stream: a file of a few
kilobytes that says 100×100 can make them allocate 268 million pixels. The sequence header in front of
every stream says the largest frame that may follow, and no frame may be larger, so all of them are
looked up here, of colour, alpha and whatever else the file holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_SEQUENCE_HEADER: Final = 1
# Of the whole file: many short items that all point to one long stream cost half a minute otherwise.
_MAX_BOXES: Final = 2_000
_MAX_ITEMS: Final = 2_000
_MAX_EXTENTS: Final = 2_000
_MAX_UNITS: Final = 4_000
_MAX_OVERLAP: Final = 4  # writers store what is alike once
_MAX_ZEROS: Final = 31  # of a number of variable length; decoders differ on what follows more

Box = tuple[bytes, int, int]  # type, begin, end of the content


class Unreadable(ValueError):
    """The container is not one whose streams can all be found."""


class _Bits:
    """Bits from the most significant on, as AV1 writes them."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise Unreadable("a sequence header ends early")
        return (self._value >> self._left) & ((1 << count) - 1)

    def skip_uvlc(self) -> None:
        zeros = 0
        while not self.take(1):
            zeros += 1
            if zeros > _MAX_ZEROS:
                raise Unreadable("a number in a sequence header is too long")
        self.take(zeros)


def pixels(data: bytes) -> int:
    """The pixels of all frames that decoding `data` may allocate; raise Unreadable where that is hidden."""
    found = 0
    units = iter(range(_MAX_UNITS))
    for stream in _streams(data):
        found += max(map(_frame_pixels, _sequence_headers(stream, units)), default=0)
    if not found:
        raise Unreadable("it has no sequence header")
    return found


def _streams(data: bytes) -> Iterator[bytes]:
    meta: Box | None = None
    for kind, begin, end in _boxes(data, 0, len(data)):
        if kind == b"moov":
            raise Unreadable("it has the tracks of a film")
        if kind == b"meta":
            if meta:
                raise Unreadable("it has two directories")
            meta = (kind, begin + 4, end)
    if meta is None:
        raise Unreadable("it has no directory")
    inner = {kind: (begin, end) for kind, begin, end in _boxes(data, meta[1], meta[2])}
    if b"iloc" not in inner:
        raise Unreadable("its directory has no places")
    idat = inner.get(b"idat", (0, 0))
    yield from _items(data, *inner[b"iloc"], data[idat[0] : idat[1]])


def _boxes(data: bytes, begin: int, end: int) -> Iterator[Box]:
    for _ in range(_MAX_BOXES):
        if begin + 8 > end:
            return
        size, kind, head = int.from_bytes(data[begin : begin + 4], "big"), data[begin + 4 : begin + 8], 8
        if size == 1:
            size, head = int.from_bytes(data[begin + 8 : begin + 16], "big"), 16
        elif size == 0:
            size = end - begin
        if size < head or begin + size > end:
            raise Unreadable("one of its boxes does not fit")
        yield kind, begin + head, begin + size
        begin += size
    raise Unreadable(f"it has more than {_MAX_BOXES} boxes")


def _items(data: bytes, begin: int, end: int, idat: bytes) -> Iterator[bytes]:
    """What the item location box points to, item by item."""
    at = begin

    def take(size: int) -> int:
        nonlocal at
        at += size
        if at > end:
            raise Unreadable("its list of places ends early")
        return int.from_bytes(data[at - size : at], "big")

    version, _ = take(1), take(3)
    if version > 2:
        raise Unreadable(f"its list of places is of version {version}")
    sizes = take(2)
    offset_size, length_size, base_size, index_size = (sizes >> shift & 15 for shift in (12, 8, 4, 0))
    items = take(4 if version == 2 else 2)
    if items > _MAX_ITEMS:
        raise Unreadable(f"it has more than {_MAX_ITEMS} items")
    extents_seen = bytes_seen = 0
    for _ in range(items):
        take(4 if version == 2 else 2)
        method = take(2) & 15 if version else 0
        take(2)
        base = take(base_size)
        pieces: list[bytes] = []
        for _ in range(take(2)):
            extents_seen += 1
            if extents_seen > _MAX_EXTENTS or method > 1:
                raise Unreadable("its pieces lie in an odd way")
            take(index_size if version else 0)
            place, length = base + take(offset_size), take(length_size)
            source = idat if method else data
            pieces.append(source[place : place + length if length else len(source)])
            bytes_seen += len(pieces[-1])
            if bytes_seen > _MAX_OVERLAP * len(data):
                raise Unreadable("its pieces overlap")
        yield b"".join(pieces)


def _sequence_headers(stream: bytes, units: Iterator[int]) -> Iterator[bytes]:
    """The sequence headers among the units of an AV1 stream; what is none (an Exif item) has none.

    Each unit is one of `units`, which are those of all streams.
    """
    at = 0
    for _ in units:
        if at >= len(stream):
            return
        kind, extended, sized = stream[at] >> 3 & 15, stream[at] & 4, stream[at] & 2
        at += 2 if extended else 1
        size = len(stream) - at
        if sized:
            size, at = _leb128(stream, at)
        if kind == _SEQUENCE_HEADER:
            yield stream[at : min(at + size, at + 64)]
        at += size
    raise Unreadable(f"it has more than {_MAX_UNITS} units")


def _leb128(stream: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(8):
        if at >= len(stream):
            break
        value |= (stream[at] & 0x7F) << (7 * place)
        at += 1
        if not stream[at - 1] & 0x80:
            break
    return value, at


def _frame_pixels(header: bytes) -> int:
    """The largest frame that a sequence header allows (AV1, section 5.5)."""
    bits = _Bits(header)
    bits.take(4)  # profile, still picture
    if bits.take(1):  # the short form that still pictures have
        bits.take(5)
    else:
        _skip_operating_points(bits)
    width_bits, height_bits = bits.take(4) + 1, bits.take(4) + 1
    return (bits.take(width_bits) + 1) * (bits.take(height_bits) + 1)


def _skip_operating_points(bits: _Bits) -> None:
    delay_bits = 0
    decoder_model = 0
    if bits.take(1):  # timing
        bits.take(64)
        if bits.take(1):
            bits.skip_uvlc()
        decoder_model = bits.take(1)
        if decoder_model:
            delay_bits = bits.take(5) + 1
            bits.take(42)
    initial_delay = bits.take(1)
    for _ in range(bits.take(5) + 1):
        bits.take(12)
        if bits.take(5) > 7:
            bits.take(1)
        if decoder_model and bits.take(1):
            bits.take(2 * delay_bits + 1)
        if initial_delay and bits.take(1):
            bits.take(4)
