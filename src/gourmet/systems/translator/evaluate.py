"""What the translator answers, beside what people translated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from torch import nn

from gourmet.systems.translator.data import DATA
from gourmet.systems.translator.network import load
from gourmet.systems.translator.translating import translate
from gourmet.tasks.generation.evaluation import TextEvaluation
from gourmet.tasks.system_parts import Evaluation
from gourmet.training.task import Tick


def _network(weights: Path, _: str) -> tuple[nn.Module, dict[str, Any]]:
    found = load(weights)
    return found.network, found.about


def _answer(weights: Path, texts: Sequence[str], device: str, tick: Tick) -> Sequence[str]:
    found = load(weights)
    return translate(found.network.to(device), found.tokenizer, texts, tick=tick)


EVALUATION: Final[Evaluation] = TextEvaluation(_network, DATA, _answer)
