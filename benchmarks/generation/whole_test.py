"""The whole test part through the served loop: alone and in company, and how near to people's answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gourmet import repository
from gourmet.measure.results import Requirement
from gourmet.systems.translator.data import DATA
from gourmet.systems.translator.serving import SERVING
from gourmet.tasks.generation.evaluation import score
from gourmet.tasks.generation.served import whole_answers
from gourmet.training.task import Tick

_ROWS: Final = 16


@dataclass(frozen=True)
class WholeTest:
    texts: int
    same: int  # whose answers have the same words alone as in company
    bleu: float
    chrf: float

    def goals(self) -> list[Requirement]:
        said = f"of {self.texts:,} test texts, those with the same words alone and {_ROWS} at a time"
        return [
            Requirement(said, (100 * self.same / self.texts,), 100.0, unit="%"),
            Requirement("BLEU of what is served, greedy", (self.bleu,), 33.0, unit=""),
            Requirement("chrF of what is served, greedy", (self.chrf,), 52.0, unit=""),
        ]


def measured(data: Path, tick: Tick) -> WholeTest:
    """By the package of triton/models, its loop in this process on one thread."""
    references = DATA.references(data, "test", None)
    network = SERVING.open(repository.served_package("translator"), 1)

    def answers(rows: int) -> list[str]:
        asked = network.requested({"TEXT": [each.text for each in references]})
        return [each.text for each in whole_answers(network, asked, rows, tick)]

    alone, together = answers(1), answers(_ROWS)
    found = score(references, together).all
    same = sum(a == b for a, b in zip(alone, together, strict=True))
    return WholeTest(len(references), same, found.bleu, found.chrf)
