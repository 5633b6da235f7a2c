"""Ask a served classifier about pictures: measure its accuracy, and find mixed-up answers."""

from __future__ import annotations

import math
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
from gourmet.pictures.classifier import PictureClassifier, surely
from gourmet.pictures.decode import PictureError
from gourmet.pictures.header import SUFFIXES
from gourmet.reports.table import columns
from gourmet.runtime import malloc
from gourmet.runtime.manifest import MANIFEST, sha256
from gourmet.runtime.reading import read_table
from gourmet.tasks.checking import (
    CheckOptions,
    Replies,
    TimedServer,
    as_words,
    ask_all,
    first_of,
    percentiles,
)
from gourmet.tasks.classification import evaluation
from gourmet.tasks.classification.accuracy import (
    Accuracy,
    Bin,
    OfOrigin,
    Operating,
    Scores,
    accuracy,
    by_origin,
    calibration_error,
    of_origins,
    operating_at,
    origin_lines,
    reliability,
)
from gourmet.tasks.classification.labelled_pictures import origin_of
from gourmet.tasks.system_parts import BadData, Data, EmptyPart, Labelled, Stage, SystemParts, evenly
from gourmet.training.task import Tick

# Rows computed in a batch of another size differ in the last digits; on a GPU in half precision, by 0.005.
_SAME_WITHIN: Final = 0.02
_WORST: Final = 10
_NAMED: Final = 5
_AGAIN: Final = 64
_SAMPLE_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True)
class CheckedPictures:
    """Pictures in their order, not yet read."""

    source: Path
    part: str  # empty where the data have no parts
    names: Sequence[str]
    classes: npt.NDArray[np.int64] | None  # None without labels
    read: Callable[[Sequence[int]], Iterator[bytes]]  # those of some rows
    note: str = ""  # what a reader of the numbers must know about them

    def __len__(self) -> int:
        return len(self.names)


def find(
    source: Data,
    labels: Sequence[str],
    data: Path,
    part: str | None,
    limit: int | None,
    *,
    missing_classes: bool,
) -> CheckedPictures:
    """Find the pictures of one part of `data`, which `source` reads: the test part by default.

    A folder that holds nothing but pictures is not divided: all of it is asked about.
    """
    loose = _loose(data)
    if loose is not None:
        if not loose:
            suffixes = ", ".join(sorted(SUFFIXES))
            raise BadData(f"{data} holds no pictures: a picture's name ends in {suffixes}")
        try:
            _listing(source, labels, data, "all")
        except GourmetError as exc:
            return _unlabelled(data, loose, limit, str(exc))
    part = part or ("all" if loose else "test")
    listed = _listing(source, labels, data, part)
    pictures = evenly(listed, limit)
    chosen = CheckedPictures(
        source=data,
        part=part,
        names=[picture.name for picture in pictures],
        classes=np.array([picture.class_id for picture in pictures], dtype=np.int64),
        read=lambda rows: source.read([pictures[row] for row in rows]),
    )
    if listed[0].class_id >= len(labels):
        return replace(chosen, classes=None, note="these pictures show none of the labels")
    if (words := _lacking(listed, labels, data, part)) and not missing_classes:
        raise BadData(f"{words}: add some, or say --missing-classes to measure on the others alone")
    words = _lacking(pictures, labels, data, part)
    return replace(chosen, note=f"{words}; balanced numbers are over the others") if words else chosen


def _lacking(pictures: Sequence[Labelled], labels: Sequence[str], data: Path, part: str) -> str:
    absent = [labels[class_id] for class_id in sorted({*range(len(labels))} - {p.class_id for p in pictures})]
    of = f"{len(absent)} of the model's {len(labels)} labels"
    return f"the part {part} of {data} has no pictures of {', '.join(absent)} ({of})" if absent else ""


def _listing(source: Data, labels: Sequence[str], data: Path, part: str) -> Sequence[Labelled]:
    if part != "all":
        return source.listing(data, part)
    parts = dict.fromkeys(("train", *source.parts(data)))
    pictures: list[Labelled] = []
    for name in parts:
        with suppress(EmptyPart):  # few pictures may leave one empty
            pictures += [picture for picture in source.listing(data, name) if picture.class_id < len(labels)]
    if not pictures:
        raise BadData(f"{data} has no pictures in {', '.join(parts)}")
    return pictures


