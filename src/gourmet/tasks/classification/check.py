"""A served classifier asked about pictures: how right is it, and is each answer its picture's own?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from gourmet.contracts import BadAnswer, ModelInfo
from gourmet.errors import GourmetError, UnknownSystem, UsageError
from gourmet.pictures.decode import PictureError
from gourmet.runtime import malloc
from gourmet.tasks.checking import CheckOptions, Replies, TimedServer, ask_all, first_of
from gourmet.tasks.classification import evaluation
from gourmet.tasks.classification.agreement import (
    Agreement,
    AskedAgain,
    BatchAnswer,
    PictureAnswers,
    ServedClassifier,
    agreement,
    exported_weights,
)
from gourmet.tasks.classification.check_report import PictureReport
from gourmet.tasks.classification.checked_pictures import CheckedPictures, find
from gourmet.tasks.system_parts import BadData, Stage, SystemParts
from gourmet.training.task import Tick

ANSWER: Final = BatchAnswer
_AGAIN: Final = 64
_SAMPLE_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True)
class PictureBatch:
    """The pictures of one request, by their places among all."""

    first: int
    names: Sequence[str]
    blobs: Sequence[bytes]


@dataclass(frozen=True)
class PictureCheck:
    """Fulfils `gourmet.tasks.checking.ServedCheck`."""

    server: TimedServer
    served: ServedClassifier
    pictures: CheckedPictures
    options: CheckOptions
    parts: SystemParts
    against: ServedClassifier | None = None

    def __len__(self) -> int:
        return len(self.pictures)

    def questions(self) -> Iterator[PictureBatch]:
        """Batches, of which the last may be smaller."""
        everything = self.pictures.read(range(len(self)))
        for first in range(0, len(self), self.options.batch):
            try:
                blobs = list(islice(everything, self.options.batch))
            except OSError as exc:
                raise BadData(f"{self.pictures.source} cannot be read: {exc}") from exc
            yield PictureBatch(first, self.pictures.names[first : first + len(blobs)], blobs)

    def ask(self, question: PictureBatch, server: TimedServer) -> BatchAnswer:
        """Raise BadAnswer unless each picture has an answer of its own."""
        (spec,) = self.served.info.inputs
        info, contract, pictures, encoded = self.served.info, self.served.contract, len(question.blobs), []
        for name, blob in zip(question.names, question.blobs, strict=True):
            try:
                encoded.append(contract.encode(blob, spec.datatype))
            except PictureError as exc:
                raise BadData(f"{name} cannot be read: {exc} [{exc.code}]") from exc
        answer = server.infer(info.target, {spec.name: np.concatenate(encoded)})
        outputs = answer.outputs
        for name, output in outputs.items():
            if info.max_batch_size and len(output) != pictures:
                raise BadAnswer(f"{name} has {len(output)} rows in answer to {pictures}")
        rows, expected = contract.probabilities(outputs, info), (pictures, len(self.served.labels))
        if rows.shape != expected:
            raise BadAnswer(f"the answer has the shape {list(rows.shape)} instead of {list(expected)}")
        if not contract.are_probabilities(rows):
            raise BadAnswer("the probabilities of a row do not sum to 1")
        relevance = contract.relevance(outputs, info)
        shown = None if relevance is None else relevance.tolist()
        return BatchAnswer(question.first, rows.tolist(), shown, answer.model_version)

    def score(self, replies: Replies[BatchAnswer], stage: Stage) -> PictureReport:
        """Ask about some pictures again, compare with the network, and measure."""
        answers = PictureAnswers.joined(replies.answers, len(self), len(self.served.labels))
        again: AskedAgain | None = None
        against: Agreement | None = None
        eager: Agreement | str = "stopped before" if replies.stopped else "no picture was answered"
        if answers.versions and not replies.stopped:
            with replies.until_stopped():
                with stage("asking some again") as tick:
                    again = self._ask_again(answers, tick)
                eager = self._compare(answers, stage)
                if self.against:
                    against = self._compare_with(self.against, answers, stage)
        if replies.stopped:
            eager = "stopped before"
        return PictureReport(
            self.served, self.pictures, self.options, replies, answers, again, eager, against
        )

    def _ask_again(self, answers: PictureAnswers, tick: Tick) -> AskedAgain:
        """Ask about pictures from all over, each alone: is the answer in a batch the picture's own?

        A server that drops, repeats or swaps rows answers with good probabilities for the wrong pictures,
        which accuracy alone would show as a bad network.
        """
        answered = np.flatnonzero(answers.there)
        rows = np.sort(np.random.default_rng(0).choice(answered, min(_AGAIN, len(answered)), replace=False))
        names, server = self.pictures.names, TimedServer(self.server.triton, 1, self.options.timeout_s)
        read = zip(rows.tolist(), self.pictures.read(rows.tolist()), strict=True)
        alone = (PictureBatch(row, [names[row]], [blob]) for row, blob in read)
        replies = Replies[BatchAnswer]()
        ask_all(self.ask, alone, len(rows), server, replies, tick)
        answers_alone = PictureAnswers.joined(replies.answers, len(self), len(self.served.labels))
        return AskedAgain.compared(answers, answers_alone, names, tuple(map(str, replies.failures)))

    def _compare(self, answers: PictureAnswers, stage: Stage) -> Agreement | str:
        options = self.options
        weights = options.weights or exported_weights(self.served.info, max(answers.versions), options)
        if isinstance(weights, str):
            return weights
        with stage("asking the network") as tick:
            malloc.use(malloc.TRAINING)
            network, _ = self.parts.evaluation.load(weights, "")
            rows = np.flatnonzero(answers.there).tolist()
            pictures = self.pictures.read(rows)
            logits = evaluation.ask(network, self.served.contract, pictures, len(rows), tick)
        theirs = self.served.contract.scaled(logits, self.served.info.temperature)
        return agreement(answers, theirs, self.pictures, self.served.labels, str(weights))

    def _compare_with(
        self, other: ServedClassifier, answers: PictureAnswers, stage: Stage
    ) -> Agreement | None:
        """Compare the answers with those of another served model to the same pictures."""
        replies = Replies[BatchAnswer]()
        options = replace(self.options, batch=min(self.options.batch, max(1, other.info.max_batch_size)))
        check = replace(self, served=other, options=options)
        with stage(f"asking {other.info.target}") as tick:
            ask_all(check.ask, check.questions(), len(self), self.server, replies, tick)
        theirs = PictureAnswers.joined(replies.answers, len(self), len(other.labels))
        both = answers.there & theirs.there
        if not both.any():
            raise GourmetError(f"{other.info.target} answered none: {first_of(replies.failures)}")
        mine = replace(answers, probabilities=np.where(both[:, None], answers.probabilities, np.nan))
        rows = theirs.probabilities[both]
        return agreement(mine, rows, self.pictures, self.served.labels, other.info.target)


def prepare(server: TimedServer, options: CheckOptions, model: ModelInfo, parts: SystemParts) -> PictureCheck:
    """Find the pictures, and see that the model answers its system's sample."""
    served = ServedClassifier(model, parts.classifier)
    data = options.data or _bundled(model, parts)
    # A model without batching takes one picture at a time, and none takes more than its maximum.
    options = replace(options, batch=min(options.batch, max(1, model.max_batch_size)))
    pictures = find(
        parts.data,
        served.contract.labels,
        data,
        options.part,
        options.limit,
        missing_classes=options.missing_classes,
    )
    against = None
    if options.against:
        against = ServedClassifier(server.triton.describe(options.against), served.contract)
        if (against.info.system, against.labels) != (model.system, served.labels):
            raise UsageError(
                f"{options.against} has other labels than {model.name}: name one of {model.system}"
            )
    check = PictureCheck(server, served, pictures, options, parts, against)
    sample = PictureBatch(0, ["the sample"], [served.contract.sample()])
    before = server.triton.total(model.name)
    check.ask(sample, TimedServer(server.triton, 1, _SAMPLE_TIMEOUT_S))
    # Triton counts it a little after it answered: the rows of the check are counted from then on.
    server.triton.counted(model.name, before, lambda counted: counted.requests > 0)
    return check


def _bundled(model: ModelInfo, parts: SystemParts) -> Path:
    """The labelled pictures that the model's system brings along."""
    with suppress(UnknownSystem):  # its folder may have nothing that trains it
        if bundled := parts.training.bundled_data():
            return bundled[0]
    raise UsageError(
        f"{model.name!r} is a classifier, and {model.system} brings no pictures along: "
        "name some to ask about with --data"
    )
