"""Check a served model that generates text, whole and, if it streams, in pieces; score its answers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gourmet.contracts import GeneratedText, ModelInfo, WarnsOfAnswers
from gourmet.errors import UsageError
from gourmet.evaluation.checking import (
    REQUEST_TIMEOUT_S,
    CheckOptions,
    Replies,
    ask_all,
    first_of,
    percentiles,
    percentiles_text,
)
from gourmet.evaluation.system_parts import BadData, Reference, SystemParts
from gourmet.evaluation.text_certainty import NEAR, judged
from gourmet.evaluation.text_evaluation import score_texts
from gourmet.pictures.header import SUFFIXES
from gourmet.progress import ProgressBar
from gourmet.reports.report import Report, Section, Table
from gourmet.served.reading import error_summary, read_text
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import ModelUnavailable
from gourmet.triton_client.triton import Triton

_EXAMPLES: Final = 64
_IN_TERMINAL: Final = 5
_SURE: Final = {True: "sure", False: "rough guess", None: ""}


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
class TextCheck:
    """A served model that generates text, and the models whose answers are compared with its own."""

    triton: Triton
    model: ModelInfo
    parts: SystemParts
    whole_model: ModelInfo | None  # answers in one piece what `model` streams
    against: ModelInfo | None = None

    def ask_text(self, question: TextQuestion) -> TextAnswer:
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


def check_model(
    triton: Triton, options: CheckOptions, model: ModelInfo, parts: SystemParts, progress_bar: ProgressBar
) -> Report:
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
    with replies.until_stopped(), progress_bar("asking") as on_progress:
        ask_all(text_check.ask_text, questions, len(questions), triton, replies, on_progress)
    kind = "pictures" if parts.generator.example_kind == "picture" else "texts"
    return text_report(model, replies, len(questions), whole.name if whole else "", options.against, kind)


def text_report(
    model: ModelInfo,
    replies: Replies[TextAnswer],
    texts: int,
    whole: str = "",
    against: str | None = None,
    kind: str = "texts",
) -> Report:
    """`whole` is the model that answers whole what this one streams; `against` answered the same texts."""
    answers, failures = replies.answers, replies.failures
    asked, first_piece = len(answers) + len(failures), [answer.first_piece_ms for answer in answers]
    scored, near = Section(), None
    if answers and answers[0].reference.answer:
        scored = score_texts([answer.reference for answer in answers], [answer.joined for answer in answers])
        if sure := [answer for answer in answers if answer.sure]:
            generated = [GeneratedText(answer.joined) for answer in sure]
            near = _share(one.is_near for one in judged([answer.reference for answer in sure], generated))
    known = [answer.sure for answer in answers if answer.sure is not None]
    sure_share = _share(known) if known else None
    same = _share(answer.other == answer.joined for answer in answers)
    pieces = sum(answer.pieces for answer in answers)
    facts = []
    if whole:
        facts.append(("pieces", f"{pieces}, joined and compared with {whole}"))
    if answers:
        facts.append(("latency", percentiles_text(replies.times_ms)))
    if answers and model.decoupled:
        facts.append(("first piece", percentiles_text(first_piece)))
    facts += scored.facts
    if sure_share is not None:
        of_them = "" if near is None else f"; of them {100 * near:.1f} % have a chrF of at least {NEAR:g}"
        facts.append(("sure", f"{100 * sure_share:.1f} % of the answers{of_them}"))
    if against:
        facts.append(("against", f"{100 * same:.1f} % of the answers are those of {against}"))
    faults = _faults(replies, whole, kind)
    measures = {
        "model": model.name,
        "version": model.version,
        "streams": model.decoupled,
        "compared_with": whole or None,
        "texts": texts,
        "answered": len(answers),
        "faults": faults,
        "total_ms": percentiles(replies.times_ms),
        "first_piece_ms": percentiles(first_piece),
        "pieces": pieces,
        "scores": scored.measures or None,
        "sure": sure_share,
        "near_of_sure": near,
        "against": against and {"model": against, "same": same},
    }
    rows = [(answer.text, answer.joined, _SURE[answer.sure]) for answer in answers]
    lost = [(failure.names[0], failure.reason) for failure in failures]
    tables = [
        *scored.tables,
        Table(("text", "answer", "sure"), rows, _IN_TERMINAL),
        Table(("without an answer", "why"), lost, in_terminal=0),
    ]
    return Report(
        f"gourmet check: {model.name}",
        f"{model.name} version {model.version}: {len(answers)} of {texts} {kind} answered",
        measures,
        [Section(facts=facts, tables=tables)],
        failures=faults,
        stopped=f"{asked} of {texts} {kind}" if replies.stopped else "",
    )


def _share(of: Iterable[bool]) -> float:
    values = list(of)
    return sum(values) / max(1, len(values))


def _faults(replies: Replies[TextAnswer], whole: str, kind: str) -> list[str]:
    """Return the reasons why the check fails."""
    empty = [repr(answer.text[:40]) for answer in replies.answers if not answer.joined]
    other = [
        f"{answer.text[:40]!r}: {answer.joined[:60]!r} in pieces, {answer.whole[:60]!r} whole"
        for answer in replies.answers
        if answer.whole is not None and answer.whole != answer.joined
    ]
    return [
        f"{len(examples)} of {len(replies.answers) + len(replies.failures)} {what}: {first_of(examples)}"
        for what, examples in (
            (f"{kind} have no answer", replies.failures),
            ("answers are empty", empty),
            (f"answers are not those of {whole}", other),
        )
        if examples
    ]


def _questions(options: CheckOptions, parts: SystemParts) -> Sequence[TextQuestion]:
    data = options.data
    if data is None:
        examples = parts.generator.examples(options.limit or _EXAMPLES, seed=0)
        return [
            TextQuestion(example, Reference("", _name_of_example(example, n), ""))
            for n, example in enumerate(examples, 1)
        ]
    if parts.generator.example_kind == "picture":
        return list(_pictures(data, options.limit))
    try:
        text = "" if data.is_dir() else read_text(data)
    except (OSError, ValueError) as exc:
        raise UsageError(f"--data {data} is not a file of texts: {error_summary(exc)}") from exc
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
            raise UsageError(f"--data {path} cannot be read: {error_summary(exc)}") from exc


def _name_of_example(example: bytes, number: int) -> str:
    """Return a text itself, or the number of any other example, such as a picture."""
    try:
        return example.decode()
    except UnicodeDecodeError:
        return f"example {number}"