def _loose(data: Path) -> list[Path] | None:
    """Return the pictures of a folder, or None if it has subfolders or archives."""
    if not data.is_dir():
        return None
    visible = [entry for entry in sorted(data.iterdir()) if not entry.name.startswith(".")]
    if any(entry.is_dir() or entry.suffix.lower() == ".zip" for entry in visible):
        return None
    return [entry for entry in visible if entry.suffix.lower() in SUFFIXES]


def _unlabelled(data: Path, paths: list[Path], limit: int | None, why: str) -> CheckedPictures:
    rows = np.linspace(0, len(paths) - 1, min(limit or len(paths), len(paths))).round().astype(int)
    chosen = [paths[row] for row in rows]
    return CheckedPictures(
        source=data,
        part="",
        names=[path.name for path in chosen],
        classes=None,
        read=lambda rows: (chosen[row].read_bytes() for row in rows),
        note=f"these pictures carry no labels, so nothing is said of accuracy ({why})",
    )


@dataclass(frozen=True)
class ServedClassifier:
    """A classifier, and the contract of its system."""

    info: ModelInfo
    contract: PictureClassifier

    @property
    def labels(self) -> tuple[str, ...]:
        return self.contract.labels_of(self.info)


@dataclass(frozen=True)
class BatchAnswer:
    """The answers to the pictures of one request."""

    first: int  # of the pictures
    probabilities: list[list[float]]
    relevance: list[float] | None
    version: str


@dataclass(frozen=True)
class PictureAnswers:
    """The answers to all pictures. Rows without an answer are nan."""

    probabilities: Scores
    relevance: Scores  # [pictures]; nan also where the model does not give it
    versions: frozenset[str] = frozenset()

    @classmethod
    def joined(cls, answers: Sequence[BatchAnswer], pictures: int, labels: int) -> PictureAnswers:
        rows = np.full((pictures, labels + 1), np.nan, dtype=np.float32)
        for answer in answers:
            mine = rows[answer.first : answer.first + len(answer.probabilities)]
            mine[:, :labels] = answer.probabilities
            if answer.relevance is not None:
                mine[:, labels] = answer.relevance
        return cls(rows[:, :labels], rows[:, labels], frozenset(answer.version for answer in answers))

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Mark the rows that have an answer."""
        answered: npt.NDArray[np.bool_] = ~np.isnan(self.probabilities[:, 0])
        return answered

    def acted_on(self, subject_threshold: float) -> Scores:
        """The answered pictures' probabilities as they are acted on: zero for what may not be relevant."""
        answered = self.answered
        return (
            self.probabilities[answered]
            * ~(self.relevance[answered] < surely(subject_threshold))[:, np.newaxis]
        )


@dataclass(frozen=True)
class AskedAgain:
    """Agreement of two answers about the same pictures: in a batch, and alone."""

    pictures: int
    largest_difference: float
    different: tuple[str, ...]  # names of pictures that got another answer alone, and whose it was
    refused: tuple[str, ...] = ()  # names of pictures that got none alone, and why

    @classmethod
    def compared(
        cls, in_batches: PictureAnswers, alone: PictureAnswers, names: Sequence[str], refused: tuple[str, ...]
    ) -> AskedAgain:
        largest, different = 0.0, []
        rows = np.flatnonzero(alone.answered)
        for row in rows:
            apart = np.abs(in_batches.probabilities - alone.probabilities[row]).max(axis=1)
            nearest = int(np.nanargmin(apart))
            largest = max(largest, float(apart[row]))
            if apart[row] > _SAME_WITHIN:
                is_swapped = apart[nearest] <= _SAME_WITHIN
                whose = f" (its answer went to {names[nearest]})" if is_swapped else ""
                different.append(f"{names[row]}{whose}")
        return cls(len(rows) + len(refused), largest, tuple(different), refused)


