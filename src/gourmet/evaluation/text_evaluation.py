"""Ask a network about every text of a data set, and compare its answers with references by people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gourmet.evaluation.system_parts import EvaluateOptions, Load, Reference, TextData, sample_evenly
from gourmet.progress import ProgressBar, ReportProgress
from gourmet.reports.report import Report, Section, Table

COMPARED: Final = "Answers compared with those by people"
TO_READ: Final = 20  # answers of a part
_LENGTHS: Final = {
    **{f"up to {count} words": count for count in (4, 6, 8, 12)},
    "over 12 words": float("inf"),
}
_MIN_TEXTS: Final = 20  # of a group that gets scores
_DRAWS: Final = 300

# Takes weights, texts, a device and a progress callback; returns the answers.
Answer = Callable[[Path, Sequence[str], str, ReportProgress], Sequence[str]]


@dataclass(frozen=True)
class TextEvaluation:
    """Evaluate a system that generates text; fulfils `gourmet.evaluation.system_parts.Evaluation`."""

    load: Load
    data: TextData
    answer: Answer
    parts: tuple[str, ...] = ("validation", "test")

    def evaluate(self, options: EvaluateOptions, progress_bar: ProgressBar) -> tuple[Report, dict[str, Any]]:
        sections = {}
        for name in self.parts:
            references = self.data.references(options.data, name, options.limit)
            texts = [reference.text for reference in references]
            with progress_bar(name) as on_progress:
                answers = self.answer(options.weights, texts, options.device, on_progress)
            scored = score_texts(references, answers)
            rows = [
                (reference.text, answer, reference.answer)
                for reference, answer in zip(references, answers, strict=True)
            ]
            to_read = Table(("text", "answer", "by people"), sample_evenly(rows, TO_READ), in_terminal=0)
            title = f"{name}: {len(texts)} texts"
            sections[name] = replace(scored, title=title, tables=[*scored.tables, to_read])
        scores = {name: section.measures for name, section in sections.items()}
        title = f"{options.weights.parent.name}: {options.weights.name}"
        return Report(title, COMPARED, scores, [*sections.values()]), {"scores": scores}


def score_texts(references: Sequence[Reference], answers: Sequence[str]) -> Section:
    """Compare answers with those by people: all, by the length of the text, and by its source."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(effective_order=False), CHRF()
    right = [reference.answer for reference in references]

    def score_of(rows: Sequence[int]) -> dict[str, Any]:
        texts, expected = [answers[row] for row in rows], [[right[row] for row in rows]]
        scores = {
            name: float(metric.corpus_score(texts, expected).score)
            for name, metric in (("bleu", bleu), ("chrf", chrf))
        }
        return {"texts": len(rows), **scores}

    def by(names: Sequence[str]) -> dict[str, Any]:
        groups = {name: [row for row, of in enumerate(names) if of == name] for name in sorted(set(names))}
        return {name: score_of(rows) for name, rows in groups.items() if len(rows) >= _MIN_TEXTS}

    by_length = by([_length(reference.text) for reference in references])
    measures: dict[str, Any] = {
        "all": score_of(range(len(answers))),
        # Half of the interval that holds BLEU with 95 %, were the texts drawn again.
        "margin": float(bleu.corpus_score(answers, [right], n_bootstrap=_DRAWS)._ci),
        "by_length": {name: by_length[name] for name in _LENGTHS if name in by_length},
        "by_source": by([reference.source for reference in references]),
        # Without sacrebleu's signatures scores cannot be compared.
        "signatures": (str(bleu.get_signature()), str(chrf.get_signature())),
    }
    groups = [
        (name, f"{group['texts']:,}", f"{group['bleu']:.1f}", f"{group['chrf']:.1f}")
        for name, group in {**measures["by_length"], **measures["by_source"]}.items()
    ]
    facts = [
        (
            "BLEU",
            f"{measures['all']['bleu']:.1f} ± {measures['margin']:.1f} (95 %; {measures['signatures'][0]})",
        ),
        ("chrF", f"{measures['all']['chrf']:.1f} ({measures['signatures'][1]})"),
    ]
    return Section("", measures, facts, [Table(("group", "texts", "BLEU", "chrF"), groups)])


def _length(text: str) -> str:
    words = len(text.split())
    return next(name for name, limit in _LENGTHS.items() if words <= limit)
