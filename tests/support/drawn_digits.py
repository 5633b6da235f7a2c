"""Digits drawn with a round brush, as somebody draws them on a page: the sample, and what tests send.

`python tests/support/drawn_digits.py` writes the system's pictures again (sample.png; digits.png, the ten
side by side), and the ready-made digits of the page into its folder.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageDraw

ROOT: Final = Path(__file__).parents[2]

Point = tuple[float, float]
Stroke = Sequence[Point]


def _arc(x: float, y: float, width: float, height: float, start: float, end: float) -> list[Point]:
    """Part of an ellipse around (x, y); degrees, clockwise from three o'clock."""
    angles = [math.radians(start + (end - start) * step / 24) for step in range(25)]
    return [(x + width * math.cos(angle), y + height * math.sin(angle)) for angle in angles]


# Strokes in a square from 0 to 1, y downwards.
STROKES: Final[tuple[Sequence[Stroke], ...]] = (
    [_arc(0.5, 0.5, 0.26, 0.4, 0, 360)],
    # A plain stroke: the 1s of the training data have short flags, and a long one is read as a 7 or a 2.
    [[(0.56, 0.1), (0.46, 0.9)]],
    [[*_arc(0.5, 0.32, 0.24, 0.22, 190, 390), (0.26, 0.9), (0.78, 0.9)]],
    [[*_arc(0.48, 0.3, 0.24, 0.2, 200, 450), *_arc(0.48, 0.7, 0.28, 0.2, 270, 520)]],
    [[(0.6, 0.1), (0.22, 0.62), (0.82, 0.62)], [(0.64, 0.38), (0.62, 0.92)]],
    [[(0.74, 0.1), (0.34, 0.1), (0.3, 0.46), *_arc(0.48, 0.66, 0.26, 0.24, 230, 500)]],
    [[(0.62, 0.08), (0.4, 0.34), *_arc(0.5, 0.68, 0.23, 0.23, 180, 540)]],
    [[(0.24, 0.12), (0.78, 0.12), (0.44, 0.92)]],
    [[*_arc(0.5, 0.29, 0.2, 0.2, 90, 450), *_arc(0.5, 0.71, 0.24, 0.22, 270, 630)]],
    [[*_arc(0.5, 0.32, 0.22, 0.22, 0, 360), (0.7, 0.5), (0.6, 0.92)]],
)


def png(
    digit: int,
    *,
    size: int = 280,
    brush: float = 0.08,
    ink: int = 255,
    paper: int = 0,
    at: Point = (0.0, 0.0),
    scale: float = 1.0,
) -> bytes:
    """`digit` as a grey PNG of `size` pixels, of which `brush` is a share; `at` and `scale` place it."""
    image = Image.new("L", (size, size), paper)
    draw = ImageDraw.Draw(image)
    radius = brush * size / 2
    for stroke in STROKES[digit]:
        points = [((at[0] + scale * x) * size, (at[1] + scale * y) * size) for x, y in stroke]
        draw.line(points, fill=ink, width=round(2 * radius))
        for x, y in points:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=ink)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


if __name__ == "__main__":
    system = ROOT / "src" / "gourmet" / "systems" / "digits"
    (system / "sample.png").write_bytes(png(3))
    pictures = [png(digit) for digit in range(len(STROKES))]
    for digit, picture in enumerate(pictures):
        (ROOT / "app" / "static" / "digits" / f"{digit}.png").write_bytes(picture)
    side_by_side = np.hstack([np.asarray(Image.open(io.BytesIO(picture))) for picture in pictures])
    Image.fromarray(side_by_side).save(system / "digits.png", optimize=True)
