"""How near answers are to those that people gave: BLEU and chrF, of all and of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gourmet.tasks.generation.packages import needed
from gourmet.tasks.system_parts import Reference

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

# Words of a text, up to and with.
_LENGTHS = (4, 6, 8, 12)
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
    found = _score(references, answers, range(len(answers)), bleu, chrf)
    lengths, sources = dict[str, list[int]](), dict[str, list[int]]()
    for place, reference in enumerate(references):
        lengths.setdefault(_length(reference.text), []).append(place)
        sources.setdefault(reference.source, []).append(place)
    by_length, by_source = (
        {
            name: _score(references, answers, places, bleu, chrf)
            for name, places in sorted(groups.items(), key=lambda group: _key(group[0]))
            if len(places) >= _FEWEST
        }
        for groups in (lengths, sources)
    )
    right = [[reference.answer for reference in references]]
    drawn_anew = bleu.corpus_score(answers, right, n_bootstrap=_DRAWS)
    signatures = (str(bleu.get_signature()), str(chrf.get_signature()))
    return TextScores(found, float(drawn_anew._ci), by_length, by_source, signatures)


def _score(
    references: Sequence[Reference], answers: Sequence[str], places: Sequence[int], bleu: BLEU, chrf: CHRF
) -> TextScore:
    said = [answers[place] for place in places]
    right = [[references[place].answer for place in places]]
    return TextScore(
        len(said), float(bleu.corpus_score(said, right).score), float(chrf.corpus_score(said, right).score)
    )


def _length(text: str) -> str:
    words = len(text.split())
    return next((f"up to {most} words" for most in _LENGTHS if words <= most), f"over {_LENGTHS[-1]} words")


def _key(name: str) -> tuple[bool, int, str]:
    number = next((int(word) for word in name.split() if word.isdigit()), 0)
    return name.startswith("over"), number, name
