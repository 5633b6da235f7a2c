"""Training of generating networks: recipes and configurations by name, the loss, and rows of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar, cast

import torch

from gourmet.errors import UsageError
from gourmet.training.task import Phase, Recipe

MEASURED: Final = 500  # texts held out, measured after each epoch
_ROWS: Final = 128


@dataclass(frozen=True)
class GenerationTraining:
    """The common members of trainings; with `prepare`, fulfils `gourmet.training.task.Training`."""

    config: Any
    ema_decay: ClassVar[float]
    not_pretrained: ClassVar[str]  # the message for --pretrained

    def configured(self, overrides: Sequence[str]) -> Self:
        """Return the training with some configuration as `name=value`; raise UsageError."""
        return replace(self, config=changed(self.config, overrides))

    def recipe(
        self, *, epochs: int | None, rate: float | None, seed: int, device: str, pretrained: bool
    ) -> Recipe:
        if pretrained:
            raise UsageError(self.not_pretrained)
        return Recipe(
            epochs or self.config.epochs,
            (Phase(0.0, self.config.batch),),
            rate or self.config.rate,
            warmup=self.config.warmup,
            ema_decay=self.ema_decay,
            seed=seed,
        )

    def bundled_data(self) -> None:
        """Return None: a file or folder has to be named."""


class _SmoothedLoss(torch.autograd.Function):
    """The loss and its gradient, some rows at a time, so that both stay in a core's cache.

    A batch's likelihoods are some 1,400 rows of 6,000 numbers, which PyTorch writes and reads a dozen times
    on the way there and back. Measured without autocast's casts: 0.68 -> 0.44 s of a core with AMX for a
    translator's batch; losses were the same to 0.002 over the first 60 batches.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, smoothing: float
    ) -> torch.Tensor:
        count, words = len(hidden), len(weight)
        to_hidden, to_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
        total = 0.0
        for begin in range(0, count, _ROWS):
            rows, expected = hidden[begin : begin + _ROWS], target[begin : begin + _ROWS, None]
            log = torch.log_softmax((rows @ weight.T).float(), -1)
            likely = log.gather(1, expected)
            total -= float((1.0 - smoothing) * likely.sum() + smoothing / words * log.sum())
            gradient = log.exp_().sub_(smoothing / words)
            gradient.scatter_add_(1, expected, torch.full_like(likely, smoothing - 1.0))
            narrow = (gradient / count).to(hidden.dtype)
            to_hidden[begin : begin + _ROWS] = narrow @ weight
            to_weight += narrow.T @ rows
        ctx.save_for_backward(to_hidden, to_weight.to(weight.dtype))
        return hidden.new_tensor(total / count, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight = (gradient * outer[0].to(gradient.dtype) for gradient in ctx.saved_tensors)
        return hidden, weight, None, None


def smoothed_loss(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, smoothing: float
) -> torch.Tensor:
    """Return the mean cross entropy of words under softmax(hidden · weightᵀ), with smoothed labels."""
    loss: torch.Tensor = _SmoothedLoss.apply(hidden, weight, target, smoothing)  # type: ignore[no-untyped-call]
    return loss


def padded(rows: Sequence[Sequence[int]], pad: int) -> torch.Tensor:
    """Pad rows of different lengths to one tensor."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])


def until(end: int, tokens: list[int]) -> list[int]:
    """Return the tokens before the first `end`."""
    return tokens[: tokens.index(end)] if end in tokens else tokens


if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Config = TypeVar("Config", bound="DataclassInstance")


def changed(config: Config, overrides: Sequence[str]) -> Config:
    """Return `config` changed by `name=value`; raise UsageError for an invalid one."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        merged = OmegaConf.merge(OmegaConf.structured(config), OmegaConf.from_dotlist(list(overrides)))
        return cast(Config, OmegaConf.to_object(merged))
    except (OmegaConfBaseException, YAMLError, ValueError, RecursionError) as exc:
        known = ", ".join(f"{name}={value}" for name, value in asdict(config).items())
        raise UsageError(f"{next(iter(str(exc).splitlines()))}; there are {known}") from exc
