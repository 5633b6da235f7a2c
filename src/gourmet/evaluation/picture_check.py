"""Ask a served classifier about pictures: measure its accuracy, and find mixed-up answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.contracts import BadAnswer, ModelInfo
from gourmet.errors import GourmetError, UnknownSystem, UsageError
from gourmet.evaluation import picture_evaluation
from gourmet.evaluation.accuracy import Scores, origin_lines
from gourmet.evaluation.calibration import Calibration
from gourmet.evaluation.checking import (
    REQUEST_TIMEOUT_S,
    CheckOptions,
    Replies,
    as_words,
    ask_all,
    fact_lines,
    first_of,
)
from gourmet.evaluation.labelled_pictures import ALL
from gourmet.evaluation.picture_evaluation import Answered, Declined, Measured
from gourmet.evaluation.system_parts import BadData, Data, Stage, SystemParts, evenly, spread
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError
from gourmet.pictures.header import SUFFIXES
from gourmet.progress import ReportProgress
from gourmet.reports.table import columns
from gourmet.served import malloc
from gourmet.served.manifest import MANIFEST, sha256
from gourmet.served.reading import read_table
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.triton import Triton

# Rows computed in a batch of another size differ in the last digits; on a GPU in half precision, by 0.005.
_SAME_WITHIN: Final = 0.02
_WORST: Final = 10
_NAMED: Final = 5
_AGAIN: Final = 64
_BATCH: Final = 16
_RUNS: Final = Path("runs")  # where the weights that a manifest names may lie


@dataclass(frozen=True)
class CheckedPictures:
    """Pictures in their order, not yet read."""

    source: Path
    names: Sequence[str]
    classes: npt.NDArray[np.int64] | None  # None without labels
    read: Callable[[Sequence[int]], Iterator[bytes]]  # those of some rows
    note: str = ""  # what a reader of the numbers must know about them

    def __len__(self) -> int:
        return len(self.names)


def find(source: Data, labels: Sequence[str], data: Path, limit: int | None) -> CheckedPictures:
    """Find the test part of `data`, which `source` reads, or all pictures of a folder with nothing else."""
    if loose := _loose(data):
        try:
            listed = source.listing(data, ALL)
        except GourmetError as exc:
            chosen = spread(loose, limit)
            return CheckedPictures(
                data,
                [path.name for path in chosen],
                None,
                lambda rows: (chosen[row].read_bytes() for row in rows),
                f"these pictures carry no labels, so nothing is said of accuracy ({exc})",
            )
    else:
        listed = source.listing(data, "test")
    pictures = evenly(listed, limit)
    absent = [labels[class_id] for class_id in sorted({*range(len(labels))} - {p.class_id for p in pictures})]
    return CheckedPictures(
        data,
        [picture.name for picture in pictures],
        np.array([picture.class_id for picture in pictures], dtype=np.int64),
        lambda rows: source.read([pictures[row] for row in rows]),
        f"no pictures of {', '.join(absent)}; balanced numbers are over the others" if absent else "",
    )


def _loose(data: Path) -> list[Path]:
    """Return the pictures of a folder that has no subfolders or archives."""
    visible = [entry for entry in sorted(data.iterdir()) if entry.name[0] != "."] if data.is_dir() else []
    if not data.is_dir() or any(entry.is_dir() or entry.suffix.lower() == ".zip" for entry in visible):
        return []
    if not (pictures := [entry for entry in visible if entry.suffix.lower() in SUFFIXES]):
        suffixes = ", ".join(sorted(SUFFIXES))
        raise BadData(f"{data} holds no pictures: a picture's name ends in {suffixes}")
    return pictures


@dataclass(frozen=True)
class PictureBatch:
    """The pictures of one request, and their rows among all."""

    rows: Sequence[int]
    names: Sequence[str]
    blobs: Sequence[bytes]


@dataclass(frozen=True)
class BatchAnswer:
    """The answers to the pictures of one request."""

    rows: Sequence[int]  # of the pictures
    probabilities: Scores
    relevance: Scores | None
    version: str
    total_ms: float  # of the request


def joined(
    pictures: CheckedPictures | Answered, answers: Sequence[BatchAnswer], labels: int
) -> tuple[npt.NDArray[np.int64], Answered]:
    """Return the rows of the pictures that have an answer, and their answers."""
    rows = np.array([row for answer in answers for row in answer.rows], np.int64)
    scores = np.concatenate(
        [np.empty((0, labels), np.float32), *(answer.probabilities for answer in answers)]
    )
    relevance = [answer.relevance for answer in answers if answer.relevance is not None]
    answered = Answered(
        np.log(np.maximum(scores, 1e-12)),
        np.zeros(len(rows), np.int64) if pictures.classes is None else pictures.classes[rows],
        [pictures.names[row] for row in rows],
        lambda some: pictures.read([int(rows[row]) for row in some]),
        np.concatenate(relevance) if len(relevance) == len(answers) > 0 else None,
    )
    return rows, answered


@dataclass(frozen=True)
class AskedAgain:
    """Agreement of two answers about the same pictures: in a batch, and alone."""

    pictures: int
    largest_difference: float
    different: tuple[str, ...]  # names of pictures that got another answer alone, and whose it was
    refused: tuple[str, ...] = ()  # names of pictures that got none alone, and why


@dataclass(frozen=True)
class Agreement:
    """Agreement of a served model with its network or another model, on the pictures that both answered."""

    other: str  # the file of the network, or the other model
    pictures: int
    different: int  # answered with another class
    largest_difference: float  # of any probability
    worst: list[dict[str, Any]]  # pictures about which the two disagree, or agree least
    top1: float | None  # of the other, where there are labels

    def __str__(self) -> str:
        top1 = "" if self.top1 is None else f", whose top-1 is {self.top1:.4f}"
        return (
            f"{self.different} of {self.pictures} answered otherwise than by {self.other}{top1}; "
            f"probabilities apart by at most {self.largest_difference:.1e}"
        )

    @property
    def headings(self) -> tuple[str, str, str, str]:
        return f"furthest from {self.other}", "served", "other", "apart"

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Picture, answers of both, and how far apart, for a table."""
        return [
            (
                row["name"],
                f"{row['served']} {row['served_sure']:.3f}",
                f"{row['other']} {row['other_sure']:.3f}",
                f"{row['difference']:.1e}",
            )
            for row in self.worst
        ]

    def as_dict(self, other: str, answers: str) -> dict[str, Any]:
        """Return the facts, where `other` and its `answers` have these names."""
        facts = asdict(self)
        worst = [{name.replace("other", answers): fact for name, fact in row.items()} for row in self.worst]
        return {other: facts.pop("other"), **facts, "worst": worst}


