"""What hostile files were found to do, so that they do it no more, and a few hundred new ones every time."""

from __future__ import annotations

import io
import struct
import warnings

import pytest
from hard import hostile
from hard.decoding import decode
from PIL import Image

from gourmet.systems import avif_size
from gourmet.systems.pictures import PictureError, identify

FILES = 400


def code_of(data: bytes) -> str:
    with pytest.raises(PictureError) as caught:
        identify(data)
    return caught.value.code


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("first", range(0, FILES, 100))
def test_a_hostile_file_gives_pixels_or_a_reason(first: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(first, first + 100):
            name, data = hostile.file(number)
            assert not decode(data).startswith("BROKE"), f"{number}: {name}"


def test_the_same_number_is_the_same_file_and_others_differ() -> None:
    assert hostile.file(7) == hostile.file(7)
    assert hostile.request(7) == hostile.request(7)
    assert len({hostile.file(number)[1] for number in range(300)}) > 270


# Found: it took 508 MB for 16,000×16,000, and with finer colours would have taken gigabytes.
@pytest.mark.parametrize("side", [1500, 7000])
def test_an_avif_whose_frame_is_larger_than_it_says_is_refused(side: int) -> None:
    assert code_of(hostile.lying_avif(side)) == "too_complex"


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


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
@pytest.mark.parametrize("size", [(1, 1), (64, 33), (1000, 200)])
def test_the_frames_of_an_honest_avif_are_as_large_as_it_says(mode: str, size: tuple[int, int]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.new(mode, size), "AVIF", speed=10, exif=exif, xmp=b"<x:xmpmeta/>")
    assert avif_size.pixels(data) == size[0] * size[1] * (2 if mode == "RGBA" else 1)


@pytest.mark.parametrize("cut", [0, 20, 60, 200])
def test_an_avif_whose_streams_cannot_be_found_is_unreadable(cut: int) -> None:
    with pytest.raises(avif_size.Unreadable):
        avif_size.pixels(encoded(Image.new("RGB", (64, 64)), "AVIF")[:cut])
