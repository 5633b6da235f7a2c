"""Draws a fried egg on a plate, with what other dishes are drawn with too; the same picture every time."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

WIDTH: Final = 640
HEIGHT: Final = 480
SEED: Final = 20

Field = npt.NDArray[np.float64]


class Canvas:
    """A floating-point picture, painted from the table upwards."""

    def __init__(self, width: int, height: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.rows, self.columns = np.mgrid[0:height, 0:width].astype(np.float64)
        self.rgb = np.zeros((height, width, 3))

    def paint(self, colour: tuple[float, float, float], coverage: Field, light: Field | float = 1.0) -> None:
        """Lay `colour` (0–255), brightened by `light`, over the picture where `coverage` is 1."""
        coat = np.asarray(colour) * np.atleast_2d(light)[..., np.newaxis]
        weight = np.clip(coverage, 0.0, 1.0)[..., np.newaxis]
        self.rgb = self.rgb * (1.0 - weight) + coat * weight

    def noise(self, cell_rows: int, cell_columns: int) -> Field:
        """Smooth noise between -1 and 1 that changes over about a cell."""
        height, width = self.rows.shape
        grain = self.random.uniform(-1, 1, (height // cell_rows + 3, width // cell_columns + 3))
        smooth = Image.fromarray(grain.astype(np.float32)).resize((width, height), Image.Resampling.BICUBIC)
        return np.asarray(smooth, dtype=np.float64)

    def distance(self, x: float, y: float, squash: float = 1.0) -> Field:
        """Distance from (x, y), where `squash` < 1 makes circles look tilted away."""
        away: Field = np.hypot(self.columns - x, (self.rows - y) / squash)
        return away

    def blob(self, x: float, y: float, radius: float, wobble: float, squash: float) -> Field:
        """How far inside an irregular round shape each pixel lies, in pixels (negative outside)."""
        angle = np.arctan2((self.rows - y) / squash, self.columns - x)
        phases = self.random.uniform(0, 2 * np.pi, 5)
        waves: Field = np.zeros_like(angle)
        for k, phase in enumerate(phases, start=2):
            waves += np.sin(k * angle + phase) / (k - 0.5)
        return radius * (1.0 + wobble * waves) - self.distance(x, y, squash)


def edge(inside: Field, softness: float = 1.5) -> Field:
    """1 well inside a shape, 0 outside, with a soft step between."""
    return np.clip(inside / softness + 0.5, 0.0, 1.0)


def draw() -> Image.Image:
    canvas = Canvas(WIDTH, HEIGHT, SEED)
    _table(canvas)
    _plate(canvas)
    for x, y, radius, yolk_x, yolk_y in ((244, 222, 138, 236, 210), (420, 268, 122, 426, 258)):
        _egg(canvas, x, y, radius, yolk_x, yolk_y)
    _herbs(canvas)
    corner = canvas.distance(WIDTH / 2, HEIGHT / 2) / np.hypot(WIDTH / 2, HEIGHT / 2)
    lit = canvas.rgb * (1.06 - 0.34 * corner**2)[..., np.newaxis]
    lit += canvas.random.normal(0, 3.0, canvas.rows.shape)[..., np.newaxis]  # the sensor's grain
    return Image.fromarray(np.clip(lit, 0, 255).astype(np.uint8))


def _table(canvas: Canvas) -> None:
    grain = 0.10 * canvas.noise(3, 160) + 0.07 * canvas.noise(14, 300)
    planks = np.where(np.mod(canvas.rows + 20, 130) < 3, -0.35, 0.0)
    canvas.paint((134, 88, 54), np.ones_like(canvas.rows), 1.0 + grain + planks)


def _plate(canvas: Canvas) -> None:
    x, y, radius, squash = 325.0, 246.0, 285.0, 0.78
    canvas.paint((25, 14, 8), 0.75 * edge(radius - canvas.distance(x + 8, y + 18, squash), 40))
    away = canvas.distance(x, y, squash) / radius
    slope = (canvas.columns - x + 1.3 * (canvas.rows - y)) / radius
    canvas.paint((226, 229, 232), edge((1.0 - away) * radius, 2), 1.0 - 0.10 * slope)
    rim = np.exp(-(((away - 0.76) / 0.018) ** 2)) - 0.8 * np.exp(-(((away - 0.98) / 0.012) ** 2))
    canvas.paint((150, 155, 165), np.clip(rim, 0, 1) * np.clip(0.55 - 0.5 * slope, 0, 1))
    canvas.paint((255, 255, 255), np.clip(rim, 0, 1) * np.clip(0.2 + 0.6 * slope, 0, 1))
    canvas.paint((96, 132, 176), 0.8 * edge(3.0 - np.abs(away - 0.93) * radius, 1.5))


def _egg(canvas: Canvas, x: float, y: float, radius: float, yolk_x: float, yolk_y: float) -> None:
    inside = canvas.blob(x, y, radius, 0.07, 0.82) + 5 * canvas.noise(16, 16) + 2.5 * canvas.noise(6, 6)
    canvas.paint((70, 60, 52), 0.55 * edge(np.roll(inside, (7, 5), axis=(0, 1)), 12))
    bumps = canvas.noise(26, 26) + 0.5 * canvas.noise(10, 10)
    light = 1.0 + 0.028 * bumps - 0.06 * np.exp(-np.clip(inside, 0, None) / 9)
    canvas.paint((250, 246, 235), edge(inside, 2), light)
    # The edge that met the hot butter: brown, uneven and lacy.
    fried = np.exp(-(((inside - 3) / 5.0) ** 2)) * (0.55 + 0.6 * canvas.noise(9, 9))
    canvas.paint((172, 104, 38), np.clip(fried, 0, 0.9))
    canvas.paint((221, 178, 108), 0.5 * np.exp(-(((inside - 11) / 6.0) ** 2)) * (0.6 + 0.4 * bumps))
    holes = edge(canvas.noise(7, 7) - 0.80, 0.2) * edge(40 - np.abs(inside - 24), 20)
    canvas.paint((214, 206, 188), 0.7 * holes)
    _yolk(canvas, yolk_x, yolk_y, 0.41 * radius)
    canvas.paint((40, 32, 28), edge(canvas.noise(4, 4) - 0.93, 0.1) * edge(inside - 14, 8))  # pepper


def _yolk(canvas: Canvas, x: float, y: float, radius: float) -> None:
    inside = canvas.blob(x, y, radius, 0.02, 0.84)
    canvas.paint((168, 150, 120), 0.55 * edge(np.roll(inside, (6, 4), axis=(0, 1)) + 2, 10))
    dome = np.sqrt(np.clip(inside / radius, 0.0, 1.0))
    slope = (canvas.columns - x + 1.2 * (canvas.rows - y)) / radius
    light = 0.80 + 0.28 * dome - 0.10 * slope + 0.012 * canvas.noise(12, 12)
    canvas.paint((250, 166, 22), edge(inside, 2), light)
    canvas.paint((228, 112, 8), 0.45 * np.exp(-((inside / 5.0) ** 2)) * edge(inside, 2))
    shine = canvas.distance(x - 0.36 * radius, y - 0.40 * radius, 0.6)
    canvas.paint((255, 250, 226), 0.92 * edge(0.20 * radius - shine, 6))
    glow = canvas.distance(x - 0.25 * radius, y - 0.28 * radius, 0.7)
    canvas.paint((255, 226, 130), 0.40 * np.exp(-((glow / (0.45 * radius)) ** 2)) * edge(inside, 2))


def _herbs(canvas: Canvas) -> None:
    """Chopped chives: short green rods with a light side, strewn over the eggs."""
    for _ in range(26):
        x, y = canvas.random.normal(328, 75), canvas.random.normal(245, 50)
        turn, length = canvas.random.uniform(0, np.pi), canvas.random.uniform(4, 8)
        along = (canvas.columns - x) * np.cos(turn) + (canvas.rows - y) * np.sin(turn)
        across = (canvas.rows - y) * np.cos(turn) - (canvas.columns - x) * np.sin(turn)
        rod = 2.6 - np.hypot(np.clip(np.abs(along) - length, 0, None), across)
        canvas.paint((60, 55, 40), 0.35 * edge(np.roll(rod, (3, 2), axis=(0, 1)), 3))
        canvas.paint((66, 124, 44), edge(rod, 1.2), 1.0 - 0.12 * across)
