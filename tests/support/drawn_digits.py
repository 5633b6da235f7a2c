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


def arc(x: float, y: float, width: float, height: float, start: float, end: float) -> list[Point]:
    """Part of an ellipse around (x, y); degrees, clockwise from three o'clock."""
    angles = [math.radians(start + (end - start) * step / 24) for step in range(25)]
    return [(x + width * math.cos(angle), y + height * math.sin(angle)) for angle in angles]


# Strokes in a square from 0 to 1, y downwards.
STROKES: Final[tuple[Sequence[Stroke], ...]] = (
    [arc(0.5, 0.5, 0.26, 0.4, 0, 360)],
    [[(0.56, 0.1), (0.46, 0.9)]],
    [[*arc(0.5, 0.32, 0.24, 0.22, 190, 390), (0.26, 0.9), (0.78, 0.9)]],
    [[*arc(0.48, 0.3, 0.24, 0.2, 200, 450), *arc(0.48, 0.7, 0.28, 0.2, 270, 520)]],
    [[(0.6, 0.1), (0.22, 0.62), (0.82, 0.62)], [(0.64, 0.38), (0.62, 0.92)]],
    [[(0.74, 0.1), (0.34, 0.1), (0.3, 0.46), *arc(0.48, 0.66, 0.26, 0.24, 230, 500)]],
    [[(0.62, 0.08), (0.4, 0.34), *arc(0.5, 0.68, 0.23, 0.23, 180, 540)]],
    [[(0.24, 0.12), (0.78, 0.12), (0.44, 0.92)]],
    [[*arc(0.5, 0.29, 0.2, 0.2, 90, 450), *arc(0.5, 0.71, 0.24, 0.22, 270, 630)]],
    [[*arc(0.5, 0.32, 0.22, 0.22, 0, 360), (0.7, 0.5), (0.6, 0.92)]],
)

# 1, 4, 7 and 9 as people in several countries are taught them at school or meet them in print.
WAYS: Final[tuple[tuple[int, str, Sequence[Stroke]], ...]] = (
    (1, "a stroke", [[(0.5, 0.1), (0.5, 0.9)]]),
    (1, "a short flag", [[(0.38, 0.26), (0.54, 0.1), (0.54, 0.9)]]),
    (1, "a flag of a third", [[(0.3, 0.38), (0.56, 0.1), (0.56, 0.9)]]),
    (1, "a flag of half its height", [[(0.22, 0.5), (0.58, 0.1), (0.58, 0.9)]]),
    (1, "a flag and a foot", [[(0.34, 0.3), (0.52, 0.1), (0.52, 0.9)], [(0.3, 0.9), (0.74, 0.9)]]),
    (1, "a long flag and a foot", [[(0.26, 0.42), (0.54, 0.1), (0.54, 0.9)], [(0.28, 0.9), (0.8, 0.9)]]),
    (1, "a foot", [[(0.52, 0.1), (0.52, 0.9)], [(0.32, 0.9), (0.72, 0.9)]]),
    (7, "two strokes", [[(0.22, 0.12), (0.76, 0.12), (0.42, 0.9)]]),
    (7, "crossed", [[(0.22, 0.12), (0.78, 0.12), (0.44, 0.9)], [(0.36, 0.5), (0.76, 0.5)]]),
    (7, "hooked", [[(0.24, 0.3), (0.24, 0.12), (0.76, 0.12), (0.48, 0.9)]]),
    (
        7,
        "hooked and crossed",
        [[(0.22, 0.24), (0.24, 0.12), (0.8, 0.12), (0.46, 0.9)], [(0.4, 0.52), (0.72, 0.48)]],
    ),
    (7, "a bent leg", [[(0.22, 0.14), (0.78, 0.12), (0.58, 0.42), (0.5, 0.9)]]),
    (4, "open", [[(0.32, 0.1), (0.24, 0.54), (0.78, 0.54)], [(0.7, 0.12), (0.64, 0.9)]]),
    (4, "closed", [[(0.66, 0.9), (0.66, 0.1), (0.2, 0.64), (0.82, 0.64)]]),
    (
        4,
        "a short leg across the bar",
        [[(0.54, 0.1), (0.22, 0.64), (0.82, 0.64)], [(0.6, 0.44), (0.58, 0.9)]],
    ),
    (4, "a cup", [[*arc(0.46, 0.28, 0.2, 0.28, 180, 90), (0.7, 0.54)], [(0.7, 0.1), (0.68, 0.9)]]),
    (9, "a straight leg", [[*arc(0.5, 0.3, 0.22, 0.2, 0, -360), (0.72, 0.9)]]),
    (9, "a slanting leg", [[*arc(0.5, 0.3, 0.22, 0.2, 0, -360), (0.54, 0.9)]]),
    (9, "a curved leg", [[*arc(0.5, 0.3, 0.22, 0.2, 0, -360), *arc(0.46, 0.62, 0.26, 0.28, 0, 140)]]),
)


def png(
    digit: int | Sequence[Stroke],
    *,
    size: int = 280,
    brush: float = 0.08,
    ink: int = 255,
    paper: int = 0,
    at: Point = (0.0, 0.0),
    scale: float = 1.0,
) -> bytes:
    """A digit or strokes as a grey PNG of `size` pixels, `brush` a share of it; `at` and `scale` place it."""
    image = Image.new("L", (size, size), paper)
    draw = ImageDraw.Draw(image)
    radius = brush * size / 2
    for stroke in STROKES[digit] if isinstance(digit, int) else digit:
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
