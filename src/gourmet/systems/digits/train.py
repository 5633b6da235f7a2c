"""Train the digits network: its recipe, its augmentation, its measures.

The digits trained on may be few, of few writers, and blurred (8×8 cells enlarged), and what is sent
is drawn with anything from a mouse to a felt pen: slant, proportions and above all the width and the
sharpness of strokes are therefore drawn at random. Ways of writing that the bundled writers lack are drawn
by strokes. Pictures that show no digit are an eleventh class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import update_bn

from gourmet.errors import UsageError
from gourmet.evaluation.labelled_pictures import Pixels
from gourmet.evaluation.system_parts import check_classes
from gourmet.learning.picture_training import PictureTask
from gourmet.progress import ReportProgress
from gourmet.systems.digits import contract
from gourmet.systems.digits.data import DATA, LabelledDigit, bundled, drawn, no_digits
from gourmet.systems.digits.network import DigitsNetwork
from gourmet.training.task import Phase, Recipe, Training, TrainOptions

_EPOCHS: Final = 32
_RATE: Final = 0.02
_BATCH: Final = 64
_REFRESHED: Final = 512
_ROWS: Final = 256
_TURN: Final = math.radians(14)
_DRAWN: Final = 400  # of every digit
_NO_DIGITS: Final = 200  # of every kind of picture that shows no digit


class DigitsTraining:
    """Fulfils `gourmet.training.task.Training`."""

    def recipe(self, options: TrainOptions) -> Recipe:
        """Return a recipe of one phase. Its epochs suit the bundled digits; MNIST's 60,000 need fewer."""
        if options.pretrained:
            raise UsageError("there are no pretrained weights for digits: train without --pretrained")
        phases = (Phase(0.0, _BATCH),)
        return Recipe(options.epochs or _EPOCHS, phases, options.rate or _RATE, seed=options.seed)

    def prepare(self, data: Path, options: TrainOptions, tick: ReportProgress) -> DigitsTask:
        limit, labels = options.limit, len(contract.SYSTEM.labels)
        train = DATA.listing(data, "train", limit)
        check_classes(data, (digit.class_id for digit in train), contract.SYSTEM.labels)
        held = DATA.listing(data, "validation", limit and max(limit // 5, labels))
        tick(1.0)
        torch.manual_seed(options.seed)
        by_strokes = drawn(limit // labels if limit else _DRAWN, options.seed)
        others = no_digits(limit // labels if limit else _NO_DIGITS, options.seed)
        # Twice what people wrote: with each once, one more of their digits was wrong.
        return DigitsTask([*train, *train, *by_strokes, *others], held, options.device)

    bundled_data = staticmethod(bundled)


class DigitsTask(PictureTask):
    """The network and its digits, which are laid out and normalised once."""

    smoothing = 0.0

    def __init__(self, train: Sequence[LabelledDigit], held: Sequence[LabelledDigit], device: str) -> None:
        network = DigitsNetwork()
        super().__init__(contract.SYSTEM, network, network.about, _pixels(train), _pixels(held), device)

    def order(self, generator: torch.Generator) -> torch.Tensor:
        """Return every digit once, in random order."""
        return torch.randperm(len(self.images), generator=generator)

    def logits_of(
        self,
        network: Callable[[torch.Tensor], torch.Tensor],
        photos: torch.Tensor,
        phase: Phase,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Add the logit of "no digit", always 0: the level of the others says whether a digit is shown."""
        return F.pad(super().logits_of(network, photos, phase, generator), (0, 1))

    def varied(self, photos: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
        return varied(photos, generator)

    def as_served(self, photos: torch.Tensor) -> torch.Tensor:
        return photos

    def adapt(self, network: nn.Module) -> None:
        update_bn(torch.split(self.images[:_REFRESHED], _ROWS), network)


def _pixels(digits: Sequence[LabelledDigit]) -> Pixels:
    images = contract.SYSTEM.normalise(np.stack([digit.image for digit in digits]))
    return Pixels((), images, np.array([digit.class_id for digit in digits]))


def varied(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Augment float [N, 1, 28, 28] from 0 to 1: turn, slant, bend, and write with another pen."""
    return _pen(_distort(images, generator), generator)


def _uniform(count: int, low: float, high: float, generator: torch.Generator) -> torch.Tensor:
    return low + (high - low) * torch.rand(count, generator=generator)


def _distort(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
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
    """Make strokes thinner or thicker, sharper or softer, for three digits of four."""
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


TRAINING: Final[Training] = DigitsTraining()
