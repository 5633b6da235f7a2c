"""Compare networks that generate text: answers of served files, without a server, with those of the network
that they were made from; and a candidate with what is served, on the same held-out examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from gourmet.contracts import GeneratedText
from gourmet.errors import GourmetError
from gourmet.evaluation.system_parts import EmptyPart, Reference
from gourmet.generation import package
from gourmet.generation.answers import GenerationServing, GrowingAnswer, Parts, ServedNetwork
from gourmet.generation.engine import Engine
from gourmet.generation.loop import Loop, Row, Vocabulary
from gourmet.progress import ReportProgress
from gourmet.repository.gate import Check, Comparison, Measure, comparison_of
from gourmet.repository.models import read_config
from gourmet.repository.versions import version_numbers, weights_of
from gourmet.served.instances import available_cpus
from gourmet.triton_client.model_config import as_json

# Allowed drop of the mean score in points; with few examples, its interval of 95 % if that is wider.
MARGIN: Final = 2.0
_ERRORS: Final = 1.96
_ROWS: Final = 16
# At most 1 % of the answers may differ from torch's; of ten answers or more, at least one may.
_DIFFER: Final = 0.01
_FEW: Final = 10
# The shipped networks have more than 97.
_NEAR: Final = 85.0
# A loop goes through the list of waiting rows at each step.
_ASKED_TOGETHER: Final = 250

Scores = npt.NDArray[np.float64]
Example = TypeVar("Example")


def served_answers(
    engine: Engine, vocabulary: Vocabulary, rows: Sequence[Row], rows_at_once: int = _ROWS
) -> list[list[int]]:
    """Return the tokens of the loop's answers."""
    Loop(engine, vocabulary, rows_at_once).complete(rows)
    return [row.tokens for row in rows]


def whole_answers(
    network: ServedNetwork, texts: Sequence[Parts], rows_at_once: int, tick: ReportProgress
) -> list[GeneratedText]:
    """Return the served model's answers with the scores of their sentences."""
    answers: list[GeneratedText] = []
    for first in range(0, len(texts), _ASKED_TOGETHER):
        together = [GrowingAnswer(parts, network) for parts in texts[first : first + _ASKED_TOGETHER]]
        loop = Loop(network.engine, network.vocabulary, rows_at_once)
        loop.complete([row for answer in together for row in answer.rows])
        answers += [answer.whole() for answer in together]
        tick(len(answers) / len(texts), f"{len(answers)}/{len(texts)}")
    return answers


def agreement(
    vocabulary: Vocabulary,
    answers: Sequence[Sequence[int]],
    right: Sequence[Sequence[int]],
    *,
    fp32: bool,
    what: str,
    compared: int,
) -> list[Check]:
    """Compare `compared` tokens of each served answer with the network's answer in 32 bits."""
    if fp32:
        count = len(right)
        same = sum(a[:compared] == b[:compared] for a, b in zip(answers, right, strict=True))
        allowed = count - max(int(_DIFFER * count), count >= _FEW)
        near = Check(
            "the network's own words", f"{same} of {count} {what}", f"at least {allowed}", same >= allowed
        )
    else:
        near = _nearness(vocabulary, answers, right)
    return [near, _with_words(vocabulary, answers)]


def _nearness(
    vocabulary: Vocabulary, served: Sequence[Sequence[int]], right: Sequence[Sequence[int]]
) -> Check:
    """Return how much of the texts is equal. Rounding decides where two words are about as likely."""
    import sacrebleu

    texts, references = ([vocabulary.decode(tokens) for tokens in rows] for rows in (served, right))
    chrf = sacrebleu.corpus_chrf(texts, [references]).score
    allowed = f"at least {_NEAR:g}" + ("" if chrf >= _NEAR else "; --fp32 rounds nothing")
    return Check("chrF against the answers in 32 bits", f"{chrf:.1f}", allowed, chrf >= _NEAR)


