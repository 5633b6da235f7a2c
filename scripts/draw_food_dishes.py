"""Draws the small pictures of dishes that tests and load are made of.

Nobody's rights lie in them. Run this file to draw them again into the tests' folder (or into the folder
named as its argument); the same seeds give the same pictures.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import draw_fried_egg
import numpy as np
from draw_fried_egg import Canvas, Field, edge
from PIL import Image

WIDTH: Final = 400
HEIGHT: Final = 300
JPEG_QUALITY: Final = 78
FOLDER: Final = Path(__file__).parents[1] / "tests" / "drawings"

Colour = tuple[float, float, float]
_X: Final = WIDTH / 2
_Y: Final = HEIGHT / 2


def soup() -> Image.Image:
    canvas = _table(3, (92, 104, 112))
    _bowl(canvas, 128, (236, 232, 222))
    inside = 104 - canvas.distance(_X, _Y, 0.86)
    canvas.paint(
        (206, 84, 28), edge(inside, 2), 1.0 + 0.05 * canvas.noise(18, 30) - 0.1 * np.exp(-inside / 12)
    )
    swirl = canvas.distance(_X - 8, _Y - 4, 0.86) + 9 * np.arctan2(canvas.rows - _Y, canvas.columns - _X)
    cream = edge(5 - np.abs(np.mod(swirl, 56) - 28), 3) * edge(78 - canvas.distance(_X, _Y, 0.86), 6)
    canvas.paint((250, 232, 204), 0.85 * cream)
    for _ in range(16):
        x, y = canvas.random.normal(_X, 34), canvas.random.normal(_Y, 26)
        leaf = canvas.blob(x, y, canvas.random.uniform(4, 8), 0.16, 0.6)
        canvas.paint((58, 112, 40), edge(leaf), 1.0 + 0.2 * canvas.noise(5, 5))
    return _photographed(canvas)


def rice() -> Image.Image:
    canvas = _table(5, (120, 76, 50))
    _bowl(canvas, 128, (54, 86, 122))
    heap = canvas.blob(_X, _Y - 4, 98, 0.03, 0.86)
    canvas.paint((226, 220, 206), edge(heap, 3), 1.0 - 0.12 * np.exp(-np.clip(heap, 0, None) / 20))
    for _ in range(900):
        x, y = canvas.random.normal(_X, 46), canvas.random.normal(_Y - 4, 38)
        if np.hypot(x - _X, (y - _Y + 4) / 0.86) < 94:
            _rod(canvas, x, y, canvas.random.uniform(3, 5), 2.1, (252, 249, 240))
    for _ in range(40):
        x, y = canvas.random.normal(_X, 20), canvas.random.normal(_Y - 6, 15)
        canvas.paint((32, 28, 26), edge(1.6 - canvas.distance(x, y), 1))
    return _photographed(canvas)


def noodles() -> Image.Image:
    canvas = _table(7, (74, 62, 58))
    _bowl(canvas, 132, (238, 236, 230))
    canvas.paint((226, 180, 92), edge(104 - canvas.distance(_X, _Y, 0.86), 8), 0.72)
    for _ in range(46):
        x, y = canvas.random.normal(_X, 22), canvas.random.normal(_Y, 17)
        radius, squash = canvas.random.uniform(24, 62), canvas.random.uniform(0.5, 1.0)
        ring = 3.6 - np.abs(canvas.distance(x, y, squash) - radius)
        inside = edge(110 - canvas.distance(_X, _Y, 0.86), 4)
        canvas.paint((92, 56, 20), 0.4 * edge(np.roll(ring, (3, 2), axis=(0, 1)), 3) * inside)
        shade = 1.0 + 0.05 * ring + canvas.random.uniform(-0.08, 0.08)
        canvas.paint((242, 204, 118), edge(ring, 1.5) * inside, shade)
    sauce = canvas.blob(_X + 4, _Y - 6, 50, 0.12, 0.8) + 5 * canvas.noise(9, 9)
    canvas.paint((168, 36, 22), 0.92 * edge(sauce, 5), 1.0 + 0.16 * canvas.noise(8, 8))
    for _ in range(5):
        leaf = canvas.blob(canvas.random.normal(_X, 15), canvas.random.normal(_Y - 8, 10), 10, 0.12, 0.55)
        canvas.paint((52, 118, 44), edge(leaf), 1.0 + 0.15 * canvas.noise(6, 6))
    return _photographed(canvas)


def bread() -> Image.Image:
    canvas = _table(11, (168, 134, 92))
    for x, y, radius in ((112, 166, 88), (204, 150, 92), (298, 138, 88)):
        crust = canvas.blob(x, y, radius, 0.05, 1.12) + 2 * canvas.noise(14, 14)
        canvas.paint((40, 24, 12), 0.5 * edge(np.roll(crust, (9, 8), axis=(0, 1)), 18))
        canvas.paint((146, 84, 34), edge(crust, 2), 1.0 + 0.14 * canvas.noise(9, 9))
        crumb: Field = crust - 9.0
        canvas.paint((240, 212, 164), edge(crumb, 4), 1.0 + 0.05 * canvas.noise(22, 22))
        holes = edge(canvas.noise(6, 6) + 0.5 * canvas.noise(13, 13) - 0.62, 0.25) * edge(crumb - 6, 6)
        canvas.paint((196, 154, 98), 0.7 * holes)
    return _photographed(canvas)


def fruit() -> Image.Image:
    canvas = _table(13, (206, 198, 184))
    _bowl(canvas, 132, (246, 244, 240))
    pieces: list[tuple[Colour, float]] = [
        *(((206, 40, 42), 27.0),) * 7,
        *(((238, 142, 30), 30.0),) * 5,
        *(((112, 164, 52), 22.0),) * 6,
        *(((62, 58, 118), 14.0),) * 12,
    ]
    for index in canvas.random.permutation(len(pieces)):
        colour, radius = pieces[index]
        angle, away = canvas.random.uniform(0, 2 * np.pi), 84 * np.sqrt(canvas.random.uniform(0, 1))
        _ball(canvas, _X + away * np.cos(angle), _Y + 0.82 * away * np.sin(angle), radius, colour)
    return _photographed(canvas)


def eggs() -> Image.Image:
    return draw_fried_egg.draw().resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


DISHES: Final[dict[str, Callable[[], Image.Image]]] = {
    drawing.__name__: drawing for drawing in (eggs, soup, rice, noodles, bread, fruit)
}


def _table(seed: int, colour: Colour) -> Canvas:
    canvas = Canvas(WIDTH, HEIGHT, seed)
    grain = 0.08 * canvas.noise(3, 120) + 0.06 * canvas.noise(12, 200)
    canvas.paint(colour, np.ones_like(canvas.rows), 1.0 + grain)
    return canvas


def _bowl(canvas: Canvas, radius: float, colour: Colour) -> None:
    canvas.paint((16, 10, 8), 0.65 * edge(radius - canvas.distance(_X + 7, _Y + 14, 0.86), 26))
    away = canvas.distance(_X, _Y, 0.86)
    slope = (canvas.columns - _X + 1.3 * (canvas.rows - _Y)) / radius
    canvas.paint(colour, edge(radius - away, 2), 1.0 - 0.12 * slope)
    canvas.paint((40, 34, 30), 0.35 * edge(radius - 17 - away, 9) * np.clip(0.75 - slope, 0, 1))


def _ball(canvas: Canvas, x: float, y: float, radius: float, colour: Colour) -> None:
    inside = canvas.blob(x, y, radius, 0.03, 0.96)
    canvas.paint((30, 18, 12), 0.5 * edge(np.roll(inside, (4, 3), axis=(0, 1)), 8))
    dome = np.sqrt(np.clip(inside / radius, 0.0, 1.0))
    slope = (canvas.columns - x + 1.2 * (canvas.rows - y)) / radius
    canvas.paint(colour, edge(inside, 2), 0.72 + 0.4 * dome - 0.14 * slope)
    shine = canvas.distance(x - 0.34 * radius, y - 0.4 * radius, 0.7)
    canvas.paint((255, 255, 250), 0.7 * edge(0.17 * radius - shine, 5))


def _rod(canvas: Canvas, x: float, y: float, length: float, thickness: float, colour: Colour) -> None:
    turn = canvas.random.uniform(0, np.pi)
    columns, rows = slice(max(0, int(x) - 12), int(x) + 13), slice(max(0, int(y) - 12), int(y) + 13)
    column, row = canvas.columns[rows, columns] - x, canvas.rows[rows, columns] - y
    along, across = column * np.cos(turn) + row * np.sin(turn), row * np.cos(turn) - column * np.sin(turn)
    rod = thickness - np.hypot(np.clip(np.abs(along) - length, 0, None), across)
    for ink, coverage in (((150, 138, 116), 0.5 * edge(rod + 1.4, 2)), (colour, edge(rod, 1.2))):
        weight = coverage[..., np.newaxis]
        part = canvas.rgb[rows, columns]
        canvas.rgb[rows, columns] = part * (1 - weight) + np.asarray(ink) * weight


def _photographed(canvas: Canvas) -> Image.Image:
    """With the light that falls off towards the corners, and a sensor's grain."""
    corner = canvas.distance(_X, _Y) / np.hypot(_X, _Y)
    lit = canvas.rgb * (1.08 - 0.36 * corner**2)[..., np.newaxis]
    lit += canvas.random.normal(0, 2.0, canvas.rows.shape)[..., np.newaxis]
    return Image.fromarray(np.clip(lit, 0, 255).astype(np.uint8))


def jpeg(dish: str) -> bytes:
    """The bytes of one picture."""
    buffer = io.BytesIO()
    DISHES[dish]().save(buffer, "JPEG", quality=JPEG_QUALITY, optimize=True)
    return buffer.getvalue()


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for dish in DISHES:
        (folder / f"{dish}.jpg").write_bytes(jpeg(dish))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
