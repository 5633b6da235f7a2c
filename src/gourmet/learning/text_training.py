"""Training of generating networks: recipes and configurations by name, the loss, and rows of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Final, Self

import torch
from pydantic import TypeAdapter

from gourmet.errors import UsageError
from gourmet.served.reading import error_summary
from gourmet.training.task import Phase, Recipe, TrainOptions

MEASURED: Final = 500  # texts held out, measured after each epoch


@dataclass(frozen=True)
class GenerationTraining:
    """The common members of trainings; with `prepare`, fulfils `gourmet.training.task.Training`."""

    config: Any
    ema_decay: ClassVar[float]
    not_pretrained: ClassVar[str]  # the message for --pretrained

    def configured(self, overrides: Sequence[str]) -> Self:
        """Return the training with some configuration as `name=value`; raise UsageError."""
        return replace(self, config=_changed(self.config, overrides))

    def recipe(self, options: TrainOptions) -> Recipe:
        if options.pretrained:
            raise UsageError(self.not_pretrained)
        return Recipe(
            options.epochs or self.config.epochs,
            (Phase(0.0, self.config.batch),),
            options.rate or self.config.rate,
            warmup=self.config.warmup,
            ema_decay=self.ema_decay,
            seed=options.seed,
        )

    def bundled_data(self) -> None:
        """Return None: a file or folder has to be named."""


def padded(rows: Sequence[Sequence[int]], pad: int) -> torch.Tensor:
    """Pad rows of different lengths to one tensor."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])


def until(end: int, tokens: list[int]) -> list[int]:
    """Return the tokens before the first `end`."""
    return tokens[: tokens.index(end)] if end in tokens else tokens


def _changed(config: Any, overrides: Sequence[str]) -> Any:
    """Return `config` changed by `name=value`; raise UsageError for an invalid one."""
    known, changes = asdict(config), dict[str, str](override.partition("=")[::2] for override in overrides)
    try:
        if unknown := changes.keys() - known.keys():
            raise ValueError(f"there is no {', '.join(sorted(unknown))}")
        return TypeAdapter(type(config)).validate_python(known | changes)
    except ValueError as exc:
        settings = ", ".join(f"{name}={value}" for name, value in known.items())
        raise UsageError(f"{error_summary(exc)}; there are {settings}") from exc
