"""What hostile files were found to do, so that they do it no more, and a few hundred new ones every time."""

from __future__ import annotations

import contextlib
import struct
import time
import warnings
import zlib

import pytest
from PIL import Image
from support import hostile
from support.hostile import decode, encoded, png_chunk

from gourmet.pictures import header
from gourmet.pictures.decode import PictureError, identify, square_pixels

FILES = 200


def code_of(data: bytes) -> str:
    with pytest.raises(PictureError) as caught:
        identify(data)
    return caught.value.code


@pytest.mark.parametrize("first", range(0, FILES, 100))
def test_a_hostile_file_gives_pixels_or_a_reason(first: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(first, first + 100):
            name, data = hostile.file(number)
            assert decode(data), f"{number}: {name}"


# Found: it took 508 MB for 16,000×16,000, and with finer colours would have taken gigabytes.
@pytest.mark.parametrize("side", [1500, pytest.param(7000, marks=pytest.mark.slow)])
def test_an_avif_whose_frame_is_larger_than_it_says_costs_no_more_than_a_decoder_may(side: int) -> None:
    data = hostile.lying_avif(side)
    assert decode(data) in ("pixels", "too_complex", "broken_picture")
    assert cost_s(data) < 0.3, "it is another process that decodes it"


# Found: it took 400 MB, two bytes for each of four colours of each pixel.
def test_a_progressive_jpeg_of_four_fine_colours_is_refused_before_it_is_kept_whole() -> None:
    image = Image.new("CMYK", (64, 64))
    small = encoded(image, "JPEG", progressive=True, subsampling=0)
    frame = small.index(b"\xff\xc2")
    large = small[: frame + 5] + struct.pack(">HH", 7000, 7000) + small[frame + 9 :]
    assert code_of(large) == "too_complex"
    plain = encoded(image, "JPEG", subsampling=0)
    frame = plain.index(b"\xff\xc0")
    assert identify(plain[: frame + 5] + struct.pack(">HH", 7000, 7000) + plain[frame + 9 :]).width == 7000


# Found: it took 400 MB at 25 million pixels, sixteen bytes for each.
def test_a_webp_of_more_than_sixteen_million_pixels_is_refused() -> None:
    assert (
        code_of(encoded(Image.new("RGB", (4001, 4000)), "WEBP", lossless=True, method=0)) == "too_many_pixels"
    )


# Found: ten megabytes of them took nine seconds.
@pytest.mark.parametrize("marker", [b"\xff\x01", b"\xff\xfe\0\2", b"\xff\xda\0\2"])
def test_a_jpeg_of_markers_without_end_costs_next_to_nothing(marker: bytes) -> None:
    data = encoded(Image.new("RGB", (64, 64)), "JPEG")
    assert cost_s(data[:-2] + marker * 2_000_000) < 0.3


# Found: 37 kB, by which 1,900 items shared a stream of 1,990 headers, took half a minute to look through.
def test_an_avif_whose_items_share_a_long_stream_costs_nothing_here() -> None:
    assert cost_s(avif_with_shared_stream(items=1900, units=1990)) < 0.3


def avif_with_shared_stream(items: int, units: int) -> bytes:
    """An AVIF with so many more items, which are one stream of headers of one pixel."""
    data = encoded(Image.new("RGB", (64, 64)), "AVIF", speed=10)
    stream = b"\x0a\3\x18\0\0" * units
    places, more = data.index(b"iloc") - 4, 14 * items
    first = data[places + 16 : places + 30]
    moved = first[:6] + struct.pack(">I", int.from_bytes(first[6:10], "big") + more) + first[10:]
    at = len(data) + more + 8
    others = b"".join(struct.pack(">HHHII", 100 + n, 0, 1, at, len(stream)) for n in range(items))
    iloc = struct.pack(">I", 30 + more) + data[places + 4 : places + 14] + struct.pack(">H", 1 + items)
    meta = data.index(b"meta") - 4
    size = struct.pack(">I", int.from_bytes(data[meta : meta + 4], "big") + more)
    changed = data[:meta] + size + data[meta + 4 : places] + iloc + moved + others + data[places + 30 :]
    return changed + struct.pack(">I", 8 + len(stream)) + b"free" + stream


# Found: ten megabytes of each took three seconds.
@pytest.mark.parametrize("kind", ["gif", "jpeg"])
def test_a_picture_that_is_read_byte_by_byte_is_decoded_in_another_process(kind: str) -> None:
    if kind == "gif":
        data = encoded(Image.new("P", (8, 8)), "GIF")
        at = 13 + 3 * (2 << (data[10] & 7))
        data = data[:at] + b"\1c" * 100_000 + data[at:]
    else:
        data = encoded(Image.new("RGB", (64, 64)), "JPEG")
        data = data[:2] + (b"\xff\xfe\0\4ab" + b"\xff" * 4000) * 100 + data[2:]
    assert not header.parse_header(data).is_harmless
    assert cost_s(data) < 0.3


PHOTOSHOP = b"\xff\xed\xff\xffPhotoshop 3.0\0".ljust(65_537, b"\0") * 150


def tiny(kind: str) -> bytes:
    return encoded(Image.new("RGB", (64, 64)), kind)


def before_the_scan(data: bytes, more: bytes) -> bytes:
    scan = data.index(b"\xff\xda")
    return data[:scan] + more + data[scan:]


def large_jpeg(**options: object) -> bytes:
    """4.4 megapixels with only the first scan, or with a scan of one colour."""
    data = encoded(Image.new("RGB", (2100, 2100)), "JPEG", subsampling=0, **options)
    scan = data.index(b"\xff\xda")
    if options:
        return data[: data.index(b"\xff\xc4", scan)] + b"\xff\xd9"
    return data[:scan] + b"\xff\xda\0\x08\1" + data[scan + 5 : scan + 7] + bytes(3) + data[scan + 14 :]


# Found: 26 s for ten megabytes of profiles behind such a chunk, 25 megapixels behind a second header, 385 MB
# for a JPEG in one scan of which libjpeg keeps all coefficients.
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(tiny("PNG")[:-12], id="png without end"),
        pytest.param(tiny("PNG")[:33] + tiny("PNG")[8:], id="png of two headers"),
        pytest.param(hostile.seeds()["webp moving"], id="moving webp"),
        pytest.param(
            before_the_scan(tiny("JPEG"), b"\xff\xd9\0\3\3" + PHOTOSHOP), id="jpeg with an early end"
        ),
        pytest.param(
            before_the_scan(tiny("JPEG"), b"\xff\xf0\0\6\xff\xe1\xff\xff"), id="jpeg with another marker"
        ),
        pytest.param(large_jpeg(progressive=True), id="jpeg of one progressive scan"),
        pytest.param(large_jpeg(), id="jpeg of one scan of one colour"),
    ],
)
def test_a_file_that_its_header_does_not_prove_cheap_is_decoded_in_another_process(data: bytes) -> None:
    assert not header.parse_header(data).is_harmless
    assert cost_s(data) < 0.3


