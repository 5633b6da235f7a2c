"""Make pictures: of nothing (colours, gradients, noise, text, drawings, patterns), or views of one picture.

Users send pictures of nothing too, and a classifier must tell them from photos. Benchmarks and checks use
views, which need no private photos. numpy and Pillow only.
"""

from __future__ import annotations

import io
import string
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageEnhance, ImageFont

Random = np.random.Generator
Pixels = npt.NDArray[np.uint8]


def pictures(count: int, seed: int, side: int = 256) -> list[bytes]:
    """Return `count` PNG files, with the kinds in turn."""
    random, files = np.random.default_rng(seed), []
    for number in range(count):
        buffer = io.BytesIO()
        Image.fromarray(KINDS[number % len(KINDS)](random, side)).save(buffer, "PNG", compress_level=1)
        files.append(buffer.getvalue())
    return files


def squares(count: int, seed: int, side: int) -> Pixels:
    """Return `count` pictures as [count, side, side, 3]."""
    random = np.random.default_rng(seed)
    return np.stack([KINDS[number % len(KINDS)](random, side) for number in range(count)])


def colour(random: Random, side: int) -> Pixels:
    """Draw one colour with little noise."""
    plane = np.broadcast_to(_colour(random), (side, side, 3)).astype(float)
    return _as_pixels(plane + random.normal(0, random.choice([0.0, 2.0, 6.0]), plane.shape))


def gradient(random: Random, side: int) -> Pixels:
    """Draw a linear or radial gradient between two colours."""
    rows, columns = np.mgrid[0:side, 0:side] / side
    if random.random() < 0.5:
        angle = random.uniform(0, 2 * np.pi)
        share = 0.5 + 0.7 * ((rows - 0.5) * np.sin(angle) + (columns - 0.5) * np.cos(angle))
    else:
        top, left = random.uniform(0, 1, 2)
        share = np.hypot(rows - top, columns - left) / random.uniform(0.4, 1.4)
    share = np.clip(share, 0, 1)[..., np.newaxis]
    return _as_pixels((1 - share) * _colour(random) + share * _colour(random))


