"""A served network asked about rows: noise, a file of them, or labelled pictures; and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from gourmet.client.triton import Triton
from gourmet.contracts import ModelInfo
from gourmet.errors import GourmetError
from gourmet.reports import page
from gourmet.reports.table import columns
from gourmet.tasks.asking import TimedServer
from gourmet.tasks.checking import Replies
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.deployer.deployment import (
    Rows,
    as_reference,
    network_of,
    tolerance,
)
from gourmet.tasks.classification.deployer.networks import Network
from gourmet.tasks.classification.deployer.rows import (
    TYPES,
    ClientOptions,
    Examples,
    examples_of,
    side_of,
)
from gourmet.tasks.system_parts import Stage
from gourmet.training.task import Tick

_WORST: Final = 5
_SHOWN: Final = 5


@dataclass(frozen=True)
class RowDifference:
    """A row whose answer differs from the network's, and by how much."""

    name: str
    difference: float
    served: int
    network: int


@dataclass(frozen=True)
class NetworkReport:
    """What came of it; shares are of the rows, None where there was nothing to compare with."""

    model: str
    protocol: str
    data: str
    rows: int
    batch_size: int
    top1: float | None
    agreement: float | None
    largest_difference: float | None
    allowed_difference: float | None
    worst: tuple[RowDifference, ...]
    complaints: tuple[str, ...]
    stopped: bool = False

    def progress(self) -> str:
        return f"{self.rows} rows"

    def faults(self) -> list[str]:
        return list(self.complaints)

    def summary(self) -> str:
        return columns([("what", "found"), *self._lines()])

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        return {**found, "faults": found.pop("complaints")}

    def page(self) -> str:
        return page.render(
            "tasks/classification/deployer/check.html", title=f"{self.model} asked", report=self
        )

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield f"rows asked over {self.protocol}", str(self.rows)
        yield "data", self.data
        if self.top1 is not None:
            yield "top-1", f"{self.top1:.4f}"
        if self.agreement is not None:
            yield "agreement with the network", f"{self.agreement:.4f}"
            yield "largest difference", f"{self.largest_difference:.1e}"
            yield "allowed", f"{self.allowed_difference:.1e}"


@dataclass(frozen=True)
class RowBatch:
    """The rows of one request, by their places among all."""

    names: Sequence[str]
    first: int
    rows: Rows


@dataclass(frozen=True)
class NetworkCheck:
    """A served network, the rows that it is asked about and, where it is known, the network itself."""

    info: ModelInfo
    options: ClientOptions
    protocol: str
    of: Examples
    network: Network | None
    say: Callable[[str], None]
    examples: str = "rows"

    def __len__(self) -> int:
        return len(self.of.names)

    def questions(self) -> Iterator[RowBatch]:
        kind, size = TYPES["FP16" if self.options.half else "FP32"], self.options.batch_size
        for first in range(0, len(self), size):
            names = self.of.names[first : first + size]
            yield RowBatch(names, first, self.of.read(first, first + len(names)).astype(kind))

    def ask(self, batch: RowBatch, server: TimedServer) -> Scores:
        model = self.info.name
        outputs = server.infer(model, {self.info.inputs[0].name: batch.rows}).outputs
        answer: Scores = outputs[self.info.outputs[0].name]
        if answer.ndim != 2 or len(answer) != len(batch.rows) or not np.isfinite(answer).all():
            raise GourmetError(
                f"{model} answered {len(batch.rows)} rows with {list(answer.shape)}, or with values that are "
                "not finite"
            )
        classes = ", ".join(map(str, answer.argmax(axis=1)[:_SHOWN]))
        self.say(f"rows {batch.first} to {batch.first + len(answer) - 1}: classes {classes}")
        return answer.astype(np.float32)

    def score(self, replies: Replies[Scores], stage: Stage) -> NetworkReport:
        if replies.failures:
            raise GourmetError("\n       ".join(map(str, replies.failures)))
        if not replies.answers:
            raise KeyboardInterrupt
        right: Scores | None = None
        if self.network:
            asked = islice(self.questions(), len(replies.answers))
            with stage("asking the network") as tick:
                right = np.concatenate(list(self._right(self.network, asked, tick)))
        return _report(self, np.concatenate(replies.answers), right, replies.stopped)

    def _right(self, network: Network, batches: Iterable[RowBatch], tick: Tick) -> Iterator[Scores]:
        reference = as_reference(network.module)
        for batch in batches:
            yield reference(batch.rows)
            tick((batch.first + len(batch.rows)) / len(self))


def prepare(
    triton: Triton, options: ClientOptions, say: Callable[[str], None] = lambda _words: None
) -> NetworkCheck:
    """The check of a served model; raise GourmetError where it cannot be asked so."""
    info = triton.describe(options.model)
    side = side_of(info, options)
    network = network_of(options.config, options.reference, options.seed)[0] if options.reference else None
    examples = examples_of(info, options, side, network)
    return NetworkCheck(info, options, triton.protocol, examples, network, say)


def _report(check: NetworkCheck, scores: Scores, right: Scores | None, stopped: bool) -> NetworkReport:
    options, examples, chosen = check.options, check.of, scores.argmax(axis=1)
    classes = examples.classes
    top1 = None if classes is None else float((chosen == classes[: len(chosen)]).mean())
    agreement = largest = allowed = None
    worst: list[RowDifference] = []
    if right is not None:
        if right.shape != scores.shape:
            raise GourmetError(
                f"{options.model} gives {scores.shape[1]} scores a row and {options.config} of "
                f"{options.reference} {right.shape[1]}: name the checkpoint that was deployed"
            )
        theirs, apart = right.argmax(axis=1), np.abs(scores - right).max(axis=1)
        agreement, largest = float((chosen == theirs).mean()), float(apart.max())
        allowed = options.max_difference or tolerance(right, half=options.half)
        worst = [
            RowDifference(examples.names[row], float(apart[row]), int(chosen[row]), int(theirs[row]))
            for row in np.argsort(-apart)[:_WORST]
        ]
    faults = []
    if options.min_top1 is not None and top1 is None:
        faults.append(f"--min-top1 {options.min_top1} cannot be judged: {examples.about} carry no labels")
    elif options.min_top1 is not None and top1 is not None and top1 < options.min_top1:
        faults.append(f"top-1 is {top1:.4f}, below the {options.min_top1} that --min-top1 asks for")
    if options.min_agreement is not None and agreement is not None and agreement < options.min_agreement:
        faults.append(f"agreement is {agreement:.4f}, below the {options.min_agreement} of --min-agreement")
    if largest is not None and allowed is not None and largest > allowed:
        faults.append(f"answers differ from the network's by {largest:.1e}, where {allowed:.1e} is allowed")
    return NetworkReport(
        model=options.model,
        protocol=check.protocol,
        data=examples.about,
        rows=len(scores),
        batch_size=options.batch_size,
        top1=top1,
        agreement=agreement,
        largest_difference=largest,
        allowed_difference=allowed,
        worst=tuple(worst),
        complaints=tuple(faults),
        stopped=stopped,
    )
