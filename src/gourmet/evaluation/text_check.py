"""Check a served model that generates text, whole and, if it streams, in pieces; score its answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from gourmet.contracts import GeneratedText, ModelInfo, WarnsOfAnswers
from gourmet.errors import UsageError
from gourmet.evaluation.checking import (
    REQUEST_TIMEOUT_S,
    CheckOptions,
    Replies,
    as_words,
    ask_all,
    fact_lines,
    first_of,
    percentiles,
)
from gourmet.evaluation.system_parts import BadData, Reference, Stage, SystemParts
from gourmet.evaluation.text_certainty import NEAR, judged
from gourmet.evaluation.text_evaluation import TextEvaluation, TextScores, score
from gourmet.pictures.header import SUFFIXES
from gourmet.reports.page import render
from gourmet.served.reading import in_short, read_text
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import ModelUnavailable
from gourmet.triton_client.triton import Triton

_EXAMPLES: Final = 64
_SHOWN: Final = 5


@dataclass(frozen=True)
class TextQuestion:
    """An example to ask about, and its right answer; empty if there is none."""

    example: bytes  # as a client would send it
    reference: Reference

    @property
    def names(self) -> Sequence[str]:
        return (repr(self.reference.text[:40]),)


@dataclass(frozen=True)
class TextAnswer:
    """One text and its answer; `whole` is the answer of the model that does not stream."""

    reference: Reference
    joined: str
    pieces: int = 1
    whole: str | None = None
    total_ms: float = 0.0
    first_piece_ms: float = 0.0
    sure: bool | None = None
    other: str | None = None  # what the model of --against answers

    @property
    def text(self) -> str:
        return self.reference.text


@dataclass(frozen=True)
class TextReport:
    """The result of checking a model that generates text."""

    model: ModelInfo
    compared_with: str  # the model that answers whole what this one streams; empty if there is none
    texts: int
    replies: Replies[TextAnswer]
    # The answers' nearness to people's, and the share that equals the network's own answers, if known.
    scores: TextScores | None = None
    agreement: float | None = None
    # The share of the sure answers that is near to people's.
    near_of_sure: float | None = None
    of: str = "texts"
    against: str | None = None  # the other model whose answers were compared

    @property
    def stopped(self) -> bool:
        return self.replies.stopped

    def progress(self) -> str:
        return f"{self._asked} of {self.texts} {self.of}"

    def faults(self) -> list[str]:
        empty = [repr(answer.text[:40]) for answer in self.replies.answers if not answer.joined]
        other = [
            f"{answer.text[:40]!r}: {answer.joined[:60]!r} in pieces, {answer.whole[:60]!r} whole"
            for answer in self.replies.answers
            if answer.whole is not None and answer.whole != answer.joined
        ]
        return [
            f"{len(examples)} of {self._asked} {what}: {first_of(examples)}"
            for what, examples in (
                (f"{self.of} have no answer", self.replies.failures),
                ("answers are empty", empty),
                (f"answers are not those of {self.compared_with}", other),
            )
            if examples
        ]

    @property
    def sure(self) -> float | None:
        """The share of sure answers, if the model reports it."""
        known = [answer.sure for answer in self.replies.answers if answer.sure is not None]
        return sum(known) / len(known) if known else None

    @property
    def same(self) -> float:
        """The share of answers that equal the other model's."""
        answers = self.replies.answers
        return sum(answer.other == answer.joined for answer in answers) / max(1, len(answers))

    @property
    def _asked(self) -> int:
        return len(self.replies.answers) + len(self.replies.failures)

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.name,
            "version": self.model.version,
            "streams": self.model.decoupled,
            "compared_with": self.compared_with or None,
            "texts": self.texts,
            "answered": len(self.replies.answers),
            "faults": self.faults(),
            "total_ms": self.replies.latency_ms,
            "first_piece_ms": percentiles([answer.first_piece_ms for answer in self.replies.answers]),
            "pieces": sum(answer.pieces for answer in self.replies.answers),
            "scores": self.scores and asdict(self.scores),
            "agreement": self.agreement,
            "sure": self.sure,
            "near_of_sure": self.near_of_sure,
            "against": self.against and {"model": self.against, "same": self.same},
        }

    @property
    def _headline(self) -> str:
        name = f"{self.model.name} version {self.model.version}"
        return f"{name}: {len(self.replies.answers)} of {self.texts} {self.of} answered"

    def _facts(self) -> Iterator[tuple[str, str]]:
        """Yield name and value of each measurement."""
        numbers, scores, near = self.as_dict(), self.scores, self.near_of_sure
        if self.compared_with:
            yield "pieces", f"{numbers['pieces']}, joined and compared with {self.compared_with}"
        for name, key in (("latency", "total_ms"), ("first piece", "first_piece_ms")):
            if numbers[key] and (self.model.decoupled or key == "total_ms"):
                yield name, as_words(numbers[key])
        if scores:
            bleu = f"{scores.all.bleu:.1f} ± {scores.margin:.1f}, chrF {scores.all.chrf:.1f}"
            yield "BLEU", f"{bleu} ({scores.signatures[0]})"
        if self.sure is not None:
            of_them = "" if near is None else f"; of them {100 * near:.1f} % have a chrF of at least {NEAR:g}"
            yield "sure", f"{100 * self.sure:.1f} % of the answers{of_them}"
        if self.agreement is not None:
            yield "as eager", f"{100 * self.agreement:.1f} % of the answers are the network's own"
        if self.against:
            yield "against", f"{100 * self.same:.1f} % of the answers are those of {self.against}"

    def summary(self) -> str:
        answers = [f"{answer.text} → {answer.joined}" for answer in self.replies.answers[:_SHOWN]]
        return "\n".join([self._headline, *fact_lines(self._facts()), *answers])

    def page(self) -> str:
        sure = {True: "sure", False: "rough guess", None: ""}
        return render(
            "evaluation/text_check.html",
            title=f"gourmet check: {self.model.name}",
            headline=self._headline,
            faults=self.faults(),
            facts=self._facts(),
            rows=[(answer.text, answer.joined, sure[answer.sure]) for answer in self.replies.answers],
            failures=[(failure.names[0], failure.reason) for failure in self.replies.failures],
        )


