"""Augment batches of small photos: crop, flip, recolour, blur, sharpen.

All of it runs on whole batches, on the device of the photos, so that feeding the network costs
little beside training it. The photos trained on may be much smaller than what is served (64 pixels
against 224), and real uploads are sharper than them: sharpness and the kernel that enlarges are
therefore drawn at random, so that the network cannot rely on either.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from gourmet.pictures.classifier import PictureClassifier


def served(photos: torch.Tensor, system: PictureClassifier) -> torch.Tensor:
    """Resize uint8 [N, H, W, 3] to the size of the served network, and normalise."""
    images, size = photos.permute(0, 3, 1, 2).float().div_(255.0), system.input_size
    if images.shape[-1] != size:
        images = F.interpolate(images, (size, size), mode="bilinear", antialias=True)
    return _normalised(images, system)


def varied(
    photos: torch.Tensor, size: int, generator: torch.Generator, system: PictureClassifier
) -> torch.Tensor:
    """Make normalised training images, `size` pixels wide, of uint8 [N, H, W, 3]."""
    images = photos.permute(0, 3, 1, 2).float().div_(255.0)
    images = _cropped(images, size, generator)
    images = _sharpness(images, generator)
    images = _colours(images, generator)
    return _normalised(images.clamp_(0.0, 1.0), system)


def _normalised(images: torch.Tensor, system: PictureClassifier) -> torch.Tensor:
    """Normalise float [N, 3, H, W] from 0 to 1 as the network takes it."""
    mean, std = (
        torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in (system.mean, system.std)
    )
    return ((images - mean) / std).contiguous(memory_format=torch.channels_last)


def _uniform(
    count: int, low: float, high: float, like: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Return random numbers [count, 1, 1, 1], drawn on the CPU so that a GPU run sees the same ones."""
    drawn = torch.rand(count, 1, 1, 1, generator=generator)
    return (low + (high - low) * drawn).to(like.device)


def _cropped(images: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
    """Crop a random rectangle of at least a third of each photo, and flip half of the photos."""
    count, side = len(images), images.shape[-1]
    if side >= 2 * size:  # sampling points far apart would skip pixels: shrink first
        images = F.interpolate(images, (size * 3 // 2, size * 3 // 2), mode="bilinear", antialias=True)
    area = _uniform(count, 0.3, 1.0, images, generator).view(-1)
    ratio = _uniform(count, math.log(3 / 4), math.log(4 / 3), images, generator).view(-1).exp()
    width = (area * ratio).sqrt().clamp_max(1.0)
    height = (area / ratio).sqrt().clamp_max(1.0)
    left = (1.0 - width) * _uniform(count, -1.0, 1.0, images, generator).view(-1)
    top = (1.0 - height) * _uniform(count, -1.0, 1.0, images, generator).view(-1)
    turn = _uniform(count, 0.0, 1.0, images, generator).view(-1).round() * 2.0 - 1.0
    zero = torch.zeros_like(width)
    rows = torch.stack((turn * width, zero, left, zero, height, top), dim=1).view(-1, 2, 3)
    grid = F.affine_grid(rows, [count, 3, size, size], align_corners=False)
    mode = "bicubic" if torch.rand((), generator=generator) < 0.25 else "bilinear"
    return F.grid_sample(images, grid, mode=mode, padding_mode="reflection", align_corners=False)


def _sharpness(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Blur a third of the photos, sharpen a third, add noise to some."""
    count = len(images)
    amount = _uniform(count, -1.5, 1.5, images, generator)
    amount = amount.sign() * (amount.abs() - 0.5).clamp_min(0.0)
    amount = amount.where(amount < 0, amount * 2.0)
    softer = F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    images = images + amount * (images - softer)
    if torch.rand((), generator=generator) < 0.25:
        # Too many numbers to draw on the CPU for a GPU.
        beside = torch.Generator(images.device).manual_seed(generator.initial_seed() + 1)
        noise = torch.randn(images.shape, generator=beside, device=images.device)
        images = images + noise * _uniform(count, 0.0, 0.04, images, generator)
    return images


def _colours(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Vary brightness, contrast and saturation, and each channel a little."""
    count = len(images)
    grey = images.mean(dim=1, keepdim=True)
    images = grey + (images - grey) * _uniform(count, 0.7, 1.3, images, generator)
    mean = grey.mean(dim=(2, 3), keepdim=True)
    images = mean + (images - mean) * _uniform(count, 0.75, 1.25, images, generator)
    gain = _uniform(count, 0.75, 1.25, images, generator)
    tint = (0.94 + 0.12 * torch.rand(count, 3, 1, 1, generator=generator)).to(images.device)
    return images * gain * tint
