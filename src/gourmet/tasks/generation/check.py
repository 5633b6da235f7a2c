"""Ask a served model that generates text its system's examples, whole and, if it streams, in pieces."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from gourmet.contracts import Generation, ModelInfo
from gourmet.errors import GourmetError, UsageError
from gourmet.reports.page import render
from gourmet.runtime.generate import stream
from gourmet.serving.client import ModelUnavailable, describe_model, infer, triton
from gourmet.systems import registry
from gourmet.tasks.checking import Wanted, as_words, in_threads, percentiles
from gourmet.tasks.generation.evaluation import TextEvaluation
from gourmet.tasks.generation.scoring import Scores, score
from gourmet.tasks.system_parts import Reference, Stage, SystemParts

_EXAMPLES: Final = 64
_NAMED: Final = 5


@dataclass(frozen=True)
class TextAnswer:
    """One text and its answer: in pieces, and whole where a model answers so; or why there is none."""

    text: str
    pieces: tuple[str, ...] = ()
    whole: str | None = None
    total_ms: float = 0.0
    first_piece_ms: float = 0.0
    failure: str = ""

    @property
    def joined(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True)
class TextReport:
    """What a check of a model that generates text found."""

    model: str
    version: str
    decoupled: bool
    compared_with: str  # the model that answers whole what this one streams; empty if there is none
    wanted: int
    asked: Sequence[TextAnswer]
    # How near the answers are to people's, and the share of them that are the eager network's, where known.
    scores: Scores | None = None
    agreement: float | None = None

    @property
    def stopped(self) -> bool:
        return len(self.asked) < self.wanted

    def progress(self) -> str:
        return f"{len(self.asked)} of {self.wanted} texts"

    def faults(self) -> list[str]:
        failed = [f"{each.text[:40]!r}: {each.failure}" for each in self.asked if each.failure]
        empty = [repr(each.text[:40]) for each in self._answered if not each.joined]
        other = [
            f"{each.text[:40]!r}: {each.joined[:60]!r} in pieces, {each.whole[:60]!r} whole"
            for each in self._answered
            if each.whole is not None and each.whole != each.joined
        ]
        return [
            f"{len(found)} of {len(self.asked)} {what}: {'; '.join(found[:_NAMED])}"
            for what, found in (
                ("texts have no answer", failed),
                ("answers are empty", empty),
                (f"answers are not those of {self.compared_with}", other),
            )
            if found
        ]

    @property
    def _answered(self) -> list[TextAnswer]:
        return [each for each in self.asked if not each.failure]

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "version": self.version,
            "streams": self.decoupled,
            "compared_with": self.compared_with or None,
            "texts": self.wanted,
            "answered": len(self._answered),
            "faults": self.faults(),
            "total_ms": percentiles([each.total_ms for each in self._answered]),
            "first_piece_ms": percentiles([each.first_piece_ms for each in self._answered]),
            "pieces": sum(len(each.pieces) for each in self._answered),
            "scores": self.scores and asdict(self.scores),
            "agreement": self.agreement,
        }

    def summary(self) -> str:
        told = self.as_dict()
        lines = [f"{self.model} version {self.version}: {told['answered']} of {self.wanted} texts answered"]
        if self.compared_with:
            lines.append(f"pieces      {told['pieces']}, joined and compared with {self.compared_with}")
        for name, key in (("latency", "total_ms"), ("first piece", "first_piece_ms")):
            if told[key] and (self.decoupled or key == "total_ms"):
                lines.append(f"{name:<12}{as_words(told[key])}")
        if self.scores:
            found = self.scores
            lines.append(
                f"BLEU        {found.all.bleu:.1f} ± {found.margin:.1f}, chrF {found.all.chrf:.1f} "
                f"({found.signatures[0]})"
            )
        if self.agreement is not None:
            lines.append(f"as eager    {100 * self.agreement:.1f} % of the answers are the network's own")
        return "\n".join(lines + [f"{each.text} → {each.joined}" for each in self._answered[:_NAMED]])

    def page(self) -> str:
        rows = [(each.text, each.joined or each.failure) for each in self.asked]
        title, summary = f"gourmet check: {self.model}", self.summary()
        return render("tasks/generation/check.html", title=title, summary=summary, rows=rows)


def check_texts(wanted: Wanted, stage: Stage) -> TextReport:
    """`wanted.data` may be a file of texts, a line each."""
    with triton(wanted.url) as client:
        info = describe_model(client, wanted.model)
        system = registry.generation(info.system)
        beside = None
        if info.decoupled:
            with suppress(ModelUnavailable):
                usual = describe_model(client, system.default_model)
                beside = None if usual.decoupled else usual
    references = _references(wanted, system)
    texts = [each.text for each in references]
    asked: list[TextAnswer] = []
    ask = partial(_ask, wanted, system, info, beside)
    with suppress(KeyboardInterrupt), stage("asking") as tick:
        for each in in_threads(ask, texts, wanted.in_flight):
            asked.append(each)
            tick(len(asked) / len(texts), f"{len(asked)}/{len(texts)}")
    name = beside.name if beside else ""
    known = references[: len(asked)]
    answers = [each.joined for each in asked]
    return TextReport(
        info.name,
        info.version,
        info.decoupled,
        name,
        len(texts),
        asked,
        score(known, answers) if asked and known[0].answer else None,
        _agreement(wanted, system, known, answers, stage) if asked and wanted.weights else None,
    )


def _references(wanted: Wanted, system: Generation) -> Sequence[Reference]:
    """What to ask; the right answers are empty where nobody gave them."""
    if wanted.data is None:
        texts = [each.decode() for each in system.examples(wanted.limit or _EXAMPLES, seed=0)]
        return [Reference("", text, "") for text in texts]
    if wanted.data.is_dir() or "\t" in wanted.data.read_text(encoding="utf-8").partition("\n")[0]:
        return SystemParts(system.name, registry.piece).text_data.references(
            wanted.data, wanted.part or "test", wanted.limit
        )
    lines = [line.strip() for line in wanted.data.read_text(encoding="utf-8").splitlines()]
    return [Reference("", line, "") for line in lines if line][: wanted.limit]


def _agreement(
    wanted: Wanted, system: Generation, asked: Sequence[Reference], answers: Sequence[str], stage: Stage
) -> float:
    """The share of answers that the network of these weights gives too."""
    assert wanted.weights
    eager = SystemParts(system.name, registry.piece).evaluation
    if not isinstance(eager, TextEvaluation):
        raise UsageError(f"{system.name} has no evaluation of texts to compare with: leave out --eager")
    with stage("the eager network") as tick:
        own = eager.answer(wanted.weights, [each.text for each in asked], "cpu", tick)
    return sum(a == b for a, b in zip(own, answers, strict=True)) / len(answers)


def _ask(
    wanted: Wanted, system: Generation, info: ModelInfo, beside: ModelInfo | None, text: str
) -> TextAnswer:
    pieces, arrived_ms = list[str](), list[float]()
    began = time.monotonic()
    try:
        for piece in _pieces(wanted, system, info, text):
            pieces.append(piece)
            arrived_ms.append((time.monotonic() - began) * 1000.0)
        whole = "".join(_pieces(wanted, system, beside, text)) if beside else None
    except (GourmetError, OSError) as exc:
        return TextAnswer(text, failure=str(exc))
    arrived_ms = arrived_ms or [0.0]
    return TextAnswer(text, tuple(pieces), whole, arrived_ms[-1], arrived_ms[0])


def _pieces(wanted: Wanted, system: Generation, info: ModelInfo, text: str) -> Iterator[str]:
    """The answer of a model: its only one, or piece by piece."""
    inputs = system.text_inputs(text, info, {})
    if info.decoupled:
        answers = stream(wanted.url, info, inputs, wanted.timeout_s)
    else:
        with triton(wanted.url, wanted.timeout_s) as client:
            answers = iter([infer(client, info.name, inputs)])
    for outputs in answers:
        yield system.generated(outputs, info).text
