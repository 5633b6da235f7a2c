"""The digits' contract: labels, ink in, probabilities out.

A digit is laid out as MNIST lays it out: white ink on black, the longer side 20 pixels, its centre
of mass in the middle of 28×28. Which of a picture's two colours is ink is decided by its border:
what the outermost pixels mostly are is background, and ink is what differs from it, to the side that
differs more. A picture of 28×28 that is laid out like this already comes through as it is.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from gourmet.pictures.certainty import Floats
from gourmet.pictures.classifier import EXAMPLE_SIZE, PictureClassifier
from gourmet.pictures.decode import PictureError, Pixels, Size, whole_pixels
from gourmet.pictures.header import Header

INPUT_SIZE: Final = 28
_INK_SIZE: Final = 20
# Ink of about the right size is moved and not resampled, which would only blur it.
_RIGHT_SIZES: Final = range(17, 24)
_DECODED_SIZE: Final = 280
# The ten digits side by side, drawn by tests/support/drawn_digits.py.
_DRAWN: Final = Path(__file__).with_name("digits.png")
# The least difference from the background, of 255, that counts as ink.
_FAINTEST_INK: Final = 24
# Ink weaker than this share of the strongest ink is the noise of a photo or a JPEG.
_NOISE: Final = 0.2

# Strokes nearer than this share of the ink's height belong to one digit. A stroke beside it that is less than
# half as tall is a flag, a bar or a dot; strokes with less than this share of the ink are specks.
_GAP: Final = 0.07
_SPECKS: Final = 0.12
# Columns a row by which people write to the left or to the right.
_SLANTS: Final = (0.0, -0.25, 0.25, 0.5)

_GREY: Final = np.array([0.299, 0.587, 0.114], dtype=np.float32)


@dataclass(frozen=True)
class DigitClassifier(PictureClassifier):
    """A classifier of ink on paper, whose pixels are grey and laid out as MNIST's."""

    def examples(self, count: int, seed: int, size: Size = EXAMPLE_SIZE) -> Sequence[bytes]:
        """Return the ten digits in turn, randomly rotated and stretched. `size` has no effect."""
        random = np.random.default_rng(seed)
        with Image.open(_DRAWN) as picture:
            digits = np.hsplit(np.asarray(picture), len(self.labels))
        drawn = [Image.fromarray(digits[number % len(digits)]) for number in range(count)]
        turned = [digit.rotate(random.uniform(-20, 20)) for digit in drawn]
        return [png(digit.resize(tuple(random.integers(140, 281, 2)))) for digit in turned]

    def pixels(self, data: bytes | Header) -> Pixels:
        """Decode a picture of one digit as uint8 [28, 28], laid out; raise PictureError."""
        grey = whole_pixels(data, _DECODED_SIZE) @ _GREY
        ink = _ink(grey)
        if ink.max() < _FAINTEST_INK:
            raise PictureError("blank", "this picture is of one colour: draw a digit on it")
        if shows_several(ink):
            raise PictureError("several_digits", "there are several digits on this picture: draw one")
        return layout(ink)

    def nothing(self, count: int, seed: int) -> Sequence[bytes]:
        """Return made-up pictures, without those that are refused."""
        return [picture for picture in super().nothing(2 * count, seed) if self.is_read(picture)][:count]

    def is_read(self, picture: bytes) -> bool:
        """Return False for a picture that is refused before the network sees it."""
        try:
            self.pixels(picture)
        except PictureError:
            return False
        return True

    def normalise(self, image: Pixels) -> Floats:
        """Convert uint8 [..., 28, 28] to the network's float32 [..., 1, 28, 28] from 0 to 1."""
        return np.expand_dims(image.astype(np.float32) / np.float32(255.0), -3)


def png(picture: Image.Image) -> bytes:
    """Encode a picture as a client could send it."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def shows_several(ink: npt.NDArray[Any]) -> bool:
    """Return True if a straight line, upright or slanting, passes between two marks as tall as digits."""
    rows, columns = np.nonzero(_strong(ink))
    for slant in _SLANTS:
        positions = np.round(columns + slant * rows).astype(int)
        inked = np.unique(positions)
        for last in inked[:-1][np.diff(inked) > 1 + _GAP * np.ptp(rows)]:
            sides = (rows[positions <= last], rows[positions > last])
            smaller, larger = sorted(map(len, sides))
            lower, taller = sorted(map(np.ptp, sides))
            if 2 * lower >= taller and smaller > _SPECKS * larger:
                return True
    return False


def layout(ink: npt.NDArray[Any]) -> Pixels:
    """Lay out `ink`, of any size and strength on a background of zero, as uint8 [28, 28]."""
    ink = ink.astype(np.float32)
    strong = _strong(ink)
    across, down = strong.sum(axis=0), strong.sum(axis=1)
    longest = 1 + max(int(np.ptp(np.flatnonzero(profile))) for profile in (across, down))
    moved = longest in _RIGHT_SIZES
    window = INPUT_SIZE if moved else longest * INPUT_SIZE / _INK_SIZE
    left, top = _start(across, window), _start(down, window)
    if moved:
        left, top = round(left), round(top)
    margin = math.ceil(window)
    paper = Image.fromarray(np.pad(ink, margin))
    box = (margin + left, margin + top, margin + left + window, margin + top + window)
    small = np.asarray(paper.resize((INPUT_SIZE, INPUT_SIZE), Image.Resampling.BICUBIC, box=box))
    return np.asarray((small.clip(0.0) * (255.0 / small.max())).round(), dtype=np.uint8)


def _strong(ink: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `ink` without noise."""
    return np.where(ink > _NOISE * ink.max(), ink, 0.0)


def _ink(grey: Floats) -> Floats:
    """Return each pixel's distance from the background, towards the side on which more of the picture is."""
    border = np.concatenate([grey[0], grey[-1], grey[1:-1, 0], grey[1:-1, -1]])
    lighter = grey - np.median(border)
    return np.asarray(lighter if lighter.max() >= -lighter.min() else -lighter).clip(0.0)


def _start(profile: Floats, window: float) -> float:
    """Return the start of a window around the centre of mass, moved so that it holds all ink."""
    inked = np.flatnonzero(profile)
    centre = float(profile @ (np.arange(len(profile)) + 0.5)) / float(profile.sum())
    first, last = float(inked[0]), float(inked[-1] + 1)
    return min(max(centre - window / 2, last - window), first)


SYSTEM: Final = DigitClassifier(
    name="digits",
    title="Digits",
    # Only this variable selects the model that answers the page.
    model_variable="DIGITS_MODEL_NAME",
    default_model="digits",
    labels=tuple("0123456789"),
    subject="digit",
    subject_in_words="a digit",
    # A small PNG of a 3, drawn by tests/support/drawn_digits.py.
    sample_file=Path(__file__).with_name("sample.png"),
    input_size=INPUT_SIZE,
    datatypes=("FP32",),
    # `digits` answers as `logits`, `onnx-mnist-cpu` under the number that its first users' exporter gave it.
    probability_outputs=(),
    logit_outputs=("logits", "26"),
)