def test_a_png_chunk_with_an_odd_name_hides_nothing_behind_it() -> None:
    odd, profile = png_chunk(b"ab1d", b""), png_chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(1_040_000)))
    data = tiny("PNG")
    assert header.read_markers(data[:33] + odd + profile * 100 + data[33:]).data == data
    assert not header.parse_header(
        data[:33] + odd + encoded(Image.new("I;16", (3000, 3000)), "PNG")[8:]
    ).is_harmless


def cost_s(data: bytes) -> float:
    """Of this process; what others are asked to decode ends at their limits."""
    began = time.process_time()
    decode(data)
    return time.process_time() - began


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
def test_a_header_that_ends_anywhere_is_read_or_refused(kind: str) -> None:
    """Found: eleven bytes, of which the last begin a frame, were an error of the server."""
    data = hostile.seeds()[kind]
    for end in range(min(len(data), 2000)):
        with contextlib.suppress(PictureError):
            header.read_markers(data[:end])


# Found: four kilobytes took a minute.
@pytest.mark.parametrize("frame", sorted(set(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}))
def test_a_jpeg_of_a_coding_that_hardly_anything_writes_is_refused_by_its_header(frame: int) -> None:
    grey = encoded(Image.new("L", (64, 64)), "JPEG")
    assert code_of(grey.replace(b"\xff\xc0", bytes([0xFF, frame]), 1)) == "unsupported_format"
    assert code_of(hostile.arithmetic_jpeg()) == "unsupported_format"


# Found on the way: nothing tells that from outside. It takes the same minute, on any machine by its scans.
@pytest.mark.slow
def test_a_tiff_with_such_a_jpeg_in_it_is_ended() -> None:
    with pytest.raises(PictureError) as caught:
        square_pixels(hostile.tiff_of(hostile.arithmetic_jpeg(scans=2000)), 224)
    assert caught.value.code == "too_slow"


SHARED = struct.pack("<4sIH", b"II*\0", 8, 2000)
SHARED += b"".join(struct.pack("<HHII", 1000 + n, 7, 30_000, 8) for n in range(2000)) + bytes(7000)


RESOURCES = b"8BIM\4\4\0\0\0\0\0\0" * 5400


def jpeg_with(marker: int, body: bytes, times: int) -> bytes:
    data = encoded(Image.new("RGB", (64, 64)), "JPEG")
    segment = struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body
    return data[:2] + segment * times + data[2:]


def png_with(kind: bytes, body: bytes, times: int) -> bytes:
    data = encoded(Image.new("RGB", (64, 64)), "PNG")
    return data[:33] + png_chunk(kind, body) * times + data[33:]


# Found: 21 seconds for the first, where nothing counted them; half a second for the last two.
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(png_with(b"iCCP", b"x\0\0" + zlib.compress(bytes(1_040_000)), 9300), id="profiles"),
        pytest.param(png_with(b"zTXt", b"x\0\0" + zlib.compress(bytes(1_040_000)), 1900), id="texts"),
        pytest.param(png_with(b"eXIf", SHARED + bytes(9_000_000), 1), id="png of shared entries"),
        pytest.param(jpeg_with(0xE1, b"Exif\0\0" + SHARED, 300), id="jpeg of shared entries"),
        pytest.param(jpeg_with(0xED, b"Photoshop 3.0\0" + RESOURCES, 150), id="jpeg of resources"),
        pytest.param(
            jpeg_with(0xDB, (b"\0" + b"\1" * 64) * 1000, 150), id="jpeg of tables", marks=pytest.mark.slow
        ),
    ],
)
def test_metadata_costs_next_to_nothing(data: bytes) -> None:
    assert cost_s(data) < 0.3


def test_metadata_is_kept_from_pillow_and_its_orientation_is_still_applied() -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "maker"
    for kind in ("JPEG", "PNG"):
        extras = {"exif": exif, "icc_profile": bytes(9000)}
        head = header.read_markers(encoded(Image.new("RGB", (64, 48)), kind, **extras))
        assert head.orientation == 6
        assert b"maker" not in head.data
        assert head.data == header.read_markers(encoded(Image.new("RGB", (64, 48)), kind)).data


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("cut", [0, 9, 12, 19])
def test_a_truncated_orientation_is_ignored(order: str, cut: int) -> None:
    row = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, 8, 0)
    tiff = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, 1) + row
    assert header.exif_orientation(b"Exif\0\0" + tiff) == 8
    assert header.exif_orientation(tiff[:cut]) == 1
