"""Compare served captions with those that people wrote, and choose the score from which one is sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import nn

from gourmet.contracts import THRESHOLD_PARAMETER
from gourmet.reports.page import render
from gourmet.reports.table import columns
from gourmet.runtime.decoding.engine import Engine, Floats, onnx_graph
from gourmet.runtime.decoding.loop import Loop, Row
from gourmet.runtime.files import write_whole
from gourmet.runtime.instances import available_cpus
from gourmet.systems.captioner.data import TOKENIZER, CaptionedPhoto, Cider, decoded, photos, scored_words
from gourmet.systems.captioner.export import TrainedCaptioner
from gourmet.systems.captioner.network import load
from gourmet.systems.captioner.serving import DECODER, CaptionerNetwork
from gourmet.systems.captioner.tokenizer import MAX_TOKENS
from gourmet.tasks import evaluation_file
from gourmet.tasks.generation.certainty import chosen
from gourmet.tasks.system_parts import Evaluation, Stage
from gourmet.training.task import Tick

_PARTS: Final = ("validation", "test")
_BEAMS: Final = (1, 3)
_ROWS: Final = 16
_READ: Final = 20
# A caption with less is not of what people saw; of those that are sure, at most this share may have less.
NEAR: Final = 0.2
_WRONG: Final = 0.2


@dataclass(frozen=True)
class Caption:
    photo: str
    text: str
    tokens: int
    score: float  # the logarithm of the probability of a piece, on average
    cider: float


@dataclass(frozen=True)
class CaptionScores:
    """Scores of a part's captions."""

    photos: int
    cider: float
    bleu: float
    signature: str  # sacrebleu's
    distinct: int
    words: float  # of a caption, on average
    sure: float  # share of the captions, and of them those that are near
    near: float
    near_of_all: float


@dataclass(frozen=True)
class CaptionsEvaluated:
    """Fulfils `gourmet.tasks.system_parts.EvaluationReport`."""

    threshold: float
    scores: Mapping[str, CaptionScores]
    to_read: Sequence[Caption]

    def as_dict(self) -> dict[str, Any]:
        return {
            THRESHOLD_PARAMETER: self.threshold,
            "tokenizer": TOKENIZER,
            "scores": {name: asdict(each) for name, each in self.scores.items()},
        }

    def rows(self) -> list[tuple[str, ...]]:
        head = ("", "photos", "CIDEr-D", "BLEU-4", "distinct", "words", "sure", "of them near")
        rows = [
            (
                name,
                f"{each.photos:,}",
                f"{each.cider:.3f}",
                f"{each.bleu:.3f}",
                f"{each.distinct:,}",
                f"{each.words:.1f}",
                f"{each.sure:.0%}",
                f"{each.near:.0%} (of all {each.near_of_all:.0%})",
            )
            for name, each in self.scores.items()
        ]
        return [head, *rows]

    def notes(self) -> list[str]:
        return [
            f"CIDEr-D and BLEU-4 of {TOKENIZER}; {next(iter(self.scores.values())).signature}",
            f"sure from a score of {self.threshold:.2f} on; near: a CIDEr-D of at least {NEAR}",
        ]

    def lines(self) -> list[str]:
        read = [(each.photo, f"{each.score:.2f}", each.text) for each in self.to_read]
        return [columns(self.rows()), *self.notes(), columns([("to read", "score", "caption"), *read])]

    def write(self, weights: Path, title: str) -> Path:
        """The report and what was measured, beside the weights."""
        evaluation_file.write(weights, **self.as_dict())
        report = weights.parent / "evaluation.html"
        write_whole(report, render("systems/captioner/evaluation.html", title=title, found=self))
        return report


class _Remembered(Engine):
    """Sources are memories: each photo is seen once, whatever is asked of it."""

    def encode(self, sources: Sequence[Floats]) -> Sequence[Floats]:
        return sources


