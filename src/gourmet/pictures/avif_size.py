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
# Boxes, items, their pieces and units of the whole file: many short items that all point to one long stream
# cost half a minute otherwise.
_MAX_PARTS: Final = 4_000
_MAX_OVERLAP: Final = 4  # writers store what is alike once


class Unreadable(ValueError):
    """The container is not one whose streams can all be found."""


class _Bits:
    """Bits from the most significant on, as AV1 and its container write them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> int:
        begin, self._at = self._at, self._at + count
        if self._at > 8 * len(self._data):
            raise Unreadable("one of its tables ends early")
        value = int.from_bytes(self._data[begin // 8 : -(-self._at // 8)], "big")
        return (value >> (-self._at % 8)) & ((1 << count) - 1)


def pixels(data: bytes) -> int:
    """The pixels of all frames that decoding `data` may allocate; raise Unreadable where that is hidden."""
    parts = iter(range(_MAX_PARTS))  # those that may still come
    found = sum(
        max(map(_frame_pixels, _sequence_headers(stream, parts)), default=0)
        for stream in _streams(data, parts)
    )
    if not found:
        raise Unreadable("it has no sequence header")
    return found


def _count(parts: Iterator[int]) -> None:
    if next(parts, None) is None:
        raise Unreadable(f"it has more than {_MAX_PARTS} parts")


def _streams(data: bytes, parts: Iterator[int]) -> Iterator[bytes]:
    """What the item location box points to, item by item."""
    outer = list(_boxes(data, 0, len(data), parts))
    if any(kind == b"moov" for kind, _, _ in outer):
        raise Unreadable("it has the tracks of a film")
    directories = [(begin + 4, end) for kind, begin, end in outer if kind == b"meta"]
    if len(directories) != 1:
        raise Unreadable(f"it has {len(directories)} directories")
    inner = {kind: data[begin:end] for kind, begin, end in _boxes(data, *directories[0], parts)}
    places = _Bits(inner.get(b"iloc", b""))
    version, _ = places.take(8), places.take(24)
    if version > 2:
        raise Unreadable(f"its list of places is of version {version}")
    offset_bits, length_bits, base_bits, index_bits = (8 * places.take(4) for _ in range(4))
    id_bits = 32 if version == 2 else 16
    bytes_seen = 0
    for _ in range(places.take(id_bits)):
        _count(parts)
        places.take(id_bits)
        method = places.take(16) & 15 if version else 0
        if method > 1:
            raise Unreadable("its pieces lie in an odd way")
        source = inner.get(b"idat", b"") if method else data
        places.take(16)
        base = places.take(base_bits)
        pieces: list[bytes] = []
        for _ in range(places.take(16)):
            _count(parts)
            places.take(index_bits if version else 0)
            place, length = base + places.take(offset_bits), places.take(length_bits)
            pieces.append(source[place : place + length if length else len(source)])
            bytes_seen += len(pieces[-1])
            if bytes_seen > _MAX_OVERLAP * len(data):
                raise Unreadable("its pieces overlap")
        yield b"".join(pieces)


def _boxes(data: bytes, begin: int, end: int, parts: Iterator[int]) -> Iterator[tuple[bytes, int, int]]:
    """The type of each box, and where its content begins and ends."""
    while begin + 8 <= end:
        _count(parts)
        size, kind, head = int.from_bytes(data[begin : begin + 4], "big"), data[begin + 4 : begin + 8], 8
        if size == 1:
            size, head = int.from_bytes(data[begin + 8 : begin + 16], "big"), 16
        elif size == 0:
            size = end - begin
        if size < head or begin + size > end:
            raise Unreadable("one of its boxes does not fit")
        yield kind, begin + head, begin + size
        begin += size


def _sequence_headers(stream: bytes, parts: Iterator[int]) -> Iterator[bytes]:
    """The sequence headers among the units of an AV1 stream; what is none (an Exif item) has none."""
    at = 0
    while at < len(stream):
        _count(parts)
        kind, extended, sized = stream[at] >> 3 & 15, stream[at] & 4, stream[at] & 2
        at += 2 if extended else 1
        size = len(stream) - at
        if sized:
            size, at = _leb128(stream, at)
        if kind == _SEQUENCE_HEADER:
            yield stream[at : min(at + size, at + 64)]
        at += size


def _leb128(stream: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(stream[at : at + 8]):
        value |= (byte & 0x7F) << (7 * place)
        at += 1
        if not byte & 0x80:
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
    if bits.take(1):
        raise Unreadable("it has the timing of a film")
    initial_delay = bits.take(1)
    for _ in range(bits.take(5) + 1):
        bits.take(12)
        if bits.take(5) > 7:
            bits.take(1)
        if initial_delay and bits.take(1):
            bits.take(4)