@dataclass(frozen=True)
class TextCheck:
    """A served model that generates text, and the models whose answers are compared with its own."""

    triton: Triton
    model: ModelInfo
    parts: SystemParts
    whole_model: ModelInfo | None  # answers in one piece what `model` streams
    against: ModelInfo | None = None

    def ask(self, question: TextQuestion) -> TextAnswer:
        began = time.monotonic()
        pieces = self._pieces(self.model, question)
        arrived = [(piece, 1000 * (time.monotonic() - began)) for piece in pieces]
        arrived = arrived or [(GeneratedText(""), 0.0)]
        joined = "".join(piece.text for piece, _ in arrived)
        whole, other = (
            "".join(piece.text for piece in self._pieces(model, question)) if model else None
            for model in (self.whole_model, self.against)
        )
        answer, system = replace(arrived[-1][0], text=joined), self.parts.generator
        if isinstance(system, WarnsOfAnswers):
            answer = system.with_warning(question.example, answer)
        times = arrived[-1][1], arrived[0][1]
        sure = self.model.is_sure(answer)
        return TextAnswer(question.reference, joined, len(arrived), whole, *times, sure, other)

    def _pieces(self, model: ModelInfo, question: TextQuestion) -> Iterator[GeneratedText]:
        """Yield the answer of a model: whole, or piece by piece."""
        system, deadline = self.parts.generator, Deadline(REQUEST_TIMEOUT_S)
        try:
            inputs = system.request_inputs(question.example, model)
        except ValueError as exc:
            raise BadData(str(exc)) from exc
        if not model.decoupled:
            yield system.generated(self.triton.infer(model.target, inputs, deadline).outputs, model)
            return
        for outputs in filter(None, self.triton.stream(model, inputs, deadline)):
            yield system.generated(outputs, model)


