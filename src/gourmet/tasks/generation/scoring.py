"""How near answers are to those that people gave: BLEU and chrF, of all and of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gourmet.tasks.generation.packages import needed
from gourmet.tasks.system_parts import Reference

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
    """Of a part of some data; the signatures are sacrebleu's, without which no score can be compared."""

    all: TextScore
    margin: float  # half of the interval that holds BLEU with 95 %, were the texts drawn again
    by_length: Mapping[str, TextScore]
    by_source: Mapping[str, TextScore]
    signatures: tuple[str, str]

    def groups(self) -> Mapping[str, TextScore]:
        return {"all": self.all, **self.by_length, **self.by_source}


def score(references: Sequence[Reference], answers: Sequence[str]) -> TextScores:
    with needed():
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