def noise(random: Random, side: int) -> Pixels:
    """Draw noise of any grain size, in colour or in shades of one colour."""
    grains = int(random.choice([4, 8, 16, 32, 64, side]))
    channels = int(random.choice([1, 3]))
    shades = random.normal(0, random.uniform(15, 80), (grains, grains, channels))
    kernel = Image.Resampling.BICUBIC if random.random() < 0.5 else Image.Resampling.NEAREST
    spread = np.repeat(shades, 3 // channels, axis=2) + _colour(random)
    return np.asarray(Image.fromarray(_as_pixels(spread)).resize((side, side), kernel))


def text(random: Random, side: int) -> Pixels:
    """Draw lines of words on a page."""
    ink, paper = sorted((_colour(random), _colour(random)), key=lambda colour: float(colour.sum()))
    if random.random() < 0.6:
        ink, paper = np.full(3, random.uniform(0, 60)), np.full(3, random.uniform(220, 255))
    page, draw = _canvas(paper, side)
    height = max(6.0, float(random.uniform(0.035, 0.16) * side))
    font, letters = ImageFont.load_default(height), list(string.ascii_letters)
    for top in np.arange(random.uniform(0, 0.1) * side, side, height * random.uniform(1.1, 1.7)):
        words = ["".join(random.choice(letters, random.integers(2, 10))) for _ in range(12)]
        draw.text((random.uniform(0, 0.1) * side, top), " ".join(words), fill=_fill(ink), font=font)
    return np.asarray(page.rotate(random.uniform(-6, 6), fillcolor=_fill(paper)))


def drawing(random: Random, side: int) -> Pixels:
    """Draw lines and shapes, as in a child's drawing or a diagram."""
    page, draw = _canvas(np.full(3, 255) if random.random() < 0.5 else _colour(random), side)
    filled = random.random() < 0.5
    for _ in range(int(random.integers(2, 24))):
        left, top = random.uniform(-0.1, 0.9, 2) * side
        box = (left, top, left + random.uniform(0.05, 0.6) * side, top + random.uniform(0.05, 0.6) * side)
        ink, width = _fill(_colour(random)), int(random.integers(1, max(2, side // 24)))
        shape = random.integers(4)
        if shape == 0:
            draw.line(random.uniform(0, side, 2 * int(random.integers(2, 7))).tolist(), ink, width)
        elif shape == 1:
            draw.ellipse(box, fill=ink if filled else None, outline=ink, width=width)
        elif shape == 2:
            draw.rectangle(box, fill=ink if filled else None, outline=ink, width=width)
        else:
            draw.arc(box, random.uniform(0, 180), random.uniform(180, 360), ink, width)
    return np.asarray(page)


def pattern(random: Random, side: int) -> Pixels:
    """Draw stripes, checks or dots."""
    rows, columns = np.mgrid[0:side, 0:side] * random.uniform(2, 30) * 2 * np.pi / side
    angle = random.uniform(0, np.pi)
    wave = np.sin(rows * np.sin(angle) + columns * np.cos(angle))
    if random.random() < 0.5:
        wave = wave * np.sin(rows * np.cos(angle) - columns * np.sin(angle))
    share = (np.sign(wave) if random.random() < 0.6 else wave)[..., np.newaxis] / 2 + 0.5
    return _as_pixels(share * _colour(random) + (1 - share) * _colour(random))


KINDS: Final[Sequence[Callable[[Random, int], Pixels]]] = (colour, gradient, noise, text, drawing, pattern)


def _colour(random: Random) -> npt.NDArray[np.float64]:
    return random.uniform(0, 255, 3)


def _as_pixels(values: npt.NDArray[np.float64]) -> Pixels:
    return np.clip(values, 0, 255).astype(np.uint8)


def _fill(values: npt.NDArray[np.float64]) -> tuple[int, int, int]:
    red, green, blue = (int(value) for value in values)
    return red, green, blue


def _canvas(ground: npt.NDArray[np.float64], side: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    page = Image.new("RGB", (side, side), _fill(ground))
    return page, ImageDraw.Draw(page)


def views(picture: bytes, count: int, *, size: tuple[int, int], seed: int, quality: int = 85) -> list[bytes]:
    """Return `count` different JPEGs of `size` (width, height): the same ones for the same arguments.

    Each is another view of the picture (crop, angle, light, grain). A decoder works as hard on it as on a
    photo of that size, and no two answers are equal.
    """
    original = Image.open(io.BytesIO(picture)).convert("RGB")
    random = np.random.default_rng(seed)
    return [_jpeg(_view(original, *size, random), quality) for _ in range(count)]


def _view(original: Image.Image, width: int, height: int, random: np.random.Generator) -> Image.Image:
    turn, corners = random.uniform(-180, 180), random.integers(0, 256, 3)
    image = original.rotate(turn, Image.Resampling.BILINEAR, fillcolor=tuple(map(int, corners)))
    side = random.uniform(0.35, 1.0)
    crop_w, crop_h = original.width * side, original.height * side
    left, top = random.uniform(0, original.width - crop_w), random.uniform(0, original.height - crop_h)
    box = (left, top, left + crop_w, top + crop_h)
    image = image.resize((width, height), Image.Resampling.BICUBIC, box=box)
    hue, saturation, value = image.convert("HSV").split()
    shift = int(random.integers(0, 256))
    hue = hue.point([(level + shift) % 256 for level in range(256)])
    image = Image.merge("HSV", (hue, saturation, value)).convert("RGB")
    image = ImageEnhance.Brightness(image).enhance(random.uniform(0.5, 1.4))
    grain = random.normal(0, random.uniform(2, 12), (height, width, 1))
    return Image.fromarray(np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8))


def _jpeg(image: Image.Image, quality: int) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()


def clouds(seed: int = 0) -> bytes:
    """Return a picture of clouds of colour, for systems without a sample of their own."""
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    return _jpeg(Image.fromarray(coarse).resize((256, 256), Image.Resampling.BICUBIC), 85)
