"""A network asked for every text of a data set, and its answers beside those that people gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gourmet.reports.page import render
from gourmet.reports.table import columns
from gourmet.runtime.files import write_whole
from gourmet.tasks import evaluation_file
from gourmet.tasks.generation.scoring import TextScores, score
from gourmet.tasks.system_parts import Load, Reference, Stage, TextData
from gourmet.training.task import Tick

_READ: Final = 20

# The answers of weights to some texts: on a device, and telling how far it is.
Answer = Callable[[Path, Sequence[str], str, Tick], Sequence[str]]


@dataclass(frozen=True)
class AnsweredPart:
    """One part of the data with its answers, and how near they are."""

    references: Sequence[Reference]
    answers: Sequence[str]
    scores: TextScores

    def to_read(self) -> list[tuple[str, str, str]]:
        """Some texts, evenly from the whole: what was asked, answered, and what people said."""
        step = max(1, len(self.answers) // _READ)
        return [
            (reference.text, answer, reference.answer)
            for reference, answer in zip(self.references[::step], self.answers[::step], strict=True)
        ][:_READ]


@dataclass(frozen=True)
class TextsEvaluated:
    """Fulfils `gourmet.tasks.system_parts.EvaluationReport`."""

    parts: Mapping[str, AnsweredPart]

    def as_dict(self) -> dict[str, Any]:
        return {name: asdict(part.scores) for name, part in self.parts.items()}

    def lines(self) -> list[str]:
        found = []
        for name, part in self.parts.items():
            rows = [(name, "texts", "BLEU", "chrF")]
            rows += [
                (group, f"{each.texts:,}", f"{each.bleu:.1f}", f"{each.chrf:.1f}")
                for group, each in part.scores.groups().items()
            ]
            found += [columns(rows), f"BLEU ± {part.scores.margin:.1f} (95 %)", *part.scores.signatures]
        return found

    def write(self, weights: Path, title: str) -> Path:
        """The report and what was measured, beside the weights."""
        evaluation_file.write(weights, scores=self.as_dict())
        report = weights.parent / "evaluation.html"
        write_whole(report, render("tasks/generation/evaluation.html", title=title, parts=self.parts))
        return report


@dataclass(frozen=True)
class TextEvaluation:
    """How a system of this task is evaluated; fulfils `gourmet.tasks.system_parts.Evaluation`."""

    load: Load
    data: TextData
    answer: Answer
    parts: tuple[str, ...] = ("validation", "test")

    def evaluate(
        self,
        weights: Path,
        data: Path,
        stage: Stage,
        *,
        limit: int | None,
        device: str,
        architecture: str = "",
    ) -> TextsEvaluated:
        found = {}
        for name in self.parts:
            references = self.data.references(data, name, limit)
            with stage(name) as tick:
                answers = self.answer(weights, [each.text for each in references], device, tick)
            found[name] = AnsweredPart(references, answers, score(references, answers))
        return TextsEvaluated(found)
