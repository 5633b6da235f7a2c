"""Decodes a file as uploads are decoded."""

from __future__ import annotations

from gourmet.pictures.decode import PictureError, from_base64
from gourmet.systems.food11.contract import SYSTEM


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
