"""Every format and mode that is promised, and the files that people send to break a decoder."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from PIL import Image
from support.hostile import encoded, png_chunk

from gourmet.pictures import decode, header
from gourmet.systems.food11.contract import SYSTEM as FOOD

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


@pytest.mark.parametrize("mode", ["L", "1"])
def test_greys_stay_grey(mode: str) -> None:
    pixels = squared(encoded(scene().convert(mode), "PNG"))
    assert np.array_equal(pixels[..., 0], pixels[..., 1])
    assert np.array_equal(pixels[..., 0], pixels[..., 2])
    assert pixels.std() > 20


def test_a_grey_network_gets_pillow_s_grey() -> None:
    photo = scene(SIZE, SIZE)
    grey = replace(FOOD, mean=(0.5,), std=(0.5,)).tensor(np.asarray(photo)[np.newaxis], "UINT8")
    assert np.array_equal(grey[0, ..., 0], photo.convert("L"))


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
    # A box that says that the photo is larger than any may be is enough to refuse it.
    size = struct.pack(">II", 64, 64)
    large = encoded(scene(64, 64), "HEIF").replace(size, struct.pack(">II", 6000, 5000))
    assert code_of(large, squared) == "too_many_pixels"


def test_where_no_decoder_of_iphones_photos_is_installed_they_are_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    assert (
        code_of(encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)) == "animated"
    )


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
def test_large_photos_decoded_at_a_fraction_still_equal_their_twin(
    size: tuple[int, int], orientation: int
) -> None:
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


# What is not a picture, or not only a picture


def test_an_empty_body_is_refused_as_empty() -> None:
    assert code_of(b"") == "empty"


@pytest.mark.promise("SECURITY 2")
@pytest.mark.parametrize("data", [b"hello", b"\x00" * 4096, b"\xff\xd8", b"{}", bytes(range(256)) * 40])
def test_other_bytes_are_not_a_picture(data: bytes) -> None:
    assert code_of(data) == "not_a_picture"


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG drawing"),
        (b"\xef\xbb\xbf <?xml version='1.0'?><svg/>", "an XML document"),
        (b"<!DOCTYPE html><title>x</title>", "an HTML page"),
        (b"  <HTML></HTML>", "an HTML page"),
        (b"%PDF-1.7\n", "a PDF document"),
        (b"PK\x03\x04" + b"\0" * 30, "a ZIP archive"),
        (b"8BPS\0\x01", "a Photoshop file"),
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
        png_with_comment(b"<!DOCTYPE html>"),
        png_with_comment(b"%PDF-1.7"),
        encoded(scene(), "JPEG", comment=b"<sVg onload=alert(1)>"),
        encoded(scene(), "PNG") + b"PK\x05\x06" + b"\0" * 18,
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


# Small files that would cost a lot


def png_header(width: int, height: int) -> bytes:
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", size) + png_chunk(b"IDAT", b"")


@pytest.mark.parametrize("side", [5001, 10_000, 60_000])
def test_too_many_pixels_are_refused_by_the_header_alone(side: int) -> None:
    assert code_of(png_header(side, side)) == "too_many_pixels"  # there are no pixels behind it


def test_the_pixel_cap_of_each_format_is_where_it_says() -> None:
    assert decode.identify(png_header(5000, 5000)).width == 5000
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


JPEG = encoded(Image.new("RGB", (64, 64), "red"), "JPEG")
PNG = encoded(Image.new("RGB", (64, 64), "red"), "PNG")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(JPEG[:2] + b"\xff\xe3\x00\x02" * 2_000_000 + JPEG[2:], id="jpeg of empty segments"),
        pytest.param(PNG[:33] + png_chunk(b"abCd", b"") * 700_000 + PNG[33:], id="png of chunks"),
    ],
)
@pytest.mark.timeout(60)
def test_a_file_made_to_keep_the_decoder_busy_is_refused(data: bytes) -> None:
    assert code_of(data) == "too_complex"


def test_a_tiff_with_a_tile_larger_than_itself_is_refused_by_the_process_that_decodes_it() -> None:
    assert code_of(tiled_tiff(20_000), lambda data: decode.square_pixels(data, 224)) == "broken_picture"


def test_the_guards_let_a_large_profile_and_a_long_comment_pass() -> None:
    assert decode.identify(encoded(scene(), "JPEG", icc_profile=b"\xaa" * 5_000_000)).format == "JPEG"
    assert decode.identify(encoded(Image.new("L", (64, 64)), "GIF", comment=b"c" * 60_000)).format == "GIF"


SMALL = {kind: encoded(scene(48, 40), kind) for kind in decode.FORMATS}


@pytest.mark.parametrize("kind", decode.FORMATS)
def test_base64_text_of_a_picture_is_the_picture(kind: str) -> None:
    text = base64.b64encode(SMALL[kind])
    assert decode.from_base64(text) == SMALL[kind]
    assert decode.from_base64(b"data:image/any;base64," + text) == SMALL[kind]
    assert decode.from_base64(b"\n".join(text[i : i + 76] for i in range(0, len(text), 76))) == SMALL[kind]
    assert decode.from_base64(SMALL[kind]) == SMALL[kind]