def agreement(
    answers: Answered, theirs: Scores, labels: tuple[str, ...], other: str, *, labelled: bool
) -> Agreement:
    """Compare the served answers with `theirs`, the other probabilities of the same pictures."""
    mine = np.exp(answers.logits)
    apart = np.abs(mine - theirs).max(axis=1)
    best, right = mine.argmax(axis=1), theirs.argmax(axis=1)
    # Other classes first, and the largest differences first among them.
    order = np.lexsort((-apart, best == right))[:_WORST]
    return Agreement(
        other=other,
        pictures=len(mine),
        different=int((best != right).sum()),
        largest_difference=float(apart.max()),
        worst=[
            {
                "name": answers.names[row],
                "served": labels[best[row]],
                "served_sure": float(mine[row].max()),
                "other": labels[right[row]],
                "other_sure": float(theirs[row].max()),
                "difference": float(apart[row]),
            }
            for row in order
        ],
        top1=float(np.mean(right == answers.classes)) if labelled else None,
    )


@dataclass(frozen=True)
class PictureReport:
    """One check of one served model."""

    model: ModelInfo
    contract: PictureClassifier
    pictures: CheckedPictures
    options: CheckOptions
    replies: Replies[BatchAnswer]
    answers: Answered
    again: AskedAgain | None
    eager: Agreement | str  # or why it was not compared
    against: Agreement | None = None  # with another served model or version

    @property
    def stopped(self) -> bool:
        return self.replies.stopped

    @property
    def answered(self) -> int:
        return len(self.answers.names)

    @property
    def versions(self) -> list[str]:
        return sorted({answer.version for answer in self.replies.answers})

    @property
    def _calibration(self) -> Calibration:
        """The thresholds of the model; its probabilities are calibrated already."""
        return Calibration(1.0, self.model.threshold, self.model.subject_threshold)

    @cached_property
    def quality(self) -> Measured | None:
        """Return the accuracy, or None without labels or answers."""
        if self.pictures.classes is None or not self.answered:
            return None
        return picture_evaluation.measure(
            self.answers, self.contract.labels_of(self.model), self._calibration
        )

    @cached_property
    def declined(self) -> Declined | None:
        """Return the shares of declined answers; None where the model does not report what is relevant."""
        if self.answers.relevance is None:
            return None
        return picture_evaluation.declined(self.answers, self._calibration)

    def problems(self) -> list[str]:
        """List, a sentence each, why these figures may not be the model's. The model may still be bad."""
        problems = []
        replies, again = self.replies, self.again
        if failures := replies.failures:
            lost = sum(len(failure.names) for failure in failures)
            problems.append(
                f"{len(failures)} of {len(failures) + len(replies.answers)} requests failed, "
                f"which leaves {lost} of {replies.sent} pictures without an answer: {first_of(failures)}"
            )
        if again:
            other = "got another answer when asked about alone, so the model mixes up the rows of its batches"
            refused = "were refused when asked about alone"
            problems += [
                f"{len(names)} of {again.pictures} pictures {what}: {first_of(names)}"
                for what, names in ((other, again.different), (refused, again.refused))
                if names
            ]
        if len(self.versions) > 1:
            problems.append(
                f"the versions {', '.join(self.versions)} answered, so these are numbers of "
                "none of them: repeat the check when nothing is being deployed"
            )
        return problems

    def faults(self) -> list[str]:
        """Return the reasons why the check fails; empty if it passes."""
        goal, faults = self.options.min_top1, self.problems()
        if goal is not None and self.quality is None:
            faults.append(f"--min-top1 {goal} cannot be judged: there are no labels, or no answers")
        elif goal is not None and self.quality and (top1 := self.quality.accuracy.top1) < goal:
            faults.append(f"top-1 is {top1:.4f}, below the {goal} that --min-top1 asks for")
        return faults

    def progress(self) -> str:
        return f"{self.answered} of {len(self.pictures)} pictures"

    def as_dict(self) -> dict[str, Any]:
        problems, replies, quality, eager = self.problems(), self.replies, self.quality, self.eager
        return {
            "model": self.model.name,
            "versions": self.versions,
            "system": self.model.system,
            "url": self.options.url,
            "data": str(self.pictures.source),
            "note": self.pictures.note or None,
            "complete": not self.stopped and not problems,
            "stopped": self.stopped,
            "problems": problems,
            "pictures": len(self.pictures),
            "sent": replies.sent,
            "answered": self.answered,
            "failed_requests": [
                {"pictures": list(failure.names), "reason": failure.reason} for failure in replies.failures
            ],
            "requests": {
                "answered": len(replies.answers),
                "latency_ms": replies.latency_ms,
                "seconds": round(replies.wall_s, 2),
            },
            "asked_again": self.again and asdict(self.again),
            "eager": {"compared": False, "why": eager}
            if isinstance(eager, str)
            else {"compared": True, **eager.as_dict("weights", "eager")},
            "against": self.against and self.against.as_dict("model", "other"),
            "quality": quality
            and {
                "calibration_error": round(quality.error, 4),
                "threshold": self.model.threshold or None,
                "answered_surely": round(quality.at_threshold.coverage, 4),
                **quality.as_dict(),
            },
            "declined": self.declined and self.declined.as_dict(),
        }

    def headline(self) -> str:
        """The model, the pictures, and whether all of them were answered."""
        versions = ", ".join(self.versions) or self.model.version
        return (
            f"{self.model.name} version {versions} at {self.options.url}: {self.answered} of "
            f"{len(self.pictures)} pictures answered ({self.pictures.source})"
        )

    @property
    def _agreements(self) -> list[Agreement]:
        """The comparisons in which any probability differs."""
        compared = [both for both in (self.eager, self.against) if isinstance(both, Agreement)]
        return [both for both in compared if both.largest_difference]

    def summary(self) -> str:
        stopped = "what follows is about the answers that had come by then" if self.stopped else ""
        quality, warnings = self.quality, [("STOPPED", stopped), ("note", self.pictures.note)]
        facts = [*(quality.facts() if quality else ()), *self.facts()]
        lines = [self.headline(), *fact_lines([*warnings, *facts])]
        if quality:
            heading = ("class", "pictures", "recall", "precision")
            lines += ["", columns([heading, *quality.accuracy.rows()])]
            lines += ["", *origin_lines(quality.origins)] if quality.origins else []
        for both in self._agreements:
            lines += ["", columns([both.headings, *both.rows()[:_NAMED]])]
        return "\n".join(lines)

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield name and value of each measurement but for the accuracy."""
        replies, again = self.replies, self.again
        if self.declined:
            yield self.contract.subject, str(self.declined)
        yield "network", f"not compared: {self.eager}" if isinstance(self.eager, str) else str(self.eager)
        if self.against:
            yield "against", str(self.against)
        if again:
            yield (
                "order",
                f"{again.pictures} asked again alone: {len(again.different)} answered otherwise, "
                f"probabilities apart by at most {again.largest_difference:.1e}",
            )
        if replies.answers:
            requests = "1 request" if len(replies.answers) == 1 else f"{len(replies.answers)} requests"
            yield "latency", f"{as_words(replies.latency_ms)}, {requests}"
            yield "throughput", f"{self.answered / replies.wall_s:.0f} pictures/s, decoding here included"

    def page(self) -> str:
        from gourmet.evaluation.pages import answers_page

        warnings = [self.pictures.note, "Stopped before the end." if self.stopped else "", *self.problems()]
        return answers_page(
            f"gourmet check: {self.model.name}",
            self.headline(),
            {"answers": self.quality} if self.quality else {},
            self.contract.labels_of(self.model),
            problems=list(filter(None, warnings)),
            facts=[*self.facts()],
            tables={both.headings: both.rows() for both in self._agreements},
        )


@dataclass(frozen=True)
class PictureCheck:
    """A served model and the pictures to ask it about."""

    triton: Triton
    model: ModelInfo
    parts: SystemParts
    pictures: CheckedPictures | Answered

    def questions(self, batch: int = _BATCH) -> Iterator[PictureBatch]:
        """Yield batches, of which the last may be smaller. None is larger than what the model takes."""
        names, batch = self.pictures.names, min(batch, max(1, self.model.max_batch_size))
        everything = self.pictures.read(range(len(names)))
        for first in range(0, len(names), batch):
            try:
                blobs = list(islice(everything, batch))
            except OSError as exc:
                raise BadData(f"{names[first]} cannot be read: {exc}") from exc
            rows = range(first, first + len(blobs))
            yield PictureBatch(rows, names[first : rows.stop], blobs)

    def ask(self, question: PictureBatch) -> BatchAnswer:
        """Raise BadAnswer unless each picture has an answer of its own."""
        (spec,) = self.model.inputs
        model, contract, pictures, encoded = self.model, self.parts.classifier, len(question.blobs), []
        for name, blob in zip(question.names, question.blobs, strict=True):
            try:
                encoded.append(contract.encode(blob, spec.datatype))
            except PictureError as exc:
                raise BadData(f"{name} cannot be read: {exc} [{exc.code}]") from exc
        began = time.monotonic()
        inputs = {spec.name: np.concatenate(encoded)}
        answer = self.triton.infer(model.target, inputs, Deadline(REQUEST_TIMEOUT_S))
        total_ms, outputs = 1000.0 * (time.monotonic() - began), answer.outputs
        for name, output in outputs.items():
            if model.max_batch_size and len(output) != pictures:
                raise BadAnswer(f"{name} has {len(output)} rows in answer to {pictures}")
        rows, expected = contract.probabilities(outputs, model), (pictures, len(contract.labels_of(model)))
        if rows.shape != expected:
            raise BadAnswer(f"the answer has the shape {list(rows.shape)} instead of {list(expected)}")
        if not contract.are_probabilities(rows):
            raise BadAnswer("the probabilities of a row do not sum to 1")
        relevance = contract.relevance(outputs, model)
        return BatchAnswer(question.rows, rows, relevance, answer.model_version, total_ms)

    def ask_about_all(self, replies: Replies[BatchAnswer], tick: ReportProgress) -> None:
        ask_all(self.ask, self.questions(), len(self.pictures.names), self.triton, replies, tick)

    def joined(self, replies: Replies[BatchAnswer]) -> tuple[npt.NDArray[np.int64], Answered]:
        return joined(self.pictures, replies.answers, len(self.parts.classifier.labels_of(self.model)))

    def ask_again(self, answers: Answered, tick: ReportProgress) -> AskedAgain:
        """Ask about some pictures alone: their answers in a batch must be the same.

        A server that drops, repeats or swaps rows answers with good probabilities for the wrong pictures,
        which accuracy alone would show as a bad network.
        """
        count = len(answers.names)
        chosen = np.sort(np.random.default_rng(0).choice(count, min(_AGAIN, count), replace=False))
        some, replies = replace(self, pictures=answers.some(chosen)), Replies[BatchAnswer]()
        ask_all(some.ask, some.questions(batch=1), len(chosen), self.triton, replies, tick, threads=1)
        rows, alone = some.joined(replies)
        in_batches, largest, different = np.exp(answers.logits), 0.0, []
        for row, name, own in zip(chosen[rows], alone.names, np.exp(alone.logits), strict=True):
            apart = np.abs(in_batches - own).max(axis=1)
            nearest = int(apart.argmin())
            largest = max(largest, float(apart[row]))
            if apart[row] > _SAME_WITHIN:
                is_swapped = apart[nearest] <= _SAME_WITHIN
                whose = f" (its answer went to {answers.names[nearest]})" if is_swapped else ""
                different.append(f"{name}{whose}")
        return AskedAgain(len(chosen), largest, tuple(different), tuple(map(str, replies.failures)))

    def compare(self, answers: Answered, weights: Path, stage: Stage) -> Agreement:
        """Compare the answers with those of the network with these weights."""
        contract, count = self.parts.classifier, len(answers.names)
        with stage("asking the network") as tick:
            malloc.use(malloc.TRAINING)
            network, _ = self.parts.evaluation.load(weights, "")
            logits = picture_evaluation.ask(network, contract, answers.read(range(count)), count, tick)
        return self._agreement(answers, contract.scaled(logits, self.model.temperature), str(weights))

    def compare_with(self, other: ModelInfo, answers: Answered, stage: Stage) -> Agreement:
        """Compare the answers with those of another served model to the same pictures."""
        same, replies = replace(self, model=other, pictures=answers), Replies[BatchAnswer]()
        with stage(f"asking {other.target}") as tick:
            same.ask_about_all(replies, tick)
        rows, theirs = same.joined(replies)
        if not len(rows):
            raise GourmetError(f"{other.target} answered none: {first_of(replies.failures)}")
        return self._agreement(answers.some(rows), np.exp(theirs.logits), other.target)

    def _agreement(self, answers: Answered, theirs: Scores, other: str) -> Agreement:
        labels = self.parts.classifier.labels_of(self.model)
        return agreement(answers, theirs, labels, other, labelled=self.pictures.classes is not None)


def check(
    triton: Triton, options: CheckOptions, model: ModelInfo, parts: SystemParts, stage: Stage
) -> PictureReport:
    """Ask about all pictures and about some again, compare with the network, and measure."""
    contract = parts.classifier
    pictures = find(parts.data, contract.labels, options.data or _bundled(model, parts), options.limit)
    other = triton.describe(options.against) if options.against else None
    if other and (other.system, contract.labels_of(other)) != (model.system, contract.labels_of(model)):
        raise UsageError(f"{options.against} has other labels than {model.name}: name one of {model.system}")
    picture_check, replies = PictureCheck(triton, model, parts, pictures), Replies[BatchAnswer]()
    picture_check.ask(PictureBatch([0], ["the sample"], [contract.sample()]))
    with replies.until_stopped(), stage("asking") as tick:
        picture_check.ask_about_all(replies, tick)
    _, answers = picture_check.joined(replies)
    again: AskedAgain | None = None
    against: Agreement | None = None
    eager: Agreement | str = "no picture was answered"
    with replies.until_stopped():
        if answers.names and not replies.stopped:
            with stage("asking some again") as tick:
                again = picture_check.ask_again(answers, tick)
            version = max(answer.version for answer in replies.answers)
            weights = options.weights or exported_weights(model, version, options.repository)
            eager = weights if isinstance(weights, str) else picture_check.compare(answers, weights, stage)
            if other:
                against = picture_check.compare_with(other, answers, stage)
    if replies.stopped:
        eager = "stopped before"
    return PictureReport(model, contract, pictures, options, replies, answers, again, eager, against)


def _bundled(model: ModelInfo, parts: SystemParts) -> Path:
    """Return the labelled pictures that the model's system contains."""
    with suppress(UnknownSystem):  # its folder may have nothing that trains it
        if bundled := parts.training.bundled_data():
            return bundled[0]
    raise UsageError(
        f"{model.name!r} is a classifier, and {model.system} brings no pictures along: "
        "name some to ask about with --data"
    )


def exported_weights(model: ModelInfo, version: str, repository: Path) -> Path | str:
    """Return the weights that a served version was exported from, or a reason why they are not known."""
    manifest, runs = repository / model.name / version / MANIFEST, _RUNS / model.system
    try:
        digest = read_table(manifest)["training"]["weights_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{manifest} does not name the weights that were exported: name them with --eager"
    for path in sorted(runs.glob("*.safetensors")):
        if sha256(path) == digest:
            return path
    return (
        f"the weights {digest[:12]}… that version {version} was exported from are not in {runs}: "
        "name them with --eager"
    )