def _with_words(vocabulary: Vocabulary, answers: Sequence[Sequence[int]]) -> Check:
    count = sum(any(map(str.isalpha, vocabulary.decode(answer))) for answer in answers)
    is_enough = 2 * count >= len(answers)
    return Check("answers with a word in them", f"{count} of {len(answers)}", "at least half", is_enough)


@dataclass(frozen=True)
class HeldOut:
    """Examples that no network learned from; `questions` prepares them, and `score` rates the answers."""

    measure: str
    examples: int
    questions: Callable[[Any], Sequence[Parts]]  # of an opened network
    score: Callable[[Sequence[str]], Sequence[float]]  # for each answer, from 0 to 100


@dataclass(frozen=True, eq=False)
class TextCandidate:
    """A network to deploy; all formats of a deployment share it and its scores."""

    model: str  # whose package has the whole network
    serving: GenerationServing
    files: Callable[[], Mapping[str, bytes]]
    weights_sha256: str
    held_out: HeldOut | None
    lack: str  # what to do if there is nothing held out
    _points: dict[str, Scores] = field(default_factory=dict)  # by the weights

    def compare(self, version: Path, tick: ReportProgress) -> Comparison:
        """Compare with the network that a version of any of the system's models is made of."""
        weights = weights_of(version) or str(version)

        def open_served() -> ServedNetwork | None:
            if not self.held_out or weights in self._points:
                return None
            return self.serving.open(self._package(version), available_cpus())

        def measure(network: ServedNetwork | None) -> Iterator[Measure]:
            return self._measured(weights, network, tick)

        return comparison_of(version, self.weights_sha256, open_served, measure, self.lack)

    def _measured(
        self, weights: str, network: ServedNetwork | None, tick: ReportProgress
    ) -> Iterator[Measure]:
        if not (held_out := self.held_out):
            return
        served = self._scores(weights, network, "what is served", tick)
        candidate = self._scores(self.weights_sha256, None, "the candidate", tick)
        error = float(np.std(candidate - served)) / math.sqrt(len(candidate))
        margin = max(MARGIN, _ERRORS * error)
        yield Measure(held_out.measure, len(candidate), float(served.mean()), float(candidate.mean()), margin)

    def _scores(
        self, weights: str, network: ServedNetwork | None, whose: str, tick: ReportProgress
    ) -> Scores:
        """Score the answers of `network`, or of the candidate; once for each weights."""
        if weights not in self._points:
            assert self.held_out
            network = network or self.serving.open(self.files(), available_cpus())
            parts = self.held_out.questions(network)
            answers = whole_answers(
                network, parts, _ROWS, lambda share, words="": tick(share, f"{whose}: {words}")
            )
            self._points[weights] = np.array(self.held_out.score([answer.text for answer in answers]))
        return self._points[weights]

    def _package(self, version: Path) -> Mapping[str, bytes]:
        """Return the package with the network of `version`, which may be a graph or a reference."""
        model = version.parents[1] / self.model
        same = [model / str(number) for number in reversed(version_numbers(model))]
        same = [path for path in same if path == version or weights_of(path) == weights_of(version) != ""]
        if not same:
            raise GourmetError(f"no version of {self.model} has its weights")
        return package.open_version(same[0], as_json(read_config(model)))


def held_out_part(read_part: Callable[[str], Sequence[Example]]) -> Sequence[Example]:
    """Return the test part of some data, or the validation part; nothing if the data have neither."""
    for part in ("test", "validation"):
        with suppress(EmptyPart):
            return read_part(part)
    return ()


def chrf(references: Sequence[Reference], questions: Callable[[Any], Sequence[Parts]]) -> HeldOut:
    """Texts whose answers are compared with those that people gave."""
    from sacrebleu.metrics.chrf import CHRF

    def score(answers: Sequence[str]) -> list[float]:
        metric = CHRF()
        pairs = zip(answers, references, strict=True)
        return [float(metric.sentence_score(answer, [right.answer]).score) for answer, right in pairs]

    return HeldOut("chrF, mean of the sentences", len(references), questions, score)
