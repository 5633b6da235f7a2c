"""Answer with served files, without a server, and compare with the network that they were made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gourmet.contracts import GeneratedText
from gourmet.deploying.target import Check
from gourmet.runtime.decoding.answers import AnswerJob, Parts, ServedNetwork, Vocabulary
from gourmet.runtime.decoding.engine import Engine
from gourmet.runtime.decoding.loop import Loop, Row
from gourmet.training.task import Tick

# Of the answers, the share whose words need not be those of the network; of a few, one.
_DIFFER: Final = 0.01
_FEW: Final = 10
# Those that are shipped have more than 97.
_NEAR: Final = 85.0
# A loop has a list of those that wait, which it goes through at each step.
_ASKED_TOGETHER: Final = 250
_ROWS: Final = 16


def served_answers(
    engine: Engine, vocabulary: Vocabulary, rows: Sequence[Row], rows_at_once: int = _ROWS
) -> list[list[int]]:
    """Return the tokens of the loop's answers."""
    loop = Loop(engine, start=vocabulary.start, end=vocabulary.end, max_rows=rows_at_once)
    loop.complete(rows)
    return [row.tokens for row in rows]


def whole_answers(
    network: ServedNetwork, texts: Sequence[Parts], rows_at_once: int, tick: Tick
) -> list[GeneratedText]:
    """Return the served model's answers with the scores of their sentences."""
    words = network.vocabulary
    answers: list[GeneratedText] = []
    for first in range(0, len(texts), _ASKED_TOGETHER):
        jobs = [
            AnswerJob(parts, network, lambda *_: None) for parts in texts[first : first + _ASKED_TOGETHER]
        ]
        loop = Loop(network.engine, start=words.start, end=words.end, max_rows=rows_at_once)
        loop.complete([row for job in jobs for row in job.rows])
        answers += [job.whole() for job in jobs]
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