@dataclass(frozen=True)
class Agreement:
    """Agreement of a served model with its network or another model, on the pictures that both answered."""

    other: str  # the file of the network, or the other model
    pictures: int
    different: int  # answered with another class
    largest_difference: float  # of any probability
    worst: list[dict[str, Any]]  # pictures about which the two disagree, or agree least
    top1: float | None  # of the other, where there are labels

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


def exported_weights(model: ModelInfo, version: str, options: CheckOptions) -> Path | str:
    """Return the weights that a served version was exported from, or a reason why they are not known."""
    manifest = options.repository / model.name / version / MANIFEST
    runs = options.runs / model.system
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


def agreement(
    answers: PictureAnswers, theirs: Scores, pictures: CheckedPictures, labels: tuple[str, ...], other: str
) -> Agreement:
    """Compare the served answers with `theirs`, the other probabilities of the answered pictures."""
    answered = np.flatnonzero(answers.answered)
    mine = answers.probabilities[answered]
    apart = np.abs(mine - theirs).max(axis=1)
    best, right = mine.argmax(axis=1), theirs.argmax(axis=1)
    # Other classes first, and the largest differences first among them.
    order = np.lexsort((-apart, best == right))[:_WORST]
    return Agreement(
        other=other,
        pictures=len(answered),
        different=int((best != right).sum()),
        largest_difference=float(apart.max()),
        worst=[
            {
                "name": pictures.names[answered[row]],
                "served": labels[best[row]],
                "served_sure": float(mine[row].max()),
                "other": labels[right[row]],
                "other_sure": float(theirs[row].max()),
                "difference": float(apart[row]),
            }
            for row in order
        ],
        top1=None if pictures.classes is None else float(np.mean(right == pictures.classes[answered])),
    )


@dataclass(frozen=True)
class Quality:
    """Accuracy of the answers that were given."""

    accuracy: Accuracy
    bins: list[Bin]
    at_threshold: Operating | None  # none where the model has no threshold
    origins: list[OfOrigin]  # by where the pictures are from, where their names tell that

    def as_dict(self) -> dict[str, Any]:
        at = self.at_threshold
        return {
            **self.accuracy.as_dict(),
            "calibration_error": round(calibration_error(self.bins), 4),
            "threshold": at and at.threshold,
            "answered_surely": at and round(at.coverage, 4),
            "right_of_answered": at and (None if math.isnan(at.accuracy) else round(at.accuracy, 4)),
            **({"by_source": by_origin(self.origins)} if self.origins else {}),
        }


