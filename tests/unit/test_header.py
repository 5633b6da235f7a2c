"""What a header proves cheap, at its exact limits, and what is read of it."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from PIL import Image

from gourmet.pictures import decode, header
from gourmet.pictures.errors import PictureError


def encoded(kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, kind, **options)
    return file.getvalue()


PLAIN, PROGRESSIVE = encoded("JPEG"), encoded("JPEG", progressive=True)


def jpeg(width: int, height: int, data: bytes = PLAIN, pad: int = 0) -> bytes:
    """A JPEG whose header says another size, with so many bytes of pixels more."""
    frame = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    sized = data[: frame + 5] + struct.pack(">HH", height, width) + data[frame + 9 :]
    return sized[:-2] + bytes(pad) + sized[-2:]


def with_tables(size: int) -> bytes:
    """A JPEG with tables of quantisation, so that the part before its scan has this size."""
    more = size - PLAIN.index(b"\xff\xda")
    return PLAIN[:2] + b"\xff\xdb" + struct.pack(">H", more - 2) + bytes(more - 4) + PLAIN[2:]


def scans(count: int) -> bytes:
    """A progressive JPEG of four megapixels with so many scans."""
    data = jpeg(2000, 2000, PROGRESSIVE)
    more = count - data.count(b"\xff\xda")
    return data[:-2] + b"\xff\xda" * more + data[-2:]


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def webp(kind: bytes, head: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + kind + bytes(4) + head.ljust(10, b"\0")


def extended(width: int, height: int, flags: int = 0) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp(b"VP8X", bytes([flags, 0, 0, 0]) + sides)


def lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + (width - 1 | height - 1 << 14).to_bytes(4, "little"))


def lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", bytes(6) + struct.pack("<HH", width, height))


@pytest.mark.parametrize(
    ("harmless", "too_much"),
    [
        pytest.param(jpeg(8000, 6250, pad=200_000), jpeg(8000, 6251, pad=200_000), id="50 million visits"),
        pytest.param(jpeg(256, len(PLAIN)), jpeg(256, len(PLAIN) + 1), id="256 pixels a byte"),
        pytest.param(
            jpeg(2000, 2000, PROGRESSIVE), jpeg(2000, 2001, PROGRESSIVE), id="4 million, progressive"
        ),
        pytest.param(scans(12), scans(13), id="scans of 4 million"),
        pytest.param(with_tables(16_384), with_tables(16_385), id="16 kB of tables"),
        pytest.param(PLAIN, PLAIN[:2] + PLAIN[PLAIN.index(b"\xff\xc0") :][:19] + PLAIN[2:], id="two frames"),
        pytest.param(png(2000, 2000), png(2000, 2001), id="png of 4 million"),
        pytest.param(png(20, 20), png(20, 20)[:-12], id="png without end"),
        pytest.param(png(20, 20), png(20, 20)[:33] + png(20, 20)[8:], id="png of two headers"),
        pytest.param(extended(2000, 2000), extended(2000, 2001), id="extended webp of 4 million"),
        pytest.param(extended(20, 20), extended(20, 20, flags=2), id="moving webp"),
        pytest.param(lossless(2000, 2000), lossless(2000, 2001), id="lossless webp of 4 million"),
        pytest.param(lossy(2000, 2000), lossy(2000, 2001), id="webp of 4 million"),
    ],
)
def test_a_header_proves_a_picture_cheap_up_to_a_limit(harmless: bytes, too_much: bytes) -> None:
    assert header.read_markers(harmless).is_harmless
    assert not header.read_markers(too_much).is_harmless


def test_a_jpeg_may_have_two_thousand_segments() -> None:
    segments = sum(1 for _ in header._header_segments(PLAIN[: PLAIN.index(b"\xff\xda")]))
    data = PLAIN[:2] + b"\xff\xe3\0\2" * (1999 - segments) + PLAIN[2:]
    assert header.read_markers(data).data == PLAIN
    with pytest.raises(PictureError, match="more than 2000 segments"):
        header.read_markers(data[:2] + b"\xff\xe3\0\2" + data[2:])


@pytest.mark.parametrize("frame", [0xC3, 0xC5, 0xCF])
def test_a_jpeg_of_another_coding_is_refused(frame: int) -> None:
    with pytest.raises(PictureError, match=f"has the coding SOF{frame - 0xC0}"):
        header.read_markers(PLAIN.replace(b"\xff\xc0", bytes([0xFF, frame]), 1))


def test_a_known_format_is_named_in_any_case() -> None:
    with pytest.raises(PictureError, match="this is an HTML page"):
        header.parse_header(b"\n <HtmL>")


def exif(orientation: int, order: str) -> bytes:
    head = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0" + head + struct.pack(f"{order}IH", 8, 1) + entry + bytes(4)


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_first_orientation_of_a_jpeg_counts(order: str) -> None:
    segments = [
        b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data for data in (exif(6, order), exif(3, order))
    ]
    assert header.read_markers(PLAIN[:2] + b"".join(segments) + PLAIN[2:]).orientation == 6


def test_an_archive_behind_a_large_photo_is_refused_and_one_amid_its_pixels_is_chance() -> None:
    end = b"PK\x05\x06\0\0"
    large = jpeg(64, 64, pad=200_000)
    with pytest.raises(PictureError, match="also a document, a program or an archive"):
        decode.identify(large + end + bytes(100))
    assert decode.identify(large[:100_000] + end + large[100_000:]).format == "JPEG"


def test_a_small_picture_is_not_enlarged_and_text_that_is_not_base64_stays() -> None:
    assert decode.whole_pixels(PLAIN, 100).shape == (64, 64, 3)
    assert decode.from_base64(b"abcd$efg") == b"abcd$efg"


def test_the_shorter_side_is_resized_to_the_edge_as_torchvision_does_it() -> None:
    """The longer side loses its fraction: 335 · 50 / 101 is 165.8."""
    (left, top, right, bottom), size = decode.Frame("square", 40, edge=50).box_and_size(101, 335)
    assert size == (40, 40)
    assert (left, right) == pytest.approx((5 * 101 / 50, 45 * 101 / 50))
    assert (top, bottom) == pytest.approx((62 * 335 / 165, 102 * 335 / 165))
