"""Ask a network about every picture of a data set, as it is asked when served, and measure the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from gourmet.contracts import Classification
from gourmet.tasks.classification.evaluate import Answered, Evaluation, evaluate
from gourmet.tasks.classification.furniture import Data, Load
from gourmet.tasks.furniture import Stage

if TYPE_CHECKING:
    from torch import nn

_ROWS: Final = 64


@dataclass(frozen=True)
class ClassifierEvaluation:
    """How a classifier is evaluated; fulfils `gourmet.tasks.furniture.Evaluation`."""

    system: Classification
    data: Data
    load: Load
    wanted_accuracy: float = 0.75  # of the answers that are given with certainty
    # Classes over which balanced accuracy is told apart from the whole.
    views: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def evaluate(
        self,
        weights: Path,
        data: Path,
        stage: Stage,
        *,
        limit: int | None,
        device: str,
        architecture: str = "",
    ) -> Evaluation:
        network, _ = self.load(weights, architecture)
        answered = {}
        for part in self.data.parts(data):
            with stage(part) as tick:
                answered[part] = self.answers(network, data, part, limit=limit, device=device, tick=tick)
        return evaluate(
            answered,
            self.system.labels,
            chosen_on="validation",
            wanted=self.wanted_accuracy,
            views=self.views,
        )

    def answers(
        self,
        network: nn.Module,
        data: Path,
        part: str,
        *,
        limit: int | None = None,
        device: str = "cpu",
        tick: Callable[[float], None] = lambda share: None,
    ) -> Answered:
        """The network's logits on the pictures of `part`, as pictures that went through the contract."""
        import torch

        network = network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        pictures = self.data.listing(data, part, limit)
        everything = self.data.read(pictures)
        logits = []
        with torch.inference_mode():
            for first in range(0, len(pictures), _ROWS):
                blobs = [next(everything) for _ in pictures[first : first + _ROWS]]
                rows = torch.from_numpy(np.concatenate([self.system.encode(blob, "FP32") for blob in blobs]))
                images = rows.to(device).contiguous(memory_format=torch.channels_last)
                logits.append(network(images).float().cpu().numpy())
                tick(min(1.0, (first + _ROWS) / len(pictures)))
        return Answered(
            logits=np.concatenate(logits),
            classes=np.array([picture.class_id for picture in pictures]),
            names=[picture.name for picture in pictures],
            picture=lambda row: next(self.data.read(pictures[row : row + 1])),
        )