@dataclass(frozen=True)
class PictureReport:
    """One check of one served model."""

    served: ServedClassifier
    pictures: CheckedPictures
    options: CheckOptions
    replies: Replies[BatchAnswer]
    answers: PictureAnswers
    again: AskedAgain | None
    eager: Agreement | str  # or why it was not compared
    against: Agreement | None = None  # with another served model or version

    @property
    def stopped(self) -> bool:
        return self.replies.stopped

    @property
    def answered(self) -> int:
        return int(self.answers.answered.sum())

    @cached_property
    def quality(self) -> Quality | None:
        """Return the accuracy, or None without labels or answers."""
        answered = self.answers.answered
        if self.pictures.classes is None or not answered.any():
            return None
        probabilities, classes = self.answers.probabilities[answered], self.pictures.classes[answered]
        info = self.served.info
        shown = self.answers.acted_on(info.subject_threshold)
        return Quality(
            accuracy=accuracy(probabilities, classes, self.served.labels),
            bins=reliability(probabilities, classes),
            at_threshold=operating_at(info.threshold, shown, classes) if info.threshold else None,
            origins=of_origins(
                probabilities.argmax(axis=1),
                classes,
                [origin_of(self.pictures.names[row]) for row in np.flatnonzero(answered)],
            ),
        )

    @cached_property
    def declined(self) -> dict[str, float]:
        """Shares of the answered pictures; empty where the model does not say what is relevant."""
        relevance = self.answers.relevance[self.answers.answered]
        if not len(relevance) or np.isnan(relevance).any():
            return {}
        info = self.served.info
        irrelevant = relevance < info.subject_threshold
        unsure = ~irrelevant & (self.answers.acted_on(info.subject_threshold).max(axis=1) < info.threshold)
        return {"irrelevant": float(irrelevant.mean()), "not sure": float(unsure.mean())}

    @property
    def rows_per_s(self) -> float:
        pictures = self.answered - self.replies.resumed
        return pictures / self.replies.wall_s if self.replies.wall_s else 0.0

    def problems(self) -> list[str]:
        """List, a sentence each, why these figures may not be the model's. The model may still be bad."""
        problems = []
        replies, again = self.replies, self.again
        if failures := replies.failures:
            lost = sum(len(failure.names) for failure in failures)
            problems.append(
                f"{len(failures)} of {len(failures) + len(replies.latencies_ms)} requests failed, "
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
        if len(self.answers.versions) > 1:
            problems.append(
                f"the versions {', '.join(sorted(self.answers.versions))} answered, so these are numbers of "
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

    def page(self) -> str:
        from gourmet.tasks.classification.pages import check_page

        return check_page(self)

    def as_dict(self) -> dict[str, Any]:
        problems, eager, replies = self.problems(), self.eager, self.replies
        counted = replies.counted
        return {
            "model": self.served.info.name,
            "versions": sorted(self.answers.versions),
            "system": self.served.info.system,
            "url": self.options.url,
            "data": str(self.pictures.source),
            "part": self.pictures.part or None,
            "note": self.pictures.note or None,
            "complete": not self.stopped and not problems,
            "stopped": self.stopped,
            "problems": problems,
            "pictures": len(self.pictures),
            "sent": replies.sent,
            "resumed": replies.resumed,
            "answered": self.answered,
            "failed_requests": [
                {"pictures": list(failure.names), "reason": failure.reason} for failure in replies.failures
            ],
            "requests": {
                "answered": len(replies.latencies_ms),
                "rows": self.options.batch,
                "in_flight": self.options.in_flight,
                "mean_in_flight": round(replies.mean_in_flight, 2),
                "latency_ms": percentiles(replies.latencies_ms),
                "rows_per_s": round(self.rows_per_s, 1),
                "seconds": round(replies.wall_s, 2),
            },
            "triton": {
                "rows": counted.rows,
                "executions_by_rows": {str(k): v for k, v in counted.executions_by_batch.items()},
                "mean_rows": round(counted.mean_batch, 2),
                "cache_hits": counted.cache_hits,
            },
            "asked_again": asdict(self.again) if self.again else None,
            "eager": {"compared": False, "why": eager}
            if isinstance(eager, str)
            else {"compared": True, **_as_dict(eager, file="weights", answers="eager")},
            "against": self.against and _as_dict(self.against, file="model", answers="other"),
            "quality": self.quality and self.quality.as_dict(),
            "declined": {name: round(share, 4) for name, share in self.declined.items()},
        }

    def headline(self) -> str:
        """The model, the pictures, and whether all of them were answered."""
        versions = ", ".join(sorted(self.answers.versions)) or self.served.info.version
        part = f", part {self.pictures.part}" if self.pictures.part else ""
        return (
            f"{self.served.info.name} version {versions} at {self.options.url}: {self.answered} of "
            f"{len(self.pictures)} pictures answered ({self.pictures.source}{part})"
        )

    def summary(self) -> str:
        stopped = "what follows is about the answers that had come by then" if self.stopped else ""
        named = [("STOPPED", stopped), ("note", self.pictures.note), *self.facts()]
        lines = [self.headline(), *(f"{name:<12}{value}" for name, value in named if value)]
        if self.quality:
            heading = ("class", "pictures", "recall", "precision")
            lines += ["", columns([heading, *self.quality.accuracy.rows()])]
            lines += ["", *origin_lines(self.quality.origins)] if self.quality.origins else []
        if isinstance(self.eager, Agreement) and self.eager.largest_difference:
            heading = ("furthest from the network", "served", "network", "apart")
            lines += ["", columns([heading, *self.eager.rows()[:_NAMED]])]
        if self.against and self.against.largest_difference:
            heading = (f"furthest from {self.against.other}", "served", "other", "apart")
            lines += ["", columns([heading, *self.against.rows()[:_NAMED]])]
        return "\n".join(lines)

    def facts(self) -> Iterator[tuple[str, str]]:
        """Name and value of everything measured, but for the classes."""
        replies, options = self.replies, self.options
        if self.quality:
            measured, at = self.quality.accuracy, self.quality.at_threshold
            yield "top-1", f"{measured.top1:.4f}, top-3 {measured.top3:.4f}, top-5 {measured.top5:.4f}"
            yield "balanced", f"{measured.balanced:.4f} ± {measured.balanced_margin:.4f} (95 %)"
            yield "calibration", f"error {calibration_error(self.quality.bins):.4f}, as served"
            if at:
                right = "none" if math.isnan(at.accuracy) else f"{at.accuracy:.1%}"
                yield "threshold", f"{at.coverage:.1%} reach {at.threshold:g}, {right} of them right"
        if self.declined:
            subject, threshold = self.served.contract.subject, self.served.info.subject_threshold
            yield (
                subject,
                f"{self.declined['irrelevant']:.1%} do not look like it (below {threshold:g}), "
                f"{self.declined['not sure']:.1%} more are not sure",
            )
        yield "network", self._network()
        if self.against:
            yield "against", _words(self.against)
        if again := self.again:
            yield (
                "order",
                f"{again.pictures} asked again alone: {len(again.different)} answered otherwise, "
                f"probabilities apart by at most {again.largest_difference:.1e}",
            )
        if times := replies.latencies_ms:
            requests = "1 request" if len(times) == 1 else f"{len(times)} requests"
            yield "latency", f"{as_words(percentiles(times))}, {requests} of up to {options.batch} rows"
        yield (
            "throughput",
            f"{self.rows_per_s:.0f} rows/s over {replies.wall_s:.1f} s, decoding here included; "
            f"{replies.mean_in_flight:.1f} of {options.in_flight} requests in flight on average",
        )
        yield "batches", self._batches()

    def _network(self) -> str:
        eager = self.eager
        if isinstance(eager, str):
            return f"not compared: {eager}"
        return _words(eager)

    def _batches(self) -> str:
        counts = self.replies.counted
        sizes = ", ".join(f"{times} of {size}" for size, times in counts.executions_by_batch.items())
        mean = f"{counts.mean_batch:.1f} rows at once on average inside Triton"
        words = f"{mean} ({sizes})" if sizes else "none ran"
        return (
            f"{words}; {counts.cache_hits} requests answered from the cache" if counts.cache_hits else words
        )


def _as_dict(agreement: Agreement, *, file: str, answers: str) -> dict[str, Any]:
    facts = asdict(agreement)
    worst = [{name.replace("other", answers): fact for name, fact in row.items()} for row in agreement.worst]
    return {file: facts.pop("other"), **facts, "worst": worst}


def _words(agreement: Agreement) -> str:
    top1 = "" if agreement.top1 is None else f", whose top-1 is {agreement.top1:.4f}"
    return (
        f"{agreement.different} of {agreement.pictures} answered otherwise than by {agreement.other}{top1}; "
        f"probabilities apart by at most {agreement.largest_difference:.1e}"
    )


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
        """Ask about some pictures alone: their answers in a batch must be the same.

        A server that drops, repeats or swaps rows answers with good probabilities for the wrong pictures,
        which accuracy alone would show as a bad network.
        """
        answered = np.flatnonzero(answers.answered)
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
            rows = np.flatnonzero(answers.answered).tolist()
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
        both = answers.answered & theirs.answered
        if not both.any():
            raise GourmetError(f"{other.info.target} answered none: {first_of(replies.failures)}")
        mine = replace(answers, probabilities=np.where(both[:, None], answers.probabilities, np.nan))
        rows = theirs.probabilities[both]
        return agreement(mine, rows, self.pictures, self.served.labels, other.info.target)


ANSWER: Final = BatchAnswer


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
    """Return the labelled pictures that the model's system contains."""
    with suppress(UnknownSystem):  # its folder may have nothing that trains it
        if bundled := parts.training.bundled_data():
            return bundled[0]
    raise UsageError(
        f"{model.name!r} is a classifier, and {model.system} brings no pictures along: "
        "name some to ask about with --data"
    )
