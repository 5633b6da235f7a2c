"""Features of photos from a frozen vision encoder: computed once, kept in files, read in place."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from gourmet.pictures.decode import identify, is_harmless, squashed_pixels
from gourmet.pictures.header import FORMATS
from gourmet.runtime.decoding.engine import onnx_graph
from gourmet.runtime.files import written_aside
from gourmet.systems.captioner.data import CaptionedPhoto, decoded
from gourmet.systems.captioner.int8_vision import GRID
from gourmet.tasks.static_int8 import PIXELS
from gourmet.training.task import Tick

_ROWS: Final = 8
# A part has at least so much of each side.
_SMALLEST: Final = 0.75

Pixels = npt.NDArray[np.uint8]
Seen = npt.NDArray[np.float16]


def pixels(photo: bytes, side: int) -> Pixels:
    """A whole photo, squashed to a square, by the filter that ours were; PictureError or OSError."""
    if not is_harmless(photo):  # another process decodes it
        return squashed_pixels(photo, side)
    identify(photo)
    with Image.open(io.BytesIO(photo), formats=FORMATS) as image:
        return np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC))


def seen(
    body: bytes,
    data: Path,
    photos: Sequence[CaptionedPhoto],
    *,
    side: int,
    folder: Path,
    tick: Tick,
    view: int = 0,
    threads: int = 1,
) -> Seen:
    """[photos, channels, rows, columns] of the graph `body`, from a file in `folder` where there is one.

    Views from 1 on are each of a part of the photo, drawn by chance.
    """
    what = f"{hashlib.sha256(body).hexdigest()} {side} {[photo.name for photo in photos]}"
    path = folder / f"{hashlib.sha256(what.encode()).hexdigest()[:16]}-{view}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        run, found = onnx_graph(body, threads), None
        with written_aside(path) as aside:
            for first in range(0, len(photos), _ROWS):
                whole = decoded(data, photos[first : first + _ROWS], side, pixels)
                squares = [_viewed(each, view, first + at) for at, each in enumerate(whole)]
                (rows,) = run([GRID], {PIXELS: np.stack(squares)})
                if found is None:
                    shape = (len(photos), *rows.shape[1:])
                    found = _written_in_place(aside, shape)
                found[first : first + len(rows)] = rows
                tick((first + len(rows)) / len(photos), f"looked at {first + len(rows)}/{len(photos)}")
    opened: Any = np.load(path, mmap_mode="r")
    return opened  # type: ignore[no-any-return]


def _written_in_place(path: Path, shape: tuple[int, ...]) -> Seen:
    found: Seen = np.lib.format.open_memmap(path, "w+", np.float16, shape)  # type: ignore[no-untyped-call]
    return found


def _viewed(square: Pixels, view: int, photo: int) -> Pixels:
    if not view:
        return square
    side, draw = len(square), np.random.default_rng((view, photo))
    width, height = (round(side * share) for share in draw.uniform(_SMALLEST, 1.0, 2))
    left, top = draw.integers(0, side - width + 1), draw.integers(0, side - height + 1)
    part = Image.fromarray(square[top : top + height, left : left + width])
    return np.asarray(part.resize((side, side), Image.Resampling.BICUBIC))