class CaptionEvaluation:
    """Fulfils `gourmet.tasks.system_parts.Evaluation`, by what is served: graphs and the loop."""

    def load(self, weights: Path, _: str) -> tuple[nn.Module, dict[str, Any]]:
        found = load(weights)
        return found.network, found.about

    def evaluate(
        self,
        weights: Path,
        data: Path,
        stage: Stage,
        *,
        limit: int | None,
        device: str,
        architecture: str = "",
    ) -> CaptionsEvaluated:
        checkpoint = load(weights)
        side = checkpoint.network.side
        held = photos(data, "validation", limit)
        seen = list(decoded(data, held[: 4 * _ROWS], side))
        files = TrainedCaptioner(checkpoint, seen).files
        found: dict[str, list[Caption]] = {}
        for part in _PARTS:
            shown = photos(data, part, limit)
            with stage(part) as tick:
                found |= _answers(files, data, part, shown, side, tick)
        threshold = _threshold(found[_name("validation", _BEAMS[0])])
        scores = {name: _scores(each, data, name.split(",")[0], threshold) for name, each in found.items()}
        read_by_people = found[_name("test", _BEAMS[0])]
        return CaptionsEvaluated(
            threshold, scores, read_by_people[:: max(1, len(read_by_people) // _READ)][:_READ]
        )


def _name(part: str, beams: int) -> str:
    return f"{part}, {beams} beams" if beams > 1 else part


def _answers(
    files: Mapping[str, bytes],
    data: Path,
    part: str,
    shown: Sequence[CaptionedPhoto],
    side: int,
    tick: Tick,
) -> dict[str, list[Caption]]:
    served = CaptionerNetwork.open(files, available_cpus())
    memories: list[Floats] = []
    for square in decoded(data, shown, side):
        memories += served.engine.encode([square])
        tick(0.5 * len(memories) / len(shown), f"seen {len(memories)}/{len(shown)}")
    decoder = onnx_graph(files[DECODER], available_cpus())
    engine, words = _Remembered(decoder), served.vocabulary
    cider, found = Cider([photo.captions for photo in shown]), {}
    for beams in _BEAMS:
        rows = [Row(memory, MAX_TOKENS, beams=beams) for memory in memories]
        Loop(engine, start=words.start, end=words.end, max_rows=_ROWS).complete(rows)
        tick(0.5 + 0.5 * beams / max(_BEAMS), f"described with beams: {beams}")
        texts = [words.decode(row.tokens) for row in rows]
        found[_name(part, beams)] = [
            Caption(
                photo.name, text, len(row.tokens), row.score / (len(row.tokens) + 1), cider.score(place, text)
            )
            for place, (photo, row, text) in enumerate(zip(shown, rows, texts, strict=True))
        ]
    return found


def _threshold(captions: Sequence[Caption]) -> float:
    """The lowest score from which on few enough are wrong."""
    near = [each.cider >= NEAR for each in captions]
    return chosen([each.score for each in captions], near, 1 - _WRONG, errors=0.0)


def _scores(captions: Sequence[Caption], data: Path, part: str, threshold: float) -> CaptionScores:
    from sacrebleu.metrics.bleu import BLEU

    by_name = {photo.name: photo.captions for photo in photos(data, part)}
    people = [by_name[each.photo] for each in captions]
    most = max(map(len, people))
    right = [
        [" ".join(scored_words(texts[place])) if place < len(texts) else None for texts in people]
        for place in range(most)
    ]
    said = [" ".join(scored_words(each.text)) for each in captions]
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    score = float(bleu.corpus_score(said, right).score) / 100  # type: ignore[arg-type]  # None: no more of them
    sure = [each for each in captions if each.score >= threshold]
    return CaptionScores(
        photos=len(captions),
        cider=float(np.mean([each.cider for each in captions])),
        bleu=score,
        signature=str(bleu.get_signature()),
        distinct=len({each.text for each in captions}),
        words=float(np.mean([len(each.split()) for each in said])),
        sure=len(sure) / len(captions),
        near=float(np.mean([each.cider >= NEAR for each in sure])) if sure else 0.0,
        near_of_all=float(np.mean([each.cider >= NEAR for each in captions])),
    )


EVALUATION: Final[Evaluation] = CaptionEvaluation()
