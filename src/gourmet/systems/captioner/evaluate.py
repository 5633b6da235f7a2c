"""Compare served captions with those that people wrote, and choose the score from which one is sure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import nn

from gourmet.contracts import THRESHOLD_PARAMETER
from gourmet.evaluation.system_parts import EvaluateOptions, Evaluation, sample_evenly
from gourmet.evaluation.text_certainty import chosen
from gourmet.evaluation.text_comparison import whole_answers
from gourmet.evaluation.text_evaluation import COMPARED, TO_READ
from gourmet.generation.loop import Row
from gourmet.progress import ProgressBar, ReportProgress
from gourmet.reports.report import Report, Section, Table
from gourmet.served.instances import available_cpus
from gourmet.systems.captioner.contract import SYSTEM
from gourmet.systems.captioner.data import TOKENIZER, CaptionedPhoto, Cider, decoded, photos, scored_words
from gourmet.systems.captioner.export import TrainedCaptioner
from gourmet.systems.captioner.network import load
from gourmet.systems.captioner.serving import CaptionerNetwork
from gourmet.systems.captioner.tokenizer import MAX_TOKENS

_PARTS: Final = ("validation", "test")
_BEAMS: Final = (1, 3)
_ROWS: Final = 16
# The CIDEr-D of a caption that is near to those by people, and the largest share of others among sure ones.
NEAR: Final = 0.2
_WRONG: Final = 0.2


@dataclass(frozen=True)
class Caption:
    photo: CaptionedPhoto
    text: str
    score: float  # the logarithm of the probability of a piece, on average
    cider: float

    @property
    def is_near(self) -> bool:
        return self.cider >= NEAR


@dataclass(frozen=True)
class CaptionScores:
    """The scores of a part's captions."""

    photos: int
    cider: float
    bleu: float
    signature: str  # sacrebleu's
    distinct: int
    words: float  # of a caption, on average
    sure: float  # share of the captions, and of them those that are near
    near: float
    near_of_all: float

    def row(self) -> tuple[str, ...]:
        near = f"{self.near:.0%} (of all {self.near_of_all:.0%})"
        scores = (f"{self.photos:,}", f"{self.cider:.3f}", f"{self.bleu:.3f}", f"{self.distinct:,}")
        return (*scores, f"{self.words:.1f}", f"{self.sure:.0%}", near)


class CaptionEvaluation:
    """Evaluate the served graphs and loop. Fulfils `gourmet.evaluation.system_parts.Evaluation`."""

    def load(self, weights: Path, _: str) -> tuple[nn.Module, dict[str, Any]]:
        checkpoint = load(weights)
        return checkpoint.network, checkpoint.about

    def evaluate(self, options: EvaluateOptions, progress_bar: ProgressBar) -> tuple[Report, dict[str, Any]]:
        data, limit, checkpoint = options.data, options.limit, load(options.weights)
        seen = list(decoded(data, photos(data, "validation", limit)[: 4 * _ROWS], checkpoint.network.side))
        files = TrainedCaptioner(checkpoint, False, SYSTEM, seen).files
        served = CaptionerNetwork.open(files, available_cpus())
        captions: dict[str, list[Caption]] = {}
        for part in _PARTS:
            with progress_bar(part) as on_progress:
                captions |= _caption_photos(served, data, part, photos(data, part, limit), on_progress)
        validation = captions["validation"]
        near = [caption.is_near for caption in validation]
        threshold = chosen([caption.score for caption in validation], near, 1 - _WRONG, errors=0.0)
        scores = {name: _scores(of_part, threshold) for name, of_part in captions.items()}
        head = ("", "photos", "CIDEr-D", "BLEU-4", "distinct", "words", "sure", "of them near")
        answers = [(caption.photo.name, f"{caption.score:.2f}", caption.text) for caption in captions["test"]]
        section = Section(
            facts=[
                ("scores", f"CIDEr-D and BLEU-4 of {TOKENIZER}; {scores['test'].signature}"),
                ("sure", f"from a score of {threshold:.2f} on"),
                ("near", f"a CIDEr-D of at least {NEAR}"),
            ],
            tables=[
                Table(head, [(name, *of_part.row()) for name, of_part in scores.items()]),
                Table(("photo", "score", "caption"), sample_evenly(answers, TO_READ), in_terminal=0),
            ],
        )
        measured = {
            THRESHOLD_PARAMETER: threshold,
            "tokenizer": TOKENIZER,
            "scores": {name: asdict(of_part) for name, of_part in scores.items()},
        }
        title = f"{SYSTEM.name}: {options.weights.name}"
        return Report(title, COMPARED, measured, [section]), measured


def _caption_photos(
    served: CaptionerNetwork,
    data: Path,
    part: str,
    shown: Sequence[CaptionedPhoto],
    on_progress: ReportProgress,
) -> dict[str, list[Caption]]:
    """Return the captions of each search, by the names of the part and the search."""
    squares = list(decoded(data, shown, served.side))
    cider, captions = Cider([photo.captions for photo in shown]), {}
    for done, beams in enumerate(_BEAMS):
        rows = [[Row(square, MAX_TOKENS, beams=beams)] for square in squares]
        answers = whole_answers(
            served,
            rows,
            _ROWS,
            lambda share, words="", done=done: on_progress((done + share) / len(_BEAMS), words),
        )
        captions[f"{part}, {beams} beams" if beams > 1 else part] = [
            Caption(photo, answer.text, answer.score or 0.0, cider.score(number, answer.text))
            for number, (photo, answer) in enumerate(zip(shown, answers, strict=True))
        ]
    return captions


def _scores(captions: Sequence[Caption], threshold: float) -> CaptionScores:
    from sacrebleu.metrics.bleu import BLEU

    people = [[" ".join(scored_words(text)) for text in caption.photo.captions] for caption in captions]
    right = list(itertools.zip_longest(*people))  # None where people wrote fewer
    texts = [" ".join(scored_words(caption.text)) for caption in captions]
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    score = float(bleu.corpus_score(texts, right).score) / 100
    sure = [caption for caption in captions if caption.score >= threshold]
    return CaptionScores(
        photos=len(captions),
        cider=float(np.mean([caption.cider for caption in captions])),
        bleu=score,
        signature=str(bleu.get_signature()),
        distinct=len({caption.text for caption in captions}),
        words=float(np.mean([len(text.split()) for text in texts])),
        sure=len(sure) / len(captions),
        near=float(np.mean([caption.is_near for caption in sure])) if sure else 0.0,
        near_of_all=float(np.mean([caption.is_near for caption in captions])),
    )


EVALUATION: Final[Evaluation] = CaptionEvaluation()
