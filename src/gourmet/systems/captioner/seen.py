"""What the frozen part of a vision encoder sees of each photo: computed once, kept in files, read in place."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from gourmet.runtime.files import written_aside
from gourmet.systems.captioner.data import CaptionedPhoto, read
from gourmet.systems.captioner.vision import GridVision, normalised
from gourmet.training.muon import half_is_fast
from gourmet.training.task import Tick

_ROWS: Final = 16
# A view that is not of the whole photo has at least so much of each side.
_SMALLEST: Final = 0.75

Seen = npt.NDArray[np.float16]


def pixels(photo: bytes, side: int) -> npt.NDArray[np.uint8]:
    """A whole photo, squashed to a square."""
    with Image.open(io.BytesIO(photo)) as image:
        return np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC))


def seen(
    vision: GridVision,
    data: Path,
    photos: Sequence[CaptionedPhoto],
    *,
    view: int,
    stages: int,
    side: int,
    folder: Path,
    tick: Tick,
) -> Seen:
    """[photos, channels, rows, columns], from a file in `folder` where one of the same weights is there.

    Of the views each second is a mirror's; those from 2 on are each of a part of the photo, drawn by chance.
    """
    path = folder / f"{_key(vision, photos, stages, side)}-{view}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        found: Seen | None = None
        with written_aside(path) as aside:
            for first, rows in _computed(vision, data, photos, view, stages, side):
                if found is None:
                    shape = (len(photos), *rows.shape[1:])
                    found = np.lib.format.open_memmap(aside, "w+", np.float16, shape)
                found[first : first + len(rows)] = rows
                tick((first + len(rows)) / len(photos), f"looked at {first + len(rows)}/{len(photos)}")
            assert found is not None
            found.flush()
    opened: Seen = np.load(path, mmap_mode="r")
    return opened


def _computed(
    vision: GridVision, data: Path, photos: Sequence[CaptionedPhoto], view: int, stages: int, side: int
) -> Iterator[tuple[int, Seen]]:
    device = next(vision.parameters()).device
    for first in range(0, len(photos), _ROWS):
        files = read(data, photos[first : first + _ROWS])
        squares = [_viewed(pixels(file, side), view, first + place) for place, file in enumerate(files)]
        pictures = normalised(torch.from_numpy(np.stack(squares))).to(device)
        half = half_is_fast(device)
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=half):
            found = vision.seen(pictures.to(memory_format=torch.channels_last), stages)
        yield first, found.float().cpu().numpy().astype(np.float16)


def _viewed(square: npt.NDArray[np.uint8], view: int, photo: int) -> npt.NDArray[np.uint8]:
    side = len(square)
    if view >= 2:
        draw = np.random.default_rng((view // 2, photo))
        width, height = (round(side * share) for share in draw.uniform(_SMALLEST, 1.0, 2))
        left, top = draw.integers(0, side - width + 1), draw.integers(0, side - height + 1)
        part = square[top : top + height, left : left + width]
        square = np.asarray(Image.fromarray(part).resize((side, side), Image.Resampling.BICUBIC))
    return np.ascontiguousarray(square[:, ::-1]) if view % 2 else square


def _key(vision: GridVision, photos: Sequence[CaptionedPhoto], stages: int, side: int) -> str:
    digest = hashlib.sha256(f"{stages} {side} {[photo.name for photo in photos]}".encode())
    for part in (vision.conv1, *vision.stages(0, stages)):
        for tensor in part.state_dict().values():
            digest.update(tensor.cpu().contiguous().numpy())
    return digest.hexdigest()[:16]
