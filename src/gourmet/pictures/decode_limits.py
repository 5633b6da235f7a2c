"""Files that are small and honest about their pixels, and yet cost minutes or gigabytes to decode.

Pillow and its libraries walk every segment and scan that a file has. These checks walk the same
structures without decoding anything and say why a file is refused:

    JPEG   every progressive scan visits every pixel again, and a scan can be ten bytes long
    BMP    run lengths are decoded in Python, one by one
    TIFF   one tile may be larger than the whole picture
    AVIF   the frame may be larger than the picture says that it is
"""

from __future__ import annotations

from typing import Final

from PIL import Image

from gourmet.pictures import avif_size
from gourmet.pictures.header import Header

# Ordinary progressive JPEGs have about ten scans; at 50 million pixels this leaves twenty-four.
MAX_SCAN_PIXELS: Final = 1_200_000_000
MAX_SCANS: Final = 200
# Where a JPEG has several scans its coefficients are all kept, at two bytes each.
MAX_COEFFICIENTS: Final = 120_000_000
# What an AVIF's frames may have beyond what it says, for colour and alpha each: a thumbnail.
SPARE_PIXELS: Final = 1_000_000
MAX_TILE_PIXELS: Final = 4_000_000

_TILE_WIDTH, _TILE_LENGTH = 322, 323
_BMP_RUN_LENGTHS: Final = (1, 2)


def excess(image: Image.Image, header: Header) -> str | None:
    """Why decoding the opened `image` with `header` would cost too much, or None."""
    if image.format == "JPEG":
        scans = header.scans
        if scans > MAX_SCANS:
            return f"it has more than {MAX_SCANS} scans"
        if scans * image.width * image.height > MAX_SCAN_PIXELS:
            return f"its {scans} scans would each visit {image.width * image.height / 1e6:.1f} million pixels"
        if scans > 1 and (kept := _coefficients(image)) > MAX_COEFFICIENTS:
            return f"its {scans} scans need {kept / 1e6:.0f} million coefficients at once"
    if image.format == "AVIF":
        return _avif_excess(image, header.data)
    if image.format == "BMP" and image.info.get("compression") in _BMP_RUN_LENGTHS:
        return "its pixels are run lengths"
    tags = getattr(image, "tag_v2", {}) if image.format == "TIFF" else {}
    tile = _number(tags.get(_TILE_WIDTH, 0)) * _number(tags.get(_TILE_LENGTH, 0))
    if tile > max(MAX_TILE_PIXELS, image.width * image.height):
        return f"one of its tiles has {tile / 1e6:.1f} million pixels"
    return None


def _coefficients(image: Image.Image) -> float:
    """The coefficients of all colours of a JPEG, whose colours may be of different fineness."""
    layers = getattr(image, "layer", None) or [(0, 1, 1, 0)] * 4
    cells = [max(1, across) * max(1, down) for _, across, down, *_ in layers]
    finest = max(across for _, across, *_ in layers) * max(down for _, _, down, *_ in layers)
    return float(image.width * image.height * sum(cells) / max(1, finest))


def _avif_excess(image: Image.Image, data: bytes) -> str | None:
    try:
        frames = avif_size.pixels(data)
    except avif_size.Unreadable as exc:
        return f"its size cannot be made out: {exc}"
    if frames > 2 * image.width * image.height + SPARE_PIXELS:
        return f"its frames have {frames / 1e6:.1f} million pixels, more than it says"
    return None


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
