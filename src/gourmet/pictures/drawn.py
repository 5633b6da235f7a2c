"""Make many different pictures from one picture and a seed, for benchmarks and checks without private photos.

Each is another view of the picture (crop, angle, light, grain). A decoder works as hard on it as on a photo
of that size, and no two answers are equal.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageEnhance


def views(picture: bytes, count: int, *, size: tuple[int, int], seed: int, quality: int = 85) -> list[bytes]:
    """Return `count` different JPEGs of `size` (width, height): the same ones for the same arguments."""
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


def made_up(seed: int = 0) -> bytes:
    """Return a picture of clouds of colour, for systems without a sample of their own."""
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    return _jpeg(Image.fromarray(coarse).resize((256, 256), Image.Resampling.BICUBIC), 85)