def check(
    triton: Triton, options: CheckOptions, model: ModelInfo, parts: SystemParts, stage: Stage
) -> TextReport:
    """Ask about all examples and score the answers; `options.data` may be a file of texts, one per line."""
    whole = None
    if model.decoupled:
        with suppress(ModelUnavailable):
            usual = triton.describe(parts.generator.default_model)
            whole = None if usual.decoupled else usual
    against = triton.describe(options.against) if options.against else None
    if against and against.system != model.system:
        raise UsageError(f"{options.against} is not a model of {model.system}: name one that is")
    questions, replies = _questions(options, parts), Replies[TextAnswer]()
    text_check = TextCheck(triton, model, parts, whole, against)
    with replies.until_stopped(), stage("asking") as tick:
        ask_all(text_check.ask, questions, len(questions), triton, replies, tick)
    answers, scores, agreement, near = replies.answers, None, None, None
    if answers and answers[0].reference.answer:
        scores = score([answer.reference for answer in answers], [answer.joined for answer in answers])
        if sure := [answer for answer in answers if answer.sure]:
            texts = [GeneratedText(answer.joined) for answer in sure]
            judgements = judged([answer.reference for answer in sure], texts)
            near = sum(answer.is_near for answer in judgements) / len(judgements)
    with replies.until_stopped():
        if answers and options.weights:
            agreement = _agreement(parts, answers, options.weights, stage)
    name = whole.name if whole else ""
    of = "pictures" if parts.generator.example_kind == "picture" else "texts"
    return TextReport(model, name, len(questions), replies, scores, agreement, near, of, options.against)


def _agreement(parts: SystemParts, answers: Sequence[TextAnswer], weights: Path, stage: Stage) -> float:
    """Return the share of answers that equal those of the network with these weights."""
    eager = parts.evaluation
    if not isinstance(eager, TextEvaluation):
        raise UsageError(f"{parts.system} has no evaluation of texts to compare with: leave out --eager")
    with stage("the eager network") as tick:
        own = eager.answer(weights, [answer.text for answer in answers], "cpu", tick)
    return sum(a == b.joined for a, b in zip(own, answers, strict=True)) / len(answers)


def _questions(options: CheckOptions, parts: SystemParts) -> Sequence[TextQuestion]:
    data = options.data
    if data is None:
        examples = parts.generator.examples(options.limit or _EXAMPLES, seed=0)
        return [
            TextQuestion(example, Reference("", _shown(example, n), ""))
            for n, example in enumerate(examples, 1)
        ]
    if parts.generator.example_kind == "picture":
        return list(_pictures(data, options.limit))
    try:
        text = "" if data.is_dir() else read_text(data)
    except (OSError, ValueError) as exc:
        raise UsageError(f"--data {data} is not a file of texts: {in_short(exc)}") from exc
    if data.is_dir() or "\t" in text.partition("\n")[0]:
        references = parts.text_data.references(data, "test", options.limit)
    else:
        lines = [line.strip() for line in text.splitlines()]
        references = [Reference("", line, "") for line in lines if line][: options.limit]
    return [TextQuestion(example.text.encode(), example) for example in references]


def _pictures(data: Path, limit: int | None) -> Iterator[TextQuestion]:
    """Return the pictures of a folder, or the one file. The model says whether they are pictures."""
    pictures = (path for path in data.rglob("*") if path.suffix.lower() in SUFFIXES)
    paths = sorted(pictures) if data.is_dir() else [data]
    if not paths:
        raise UsageError(f"--data {data} has no pictures in it: they end in {', '.join(sorted(SUFFIXES))}")
    for path in paths[:limit]:
        try:
            yield TextQuestion(path.read_bytes(), Reference("", path.name, ""))
        except (OSError, ValueError) as exc:
            raise UsageError(f"--data {path} cannot be read: {in_short(exc)}") from exc


def _shown(example: bytes, number: int) -> str:
    """Return a text itself, or the number of any other example, such as a picture."""
    try:
        return example.decode()
    except UnicodeDecodeError:
        return f"example {number}"
