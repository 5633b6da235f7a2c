"""Ask a network about every text of a data set, and compare its answers with references by people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gourmet.evaluation import evaluation_file
from gourmet.evaluation.system_parts import EvaluateOptions, Load, Reference, Stage, TextData
from gourmet.progress import ReportProgress
from gourmet.reports.page import render
from gourmet.reports.table import columns
from gourmet.served.files import write_whole

_READ: Final = 20

# Takes weights, texts, a device and a progress callback; returns the answers.
Answer = Callable[[Path, Sequence[str], str, ReportProgress], Sequence[str]]


Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A table of scores and a table of answers to read; the first row of each is its head."""

    heading: str
    scores: Rows
    notes: Sequence[str]
    to_read: Rows


@dataclass(frozen=True)
class GenerationReport:
    """Fulfils `gourmet.evaluation.system_parts.EvaluationReport`."""

    measured: Mapping[str, Any]
    kept: Mapping[str, Any]  # beside the weights, for `gourmet deploy`
    sections: Sequence[Section]

    def as_dict(self) -> dict[str, Any]:
        return dict(self.measured)

    def lines(self) -> list[str]:
        return [line for part in self.sections for line in (columns(part.scores), *part.notes)]

    def write(self, weights: Path, title: str) -> Path:
        """Write the report and the measurements beside the weights."""
        evaluation_file.write(weights, **self.kept)
        report = weights.parent / "evaluation.html"
        write_whole(report, render("evaluation/text_evaluation.html", title=title, sections=self.sections))
        return report


def to_read(rows: Rows) -> list[Sequence[str]]:
    """Return some answers, sampled evenly."""
    return list(rows[:: max(1, len(rows) // _READ)][:_READ])


@dataclass(frozen=True)
class TextEvaluation:
    """Evaluate a system that generates text; fulfils `gourmet.evaluation.system_parts.Evaluation`."""

    load: Load
    data: TextData
    answer: Answer
    parts: tuple[str, ...] = ("validation", "test")

    def evaluate(self, options: EvaluateOptions, stage: Stage) -> GenerationReport:
        scores, sections = {}, []
        for name in self.parts:
            references = self.data.references(options.data, name, options.limit)
            texts = [pair.text for pair in references]
            with stage(name) as tick:
                answers = self.answer(options.weights, texts, options.device, tick)
            scores[name] = asdict(part := score(references, answers))
            shown = [(pair.text, text, pair.answer) for pair, text in zip(references, answers, strict=True)]
            sections.append(part.section(name, shown))
        return GenerationReport(scores, {"scores": scores}, sections)


_LENGTHS = {**{f"up to {count} words": count for count in (4, 6, 8, 12)}, "over 12 words": float("inf")}
# Groups with fewer texts have no score.
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

    def section(self, name: str, answers: Rows) -> Section:
        groups = {"all": self.all, **self.by_length, **self.by_source}
        rows = [
            (group, f"{scored.texts:,}", f"{scored.bleu:.1f}", f"{scored.chrf:.1f}")
            for group, scored in groups.items()
        ]
        notes = [f"BLEU ± {self.margin:.1f} (95 %)", *self.signatures]
        shown = [("text", "answer", "people's"), *to_read(answers)]
        return Section(name, [(name, "texts", "BLEU", "chrF"), *rows], notes, shown)


def score(references: Sequence[Reference], answers: Sequence[str]) -> TextScores:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(effective_order=False), CHRF()
    right = [reference.answer for reference in references]

    def score_of(rows: Sequence[int]) -> TextScore:
        texts, expected = [answers[row] for row in rows], [[right[row] for row in rows]]
        scores = (float(metric.corpus_score(texts, expected).score) for metric in (bleu, chrf))
        return TextScore(len(rows), *scores)

    def by(names: Sequence[str]) -> dict[str, TextScore]:
        groups = {name: [row for row, of in enumerate(names) if of == name] for name in sorted(set(names))}
        return {name: score_of(rows) for name, rows in groups.items() if len(rows) >= _FEWEST}

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
    return next(name for name, limit in _LENGTHS.items() if words <= limit)
