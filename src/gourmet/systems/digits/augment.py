"""Batches of digits as other hands and other pens would have written them.

The digits trained on may be few, of few writers, and blurred (8×8 cells enlarged), and what is sent
is drawn with anything from a mouse to a felt pen: slant, proportions and above all the width and the
sharpness of strokes are therefore drawn at random.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

_TURN = math.radians(14)


def varied(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """float [N, 1, 28, 28] from 0 to 1, each turned, slanted, bent and written with another pen."""
    return _pen(_hand(images, generator), generator)


def _uniform(count: int, low: float, high: float, generator: torch.Generator) -> torch.Tensor:
    return low + (high - low) * torch.rand(count, generator=generator)


def _hand(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Turn, slant, scale, move and bend."""
    count = len(images)
    turn, slant = _uniform(count, -_TURN, _TURN, generator), _uniform(count, -0.3, 0.3, generator)
    width, height = _uniform(count, 0.85, 1.3, generator), _uniform(count, 0.85, 1.2, generator)
    right, down = _uniform(count, -0.12, 0.12, generator), _uniform(count, -0.12, 0.12, generator)
    rows = torch.stack(
        (
            *(width * turn.cos(), slant - height * turn.sin(), right),
            *(width * turn.sin(), height * turn.cos(), down),
        ),
        dim=1,
    ).view(-1, 2, 3)
    grid = F.affine_grid(rows, list(images.shape), align_corners=False)
    bend = 0.09 * torch.randn(count, 2, 4, 4, generator=generator)
    bend = F.interpolate(bend, images.shape[-2:], mode="bicubic", align_corners=False)
    grid = grid + bend.permute(0, 2, 3, 1)
    return F.grid_sample(images, grid.to(images.device), mode="bilinear", align_corners=False)


def _pen(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Thinner or thicker, sharper or softer strokes, for three digits of four."""
    count = len(images)
    thinner = -F.max_pool2d(-images, 3, stride=1, padding=1)
    thicker = F.max_pool2d(images, 3, stride=1, padding=1)
    amount = _uniform(count, -0.7, 0.7, generator).view(-1, 1, 1, 1).to(images.device)
    inked = images + amount.clamp_min(0) * (thicker - images) - (-amount).clamp_min(0) * (images - thinner)
    edge = _uniform(count, 0.2, 0.55, generator).view(-1, 1, 1, 1).to(images.device)
    sharpness = _uniform(count, 4.0, 20.0, generator).view(-1, 1, 1, 1).to(images.device)
    # The edge follows each digit's own strongest ink, so that thin strokes do not vanish.
    inked = inked / inked.amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-6)
    inked = torch.sigmoid((inked - edge) * sharpness)
    changed = (torch.rand(count, generator=generator) < 0.75).view(-1, 1, 1, 1).to(images.device)
    return torch.where(changed, inked, images)
