"""The sentences that all arms translate, and the agreement of each arm with the network."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from gourmet.errors import UsageError
from gourmet.measure.inputs import DataSource
from gourmet.measure.task import MeasureOptions
from gourmet.measure.validity import WrongAnswers
from gourmet.systems.translator.client_loop import PLACES
from gourmet.systems.translator.contract import SYSTEM
from gourmet.systems.translator.data import DATA
from gourmet.systems.translator.evaluate import translate
from gourmet.systems.translator.texts import split
from gourmet.tasks.generation.checkpoints import Checkpoint

# Of a window's figures: the share of sentences to which the arm says what the network says.
AGREES: Final = "agrees"
# Pieces of a sentence; longer ones do not fit `onnx-model`.
_LONGEST: Final = PLACES - 5
# Where eight bits round what goes through the products too, as in CTranslate2, one sentence in ten has other
# words; whose words differ more often is another network.
_LEAST_AGREEMENT: Final = 0.8
# The pieces of a long sentence, and how many short ones come before each.
_LONG: Final = 110
_SHORT: Final = 3


@dataclass(frozen=True)
class Sentences:
    """Texts of a single sentence each, the network's answers, and the time for each arm."""

    checkpoint: Checkpoint
    texts: Sequence[str]
    options: MeasureOptions
    folder: Path
    long_ones: Sequence[str] = ()  # arms that have some among theirs

    @cached_property
    def network_says(self) -> list[str]:
        return translate(self.checkpoint.network, self.checkpoint.tokenizer, self.texts)

    @property
    def pieces(self) -> float:
        """The mean number of pieces of an answer."""
        answers = self.network_says
        return sum(len(self.checkpoint.tokenizer.encode_target(text)) for text in answers) / len(answers)

    def agreement(self, arm: str, answers: Sequence[str]) -> dict[str, float]:
        """Return how often the arm says what the network says; raise WrongAnswers if too rarely."""
        same = sum(a == b for a, b in zip(answers, self.network_says, strict=True)) / len(answers)
        if same < _LEAST_AGREEMENT:
            raise WrongAnswers(
                f"{arm} says what the network says to {same:.0%} of the sentences only: deploy the weights "
                f"that are compared with `gourmet deploy {SYSTEM.name} --format all --weights`"
            )
        return {AGREES: same}

    def source(self, arm: str) -> DataSource:
        return self.mixed if arm in self.long_ones else self.usual

    @cached_property
    def usual(self) -> DataSource:
        return self._written("usual", self.texts)

    @cached_property
    def mixed(self) -> DataSource:
        """Three short sentences before each long one."""
        short = itertools.cycle(sorted(self.texts, key=len)[: max(2, len(self.texts) // 3)])
        texts = [
            text for long in self._strung_together() for text in (*itertools.islice(short, _SHORT), long)
        ]
        return self._written("mixed", texts)

    def _written(self, name: str, texts: Sequence[str]) -> DataSource:
        folder = self.folder / name
        folder.mkdir()
        for number, text in enumerate(texts):
            (folder / f"{number:04}.txt").write_text(text, encoding="utf-8")
        return DataSource(len(texts), folder=folder)

    def _strung_together(self) -> Iterator[str]:
        """Yield sentences joined by commas, almost as long as the longest that is not cut."""
        clauses: list[str] = []
        for text in self.texts:
            clauses.append(text.rstrip(".!?… ").lower())
            if len(self.checkpoint.tokenizer.encode(", ".join(clauses))) > _LONG:
                yield ", ".join(clauses[:-1]).capitalize() + "."
                clauses = clauses[-1:]


def fitting(data: Path, checkpoint: Checkpoint, count: int) -> list[str]:
    """Return different texts that fit every arm: single sentences, since not all arms cut texts."""

    def size(text: str) -> int:
        return len(checkpoint.tokenizer.encode(text))

    different = dict.fromkeys(pair.text for pair in DATA.references(data, "test", count))
    texts = [text for text in different if split(text, size, _LONGEST) == [(text, True)]]
    if sum(map(size, texts)) < 2 * _LONG:
        raise UsageError(
            f"{data} has {len(texts)} single sentences of at most {_LONGEST} pieces among its first {count}, "
            "which is too few: name more with --sentences"
        )
    return texts


def same_as_alone(arm: str, answer: str, alone: str) -> None:
    """Raise WrongAnswers if an answer depends on other requests."""
    if answer != alone:
        raise WrongAnswers(f"{arm} answered {answer!r} where it answered {alone!r} alone")
