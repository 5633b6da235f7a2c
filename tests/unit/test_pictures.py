"""Every format and mode that is promised, what a header proves, and files made to break a decoder."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import struct
import time
import warnings
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
import pillow_heif
import pytest
from PIL import Image
from support import hostile
from support.hostile import encoded, png_chunk

from gourmet.evaluation.labelled_pictures import ALL
from gourmet.pictures import decode, header
from gourmet.pictures.certainty import RankedLabels
from gourmet.pictures.decode import identify, square_pixels
from gourmet.pictures.errors import PictureError
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.served.manifest import MANIFEST
from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.food11.data import DATA

SIZE = 224


@cache
def scene(width: int = 640, height: int = 480) -> Image.Image:
    """A smooth picture with different corners, so that every turn and every colour slip shows."""
    rows, columns = np.mgrid[0:height, 0:width]
    red, green = 255 * columns / width, 255 * rows / height
    blue = np.where((columns < width / 2) & (rows < height / 2), 220, 60)
    return Image.fromarray(np.stack([red, green, blue], axis=-1).astype(np.uint8))


def code_of(data: bytes, step: Callable[[bytes], object] = decode.identify) -> str:
    with pytest.raises(decode.PictureError) as caught:
        step(data)
    assert str(caught.value)
    return caught.value.code


def squared(data: bytes) -> decode.Pixels:
    return decode.square_pixels(data, SIZE)


def difference(a: decode.Pixels, b: decode.Pixels) -> float:
    return float(np.abs(a.astype(float) - b.astype(float)).mean())


REFERENCE = squared(encoded(scene(), "PNG"))


@pytest.mark.parametrize("kind", decode.FORMATS)
def test_each_allowed_format_is_recognised_by_its_content_and_looks_the_same(kind: str) -> None:
    data = encoded(scene(), kind)
    assert decode.identify(data) == decode.PictureInfo(kind, 640, 480)
    # A GIF keeps 256 colours, so it may differ the most.
    assert difference(squared(data), REFERENCE) < (6 if kind == "GIF" else 3)


def test_the_square_is_the_middle_of_the_photo_and_not_the_whole_of_it_squeezed() -> None:
    wide = Image.new("RGB", (900, 300), "red")
    wide.paste((0, 0, 255), (300, 0, 600, 300))
    inner = squared(encoded(wide, "PNG"))[:, 2:-2]  # the filter looks one pixel beyond the square
    assert np.all(inner == (0, 0, 255))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I;16"])
def test_each_mode_of_a_tiff_or_png_becomes_three_channels(mode: str) -> None:
    kind = "PNG" if mode in ("P", "PA", "LA") else "TIFF"
    source = Image.new(mode, (300, 200)) if mode in ("PA", "LAB", "I;16") else scene(300, 200).convert(mode)
    if mode == "PA":
        source = Image.new("P", (300, 200))
        data = encoded(source, kind, transparency=bytes([0, 255]))
    else:
        data = encoded(source, kind)
    assert squared(data).shape == (SIZE, SIZE, 3)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_prints_keep_their_colours(kind: str) -> None:
    data = encoded(scene().convert("CMYK"), kind)
    assert difference(squared(data), REFERENCE) < 4


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_greys_are_scaled_and_not_clipped(kind: str) -> None:
    eight = np.asarray(scene().convert("L"))
    deep = Image.fromarray(eight.astype(np.uint16) * 257)
    assert deep.mode == "I;16"
    assert difference(squared(encoded(deep, kind)), squared(encoded(scene().convert("L"), "PNG"))) < 1
    assert squared(encoded(Image.new("I;16", (64, 64), 65535), kind)).min() == 255


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_32_bit_greys_are_refused_because_their_white_is_unknown(kind: type) -> None:
    deep = encoded(Image.fromarray(np.full((300, 300), 100, dtype=kind)), "TIFF")
    with pytest.raises(decode.PictureError, match="this TIFF has 32 bits a pixel") as refused:
        squared(deep)
    assert refused.value.code == "unsupported_format"


def test_a_photo_of_an_iphone_is_turned_upright_in_the_process_that_can_be_ended() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    sideways = encoded(scene().transpose(Image.Transpose.ROTATE_90), "HEIF", quality=90, exif=exif.tobytes())
    assert not header.parse_header(sideways).is_harmless
    assert decode.identify(sideways).format == "HEIF"
    assert difference(squared(sideways), REFERENCE) < 4


def test_a_heic_photo_larger_than_any_may_be_is_refused() -> None:
    size = struct.pack(">II", 64, 64)
    large = encoded(scene(64, 64), "HEIF").replace(size, struct.pack(">II", 6000, 5000))
    assert code_of(large, squared) == "too_many_pixels"


def test_without_a_decoder_of_iphones_photos_they_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "FORMATS", header.FORMATS[:-1])
    with pytest.raises(decode.PictureError, match=r"HEIC .* save it as a JPEG") as refused:
        decode.identify(encoded(scene(), "HEIF"))
    assert refused.value.code == "unsupported_format"


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "AVIF", "HEIF"])
def test_transparent_pixels_are_shown_on_white(kind: str) -> None:
    clear = Image.new("RGBA", (300, 300), (200, 0, 0, 0))
    assert squared(encoded(clear, kind)).min() >= 254
    half = squared(encoded(Image.new("RGBA", (300, 300), (0, 0, 0, 128)), kind))
    assert abs(int(half.mean()) - 127) <= 2


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_a_transparent_colour_of_a_png_is_shown_on_white(mode: str) -> None:
    colour: object = (0, 0, 0) if mode == "RGB" else 0
    data = encoded(Image.new(mode, (300, 300), 0), "PNG", transparency=colour)
    assert np.all(squared(data) == 255)


def test_the_first_frame_of_a_gif_counts_and_its_clear_colour_is_white() -> None:
    frames = [Image.new("RGB", (100, 100), colour) for colour in ("red", "blue", "lime")]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=50)
    assert np.all(squared(moving) == (255, 0, 0))
    clear = encoded(Image.new("P", (100, 100), 0), "GIF", transparency=0)
    assert np.all(squared(clear) == 255)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "AVIF"])
def test_other_moving_pictures_are_refused(kind: str) -> None:
    frames = [Image.new("RGB", (64, 64), colour) for colour in ("red", "blue")]
    moving = encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)
    assert code_of(moving) == "animated"


TURNS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,  # stored turned the other way round, so that 6 turns it upright
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize(
    ("kind", "orientation"),
    [*(("JPEG", turn) for turn in TURNS), *((kind, 6) for kind in ("PNG", "WEBP", "TIFF", "AVIF"))],
)
def test_a_turned_photo_equals_its_upright_twin(kind: str, orientation: int) -> None:
    turn = TURNS[orientation]
    stored = scene() if turn is None else scene().transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert difference(squared(encoded(stored, kind, exif=exif)), REFERENCE) < 3


@pytest.mark.parametrize(("size", "orientation"), [((2604, 1952), 6), ((1003, 751), 3)])
def test_large_photos_decoded_at_a_fraction_equal_their_twin(size: tuple[int, int], orientation: int) -> None:
    stored = scene(*size).transpose(TURNS[orientation] or Image.Transpose.ROTATE_180)
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert difference(squared(encoded(stored, "JPEG", exif=exif)), REFERENCE) < 3


def test_a_phone_s_picture_with_a_second_one_behind_it_is_the_first_one() -> None:
    data = encoded(scene(), "MPO", save_all=True, append_images=[Image.new("RGB", (640, 480), "black")])
    assert decode.identify(data).format == "JPEG"
    assert difference(squared(data), REFERENCE) < 3


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_a_nonsensical_orientation_is_ignored(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert difference(squared(encoded(scene(), "JPEG", exif=exif)), REFERENCE) < 3


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"Exif\0\0" + b"\xff" * 60_000]
)
def test_unreadable_metadata_does_not_spoil_a_photo(exif: bytes) -> None:
    assert difference(squared(encoded(scene(), "JPEG", exif=exif)), REFERENCE) < 3


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (223, 225)])
def test_tiny_and_narrow_pictures_are_enlarged(size: tuple[int, int]) -> None:
    assert squared(encoded(Image.new("RGB", size, "lime"), "PNG")).shape == (SIZE, SIZE, 3)


def test_an_empty_body_is_refused_as_empty() -> None:
    assert code_of(b"") == "empty"


@pytest.mark.promise("SECURITY 2")
@pytest.mark.parametrize("data", [b"hello", b"\x00" * 4096, b"\xff\xd8", b"{}", bytes(range(256)) * 40])
def test_other_bytes_are_not_a_picture(data: bytes) -> None:
    assert code_of(data) == "not_a_picture"


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"\xef\xbb\xbf <?xml version='1.0'?><svg/>", "an XML document"),
        (b"<!DOCTYPE html><title>x</title>", "an HTML page"),
        (b"  <HtML></HTML>", "an HTML page"),
        (b"%PDF-1.7\n", "a PDF document"),
        (b"PK\x03\x04" + b"\0" * 30, "a ZIP archive"),
    ],
)
def test_a_known_format_that_is_refused_is_called_by_its_name(data: bytes, named: str) -> None:
    assert code_of(data) == "unsupported_format"
    with pytest.raises(decode.PictureError, match=named):
        decode.identify(data)


@pytest.mark.parametrize("kind", decode.FORMATS)
def test_a_truncated_picture_is_broken(kind: str) -> None:
    noisy = Image.fromarray(np.random.default_rng(1).integers(0, 255, (200, 300, 3), dtype=np.uint8))
    data = encoded(noisy, kind)
    for share in (0.02, 0.3, 0.7):
        assert code_of(data[: max(16, int(len(data) * share))], squared) == "broken_picture", share


def png_with_comment(text: bytes) -> bytes:
    plain = encoded(Image.new("RGB", (300, 300), "red"), "PNG")
    return plain[:33] + png_chunk(b"tEXt", b"Comment\0" + text) + plain[33:]


@pytest.mark.parametrize(
    "data",
    [
        png_with_comment(b"<script>alert(1)</script>"),
        png_with_comment(b"%PDF-1.7"),
        encoded(scene(), "JPEG", comment=b"<sVg onload=alert(1)>"),
        encoded(scene(), "JPEG") + b"Rar!\x1a\x07\x01\0",
        encoded(scene(), "PNG") + b" " * 9000 + b"<?PHP system($_GET[0]);",
        encoded(scene(), "JPEG", comment=b" " * 50_000 + b"<?php system($_GET[0]);"),
        encoded(scene(), "BMP") + b"PK\x05\x06" + b"\0" * 18,
        b"GIF89a/*" + encoded(Image.new("P", (9, 9)), "GIF")[8:] + b"%PDF-1.4",
    ],
)
def test_a_picture_that_is_also_another_file_type_is_refused(data: bytes) -> None:
    assert code_of(data) == "mixed_file"


def test_trailing_bytes_of_cameras_are_allowed() -> None:
    video = b"\0\0\0\x18ftypmp42" + bytes(np.random.default_rng(2).integers(0, 255, 200_000, dtype=np.uint8))
    assert decode.identify(encoded(scene(), "JPEG") + video).format == "JPEG"


def png_header(width: int, height: int) -> bytes:
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", size) + png_chunk(b"IDAT", b"")


def test_the_pixel_cap_of_each_format_is_where_it_says() -> None:
    assert decode.identify(png_header(5000, 5000)).width == 5000
    assert code_of(png_header(5001, 5001)) == "too_many_pixels"  # it has no pixels
    small = encoded(Image.new("L", (16, 16)), "JPEG")
    frame = small.index(b"\xff\xc0")

    def sized(side: int) -> bytes:
        return small[: frame + 5] + struct.pack(">HH", side, side) + small[frame + 9 :]

    assert decode.identify(sized(8000)).width == 8000  # a phone's 50 megapixels are 8192×6144
    assert code_of(sized(8001)) == "too_many_pixels"


def test_the_scans_of_a_jpeg_are_counted_where_more_than_one_is_decoded() -> None:
    progressive = encoded(scene(), "JPEG", progressive=True)
    assert header.read_markers(progressive).scans == 10
    assert squared(progressive).shape == (SIZE, SIZE, 3)
    again = progressive[progressive.rindex(b"\xff\xda") : -2] * 200
    assert header.read_markers(progressive[:-2] + again + b"\xff\xd9").scans == 210
    assert header.read_markers(encoded(scene(), "JPEG") + again).scans == 1


def tiled_tiff(side: int) -> bytes:
    tile = zlib.compress(b"\0" * 1000)
    tags = [(256, 100), (257, 100), (258, 8), (259, 8), (262, 1), (277, 1), (322, side), (323, side)]
    tags += [(324, 8 + 2 + 12 * 10 + 4), (325, len(tile))]
    rows = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + rows + b"\0" * 4 + tile


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.timeout(60)
def test_a_file_made_to_keep_the_decoder_busy_is_refused(kind: str) -> None:
    plain = encoded(Image.new("RGB", (64, 64), "red"), kind)
    at, part = (
        (2, b"\xff\xe3\x00\x02" * 2_000_000) if kind == "JPEG" else (33, png_chunk(b"abCd", b"") * 700_000)
    )
    assert code_of(plain[:at] + part + plain[at:]) == "too_complex"


def test_a_tiff_with_a_tile_larger_than_itself_is_refused_by_the_process_that_decodes_it() -> None:
    assert code_of(tiled_tiff(20_000), squared) == "broken_picture"


def test_the_guards_let_a_large_profile_and_a_long_comment_pass() -> None:
    assert decode.identify(encoded(scene(), "JPEG", icc_profile=b"\xaa" * 5_000_000)).format == "JPEG"
    assert decode.identify(encoded(Image.new("L", (64, 64)), "GIF", comment=b"c" * 60_000)).format == "GIF"


@pytest.mark.parametrize("kind", decode.FORMATS)
def test_base64_text_of_a_picture_is_the_picture(kind: str) -> None:
    photo = encoded(scene(48, 40), kind)
    text = base64.b64encode(photo)
    lines = b"\n".join(text[i : i + 76] for i in range(0, len(text), 76))
    for sent in (text, b"data:image/any;base64," + text, lines, photo):
        assert decode.from_base64(sent) == photo
    assert decode.from_base64(b"abcd$efg") == b"abcd$efg", "which is not base64"


# What a header proves
def red(kind: str, **options: object) -> bytes:
    return encoded(Image.new("RGB", (64, 64), "red"), kind, **options)


PLAIN, PROGRESSIVE = red("JPEG"), red("JPEG", progressive=True)


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
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = png_chunk(b"IHDR", size) + png_chunk(b"IDAT", b"") + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


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
        pytest.param(jpeg(2000, 2000, PROGRESSIVE), jpeg(2000, 2001, PROGRESSIVE), id="progressive"),
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


def test_a_small_picture_is_not_enlarged() -> None:
    assert decode.whole_pixels(PLAIN, 100).shape == (64, 64, 3)


def test_the_shorter_side_is_resized_to_the_edge_as_torchvision_does_it() -> None:
    """The longer side loses its fraction: 335 · 50 / 101 is 165.8."""
    (left, top, right, bottom), size = decode.Frame("square", 40, edge=50).box_and_size(101, 335)
    assert size == (40, 40)
    assert (left, right) == pytest.approx((5 * 101 / 50, 45 * 101 / 50))
    assert (top, bottom) == pytest.approx((62 * 335 / 165, 102 * 335 / 165))


# Hostile files
FILES = 200


def cost_s(data: bytes) -> float:
    """Of this process; what others are asked to decode ends at their limits."""
    began = time.process_time()
    hostile.decode(data)
    return time.process_time() - began


@pytest.mark.parametrize("first", range(0, FILES, 100))
def test_a_hostile_file_gives_pixels_or_a_reason(first: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(first, first + 100):
            name, data = hostile.file(number)
            assert hostile.decode(data), f"{number}: {name}"


# Found: it took 508 MB for 16,000×16,000, and with finer colours would have taken gigabytes.
@pytest.mark.parametrize("side", [1500, pytest.param(7000, marks=pytest.mark.slow)])
def test_an_avif_whose_frame_is_larger_than_it_says_costs_no_more_than_a_decoder_may(side: int) -> None:
    data = hostile.lying_avif(side)
    assert hostile.decode(data) in ("pixels", "too_complex", "broken_picture")
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
    large = encoded(Image.new("RGB", (4001, 4000)), "WEBP", lossless=True, method=0)
    assert code_of(large) == "too_many_pixels"


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


# Found: 26 s for ten megabytes of profiles behind such a chunk, 385 MB for a JPEG in one scan of which
# libjpeg keeps all coefficients.
@pytest.mark.parametrize(
    "data",
    [
        before_the_scan(tiny("JPEG"), b"\xff\xd9\0\3\3" + PHOTOSHOP),
        before_the_scan(tiny("JPEG"), b"\xff\xf0\0\6\xff\xe1\xff\xff"),
        large_jpeg(progressive=True),
        large_jpeg(),
    ],
    ids=["an early end", "another marker", "one progressive scan", "one scan of one colour"],
)
def test_a_file_that_its_header_does_not_prove_cheap_is_decoded_in_another_process(data: bytes) -> None:
    assert not header.parse_header(data).is_harmless
    assert cost_s(data) < 0.3


def test_a_png_chunk_with_an_odd_name_hides_nothing_behind_it() -> None:
    odd, profile = png_chunk(b"ab1d", b""), png_chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(1_040_000)))
    data = tiny("PNG")
    assert header.read_markers(data[:33] + odd + profile * 100 + data[33:]).data == data
    deep = encoded(Image.new("I;16", (3000, 3000)), "PNG")[8:]
    assert not header.parse_header(data[:33] + odd + deep).is_harmless


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
def test_a_header_that_ends_anywhere_is_read_or_refused(kind: str) -> None:
    """Found: eleven bytes, of which the last begin a frame, were an error of the server."""
    data = hostile.seeds()[kind]
    for end in range(min(len(data), 2000)):
        with contextlib.suppress(PictureError):
            header.read_markers(data[:end])


# Found: four kilobytes took a minute.
def test_a_jpeg_of_arithmetic_coding_is_refused_by_its_header() -> None:
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
    segment = struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body
    data = tiny("JPEG")
    return data[:2] + segment * times + data[2:]


def png_with(kind: bytes, body: bytes, times: int) -> bytes:
    data = tiny("PNG")
    return data[:33] + png_chunk(kind, body) * times + data[33:]


# Found: 21 seconds for the first, where nothing counted them; half a second for the last two.
@pytest.mark.parametrize(
    "data",
    [
        png_with(b"iCCP", b"x\0\0" + zlib.compress(bytes(1_040_000)), 9300),
        png_with(b"zTXt", b"x\0\0" + zlib.compress(bytes(1_040_000)), 1900),
        png_with(b"eXIf", SHARED + bytes(9_000_000), 1),
        jpeg_with(0xE1, b"Exif\0\0" + SHARED, 300),
        jpeg_with(0xED, b"Photoshop 3.0\0" + RESOURCES, 150),
        pytest.param(jpeg_with(0xDB, (b"\0" + b"\1" * 64) * 1000, 150), marks=pytest.mark.slow),
    ],
    ids=["profiles", "texts", "png of shared entries", "jpeg of shared entries", "resources", "tables"],
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


# One photo in several forms
SERVED: Final = DEFAULT_REPOSITORY / "food_classifier_int8" / "1"
COUNT: Final = 60
MIN_SAME: Final = 0.95


def saved(image: Image.Image, kind: str, **how: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **how)
    return buffer.getvalue()


def heic(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    pillow_heif.from_pillow(image).save(buffer, quality=85)
    return buffer.getvalue()


def resized(image: Image.Image, scale: float) -> Image.Image:
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)


FORMS: Final[dict[str, Callable[[Image.Image], bytes]]] = {
    "JPEG": lambda image: saved(image, "JPEG", quality=90),
    "WebP": lambda image: saved(image, "WEBP", quality=85),
    "AVIF": lambda image: saved(image, "AVIF", quality=80),
    "HEIC": heic,
    "three times as large, JPEG": lambda image: saved(resized(image, 3), "JPEG", quality=85),
}


@pytest.mark.nightly
def test_photos_have_the_same_class_and_verdict_in_five_forms(food_photos: Path) -> None:
    session = onnxruntime.InferenceSession(SERVED / "model.onnx")
    chosen = json.loads((SERVED / MANIFEST).read_text())["calibration"]

    def verdict(data: bytes) -> str:
        (row,) = session.run(None, {"image": SYSTEM.pixels(data)[None]})[0]
        probabilities = tuple(map(float, row / row.sum()))
        relevance = float(row.sum())
        answer = RankedLabels(
            SYSTEM, SYSTEM.labels, probabilities, chosen["threshold"], relevance, chosen["subject_threshold"]
        )
        return answer.label if answer.relevant else "not food"

    photos = DATA.listing(food_photos / "sharp_train.zip", ALL)
    photos = photos[:: len(photos) // COUNT][:COUNT]
    same = []
    for data in DATA.read(photos):
        image = Image.open(io.BytesIO(data)).convert("RGB")
        same.append([verdict(form(image)) == verdict(saved(image, "PNG")) for form in FORMS.values()])
    shares = dict(zip(FORMS, np.mean(same, axis=0).round(3), strict=True))
    assert min(shares.values()) >= MIN_SAME, shares
