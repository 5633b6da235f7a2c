"""A network asked for every text of a data set, and how near its answers are to those that people gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gourmet.reports.page import render
from gourmet.reports.table import columns
from gourmet.runtime.files import write_whole
from gourmet.tasks import evaluation_file
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
    """Evaluate a system that generates text; fulfils `gourmet.tasks.system_parts.Evaluation`."""

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


_LENGTHS = {**{f"up to {most} words": most for most in (4, 6, 8, 12)}, "over 12 words": float("inf")}
# Fewer texts than that say nothing about a group.
_FEWEST = 20
_DRAWS = 300


@dataclass(frozen=True)
class TextScore:
    texts: int
    bleu: float
    chrf: float


@dataclass(frozen=True)
class TextScores:
    """Scores of one part of some data. Without sacrebleu's signatures scores cannot be compared."""

    all: TextScore
    margin: float  # half of the interval that holds BLEU with 95 %, were the texts drawn again
    by_length: Mapping[str, TextScore]
    by_source: Mapping[str, TextScore]
    signatures: tuple[str, str]

    def groups(self) -> Mapping[str, TextScore]:
        return {"all": self.all, **self.by_length, **self.by_source}


def score(references: Sequence[Reference], answers: Sequence[str]) -> TextScores:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(effective_order=False), CHRF()
    right = [reference.answer for reference in references]

    def score_of(places: Sequence[int]) -> TextScore:
        found, wanted = [answers[place] for place in places], [[right[place] for place in places]]
        scores = (float(metric.corpus_score(found, wanted).score) for metric in (bleu, chrf))
        return TextScore(len(places), *scores)

    def by(names: Sequence[str]) -> dict[str, TextScore]:
        groups = {name: [at for at, each in enumerate(names) if each == name] for name in sorted(set(names))}
        return {name: score_of(places) for name, places in groups.items() if len(places) >= _FEWEST}

    by_length = by([_length(reference.text) for reference in references])
    drawn_again = bleu.corpus_score(answers, [right], n_bootstrap=_DRAWS)
    return TextScores(
        score_of(range(len(answers))),
        float(drawn_again._ci),
        {name: by_length[name] for name in _LENGTHS if name in by_length},
        by([reference.source for reference in references]),
        (str(bleu.get_signature()), str(chrf.get_signature())),
    )


def _length(text: str) -> str:
    words = len(text.split())
    return next(name for name, most in _LENGTHS.items() if words <= most)
