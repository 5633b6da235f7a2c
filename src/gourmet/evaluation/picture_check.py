"""Ask a served classifier about pictures: measure its accuracy, and find mixed-up answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.contracts import BadAnswer, ModelInfo
from gourmet.errors import GourmetError, UnknownSystem, UsageError
from gourmet.evaluation.accuracy import Scores
from gourmet.evaluation.calibration import Calibration
from gourmet.evaluation.checking import (
    REQUEST_TIMEOUT_S,
    CheckOptions,
    Replies,
    ask_all,
    first_of,
    percentiles,
    percentiles_text,
)
from gourmet.evaluation.labelled_pictures import ALL
from gourmet.evaluation.picture_scores import LabelledScores, measure_part, measure_rejections
from gourmet.evaluation.system_parts import BadData, Data, SystemParts, sample_evenly, sample_per_class
from gourmet.pictures.certainty import Named, certain_subject_threshold
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError
from gourmet.pictures.header import SUFFIXES
from gourmet.progress import ProgressBar, ReportProgress
from gourmet.reports.report import Report, Section, Table
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.triton import Triton

# Rows computed in a batch of another size differ in the last digits; on a GPU in half precision, by 0.005.
_SAME_WITHIN: Final = 0.02
_FURTHEST: Final = 10
_IN_TERMINAL: Final = 5
_AGAIN: Final = 64
_BATCH: Final = 16


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


def find_pictures(source: Data, labels: Sequence[str], data: Path, limit: int | None) -> CheckedPictures:
    """Find the test part of `data`, which `source` reads, or all pictures of a folder with nothing else."""
    if loose := _pictures_of_plain_folder(data):
        try:
            listed = source.listing(data, ALL)
        except GourmetError as exc:
            chosen = sample_evenly(loose, limit)
            return CheckedPictures(
                data,
                [path.name for path in chosen],
                None,
                lambda rows: (chosen[row].read_bytes() for row in rows),
                f"these pictures carry no labels, so nothing is said of accuracy ({exc})",
            )
    else:
        listed = source.listing(data, "test")
    pictures = sample_per_class(listed, limit)
    absent = [labels[class_id] for class_id in sorted({*range(len(labels))} - {p.class_id for p in pictures})]
    return CheckedPictures(
        data,
        [picture.name for picture in pictures],
        np.array([picture.class_id for picture in pictures], dtype=np.int64),
        lambda rows: source.read([pictures[row] for row in rows]),
        f"no pictures of {', '.join(absent)}; balanced numbers are over the others" if absent else "",
    )


def _pictures_of_plain_folder(data: Path) -> list[Path]:
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
    finer: Sequence[Sequence[Named]] = ()  # of each picture, if the model knows finer names than labels


def join_answers(
    pictures: CheckedPictures | LabelledScores, answers: Sequence[BatchAnswer], labels: int
) -> tuple[npt.NDArray[np.int64], LabelledScores]:
    """Return the rows of the pictures that have an answer, and their answers."""
    rows = np.array([row for answer in answers for row in answer.rows], np.int64)
    scores = np.concatenate(
        [np.empty((0, labels), np.float32), *(answer.probabilities for answer in answers)]
    )
    relevance = [answer.relevance for answer in answers if answer.relevance is not None]
    answered = LabelledScores(
        np.log(np.maximum(scores, 1e-12)),
        np.zeros(len(rows), np.int64) if pictures.classes is None else pictures.classes[rows],
        [pictures.names[row] for row in rows],
        lambda some: pictures.read([int(rows[row]) for row in some]),
        np.concatenate(relevance) if len(relevance) == len(answers) > 0 else None,
    )
    return rows, answered


def differences(
    answers: LabelledScores, theirs: LabelledScores, labels: Sequence[str], model: str
) -> dict[str, Any]:
    """Compare the answers with those of another model to the same pictures."""
    served, other = np.exp(answers.logits), np.exp(theirs.logits)
    apart = np.abs(served - other).max(axis=1)
    best, others_best = served.argmax(axis=1), other.argmax(axis=1)
    # Other classes first, and the largest differences first among them.
    order = np.lexsort((-apart, best == others_best))[:_FURTHEST]
    return {
        "model": model,
        "pictures": len(served),
        "different": int((best != others_best).sum()),
        "largest_difference": float(apart.max()),
        "worst": [
            {
                "name": answers.names[row],
                "served": labels[best[row]],
                "served_sure": float(served[row].max()),
                "other": labels[others_best[row]],
                "other_sure": float(other[row].max()),
                "difference": float(apart[row]),
            }
            for row in order
        ],
        "top1": float(np.mean(others_best == answers.classes)),
    }


@dataclass(frozen=True)
class PictureCheck:
    """A served model and the pictures to ask it about."""

    triton: Triton
    model: ModelInfo
    system: PictureClassifier
    pictures: CheckedPictures | LabelledScores

    def questions(self, batch: int = _BATCH) -> Iterator[PictureBatch]:
        """Yield batches, of which the last may be smaller. None is larger than what the model takes."""
        names, batch = self.pictures.names, min(batch, max(1, self.model.max_batch_size))
        everything, rows = self.pictures.read(range(len(names))), range(0)
        # To the end of `everything`: Python drops a Ctrl-C that comes while it closes a generator.
        while True:
            try:
                blobs = list(islice(everything, batch))
            except OSError as exc:
                raise BadData(f"{names[rows.stop]} cannot be read: {exc}") from exc
            if not blobs:
                return
            rows = range(rows.stop, rows.stop + len(blobs))
            yield PictureBatch(rows, names[rows.start : rows.stop], blobs)

    def ask_batch(self, question: PictureBatch) -> BatchAnswer:
        """Raise BadAnswer unless each picture has an answer of its own."""
        (spec,) = self.model.inputs
        model, system, pictures, encoded = self.model, self.system, len(question.blobs), []
        for name, blob in zip(question.names, question.blobs, strict=True):
            try:
                encoded.append(system.encode(blob, spec.datatype))
            except PictureError as exc:
                raise BadData(f"{name} cannot be read: {exc} [{exc.code}]") from exc
        began = time.monotonic()
        inputs = {spec.name: np.concatenate(encoded)}
        answer = self.triton.infer(model.target, inputs, Deadline(REQUEST_TIMEOUT_S))
        total_ms, outputs = 1000.0 * (time.monotonic() - began), answer.outputs
        for name, output in outputs.items():
            if model.max_batch_size and len(output) != pictures:
                raise BadAnswer(f"{name} has {len(output)} rows in answer to {pictures}")
        rows, expected = system.probabilities(outputs, model), (pictures, len(system.labels_of(model)))
        if rows.shape != expected:
            raise BadAnswer(f"the answer has the shape {list(rows.shape)} instead of {list(expected)}")
        if not system.are_probabilities(rows):
            raise BadAnswer("the probabilities of a row do not sum to 1")
        relevance = system.relevance(outputs, model)
        return BatchAnswer(
            question.rows, rows, relevance, answer.model_version, total_ms, system.finer(outputs, pictures)
        )

    def ask_about_all(self, replies: Replies[BatchAnswer], on_progress: ReportProgress) -> None:
        ask_all(self.ask_batch, self.questions(), len(self.pictures.names), self.triton, replies, on_progress)

    def join_answers(self, replies: Replies[BatchAnswer]) -> tuple[npt.NDArray[np.int64], LabelledScores]:
        return join_answers(self.pictures, replies.answers, len(self.system.labels_of(self.model)))

    def ask_again(self, answers: LabelledScores, on_progress: ReportProgress) -> dict[str, Any]:
        """Ask about some pictures alone: their answers in a batch must be the same.

        A server that drops, repeats or swaps rows answers with good probabilities for the wrong pictures,
        which accuracy alone would show as a bad network.
        """
        count = len(answers.names)
        chosen = np.sort(np.random.default_rng(0).choice(count, min(_AGAIN, count), replace=False))
        some, replies = replace(self, pictures=answers.select(chosen)), Replies[BatchAnswer]()
        ask_all(
            some.ask_batch, some.questions(batch=1), len(chosen), self.triton, replies, on_progress, threads=1
        )
        rows, alone = some.join_answers(replies)
        in_batches, largest, different = np.exp(answers.logits), 0.0, []
        for row, name, own in zip(chosen[rows], alone.names, np.exp(alone.logits), strict=True):
            apart = np.abs(in_batches - own).max(axis=1)
            nearest = int(apart.argmin())
            largest = max(largest, float(apart[row]))
            if apart[row] > _SAME_WITHIN:
                is_swapped = apart[nearest] <= _SAME_WITHIN
                whose = f" (its answer went to {answers.names[nearest]})" if is_swapped else ""
                different.append(f"{name}{whose}")
        return {
            "pictures": len(chosen),
            "largest_difference": largest,
            "different": different,  # names of pictures that got another answer alone, and whose it was
            "refused": [str(failure) for failure in replies.failures],
        }

    def compare_with(
        self, other: ModelInfo, answers: LabelledScores, on_progress: ReportProgress
    ) -> dict[str, Any]:
        """Compare the answers with those of another served model to the same pictures."""
        same, replies = replace(self, model=other, pictures=answers), Replies[BatchAnswer]()
        same.ask_about_all(replies, on_progress)
        rows, theirs = same.join_answers(replies)
        if not len(rows):
            raise GourmetError(f"{other.target} answered none: {first_of(replies.failures)}")
        return differences(answers.select(rows), theirs, self.system.labels_of(self.model), other.target)


def check_model(
    triton: Triton, options: CheckOptions, model: ModelInfo, parts: SystemParts, progress_bar: ProgressBar
) -> Report:
    """Ask about all pictures, about some again, and another model about the same."""
    system = parts.classifier
    pictures = find_pictures(parts.data, system.labels, options.data or _bundled(model, parts), options.limit)
    other = triton.describe(options.against) if options.against else None
    if other and (other.system, system.labels_of(other)) != (model.system, system.labels_of(model)):
        raise UsageError(f"{options.against} has other labels than {model.name}: name one of {model.system}")
    picture_check, replies = PictureCheck(triton, model, system, pictures), Replies[BatchAnswer]()
    picture_check.ask_batch(PictureBatch([0], ["the sample"], [system.sample()]))
    with replies.until_stopped(), progress_bar("asking") as on_progress:
        picture_check.ask_about_all(replies, on_progress)
    _, answers = picture_check.join_answers(replies)
    again = against = None
    with replies.until_stopped():
        if answers.names and not replies.stopped:
            with progress_bar("asking some again") as on_progress:
                again = picture_check.ask_again(answers, on_progress)
            if other:
                with progress_bar(f"asking {other.target}") as on_progress:
                    against = picture_check.compare_with(other, answers, on_progress)
    return picture_report(model, system, pictures, options, replies, answers, again, against)


def picture_report(
    model: ModelInfo,
    system: PictureClassifier,
    pictures: CheckedPictures,
    options: CheckOptions,
    replies: Replies[BatchAnswer],
    answers: LabelledScores,
    again: Mapping[str, Any] | None = None,
    against: Mapping[str, Any] | None = None,
) -> Report:
    calibration = Calibration(1.0, model.threshold, model.subject_threshold)  # calibrated already
    answered, versions = len(answers.names), sorted({answer.version for answer in replies.answers})
    is_measured = pictures.classes is not None and answered
    part = rejections = Section()
    if is_measured:
        part = measure_part("", answers, system.labels_of(model), calibration)
    if answers.relevance is not None:
        rejections = measure_rejections("", answers, calibration)
    problems, failures = _problems(replies, again, versions), []
    goal, top1 = options.min_top1, part.measures.get("top1", 0.0)
    if goal is not None and not is_measured:
        failures = [f"--min-top1 {goal} cannot be judged: there are no labels, or no answers"]
    elif goal is not None and top1 < goal:
        failures = [f"top-1 is {top1:.4f}, below the {goal} that --min-top1 asks for"]
    dishes = _measure_finer(system, replies, answers, calibration)
    facts, tables = [*part.facts, *dishes.facts, *rejections.facts], [*part.tables]
    if against:
        top1_text = f", whose top-1 is {against['top1']:.4f}" if is_measured else ""
        facts.append(
            (
                "against",
                f"{against['different']} of {against['pictures']} answered otherwise than by "
                f"{against['model']}{top1_text}; probabilities apart by at most "
                f"{against['largest_difference']:.1e}",
            )
        )
        if against["largest_difference"]:
            tables.append(_furthest(against))
    if again:
        facts.append(
            (
                "order",
                f"{again['pictures']} asked again alone: {len(again['different'])} answered otherwise, "
                f"probabilities apart by at most {again['largest_difference']:.1e}",
            )
        )
    if requests := len(replies.answers):
        requests_text = "1 request" if requests == 1 else f"{requests} requests"
        facts += [
            ("latency", f"{percentiles_text(replies.times_ms)}, {requests_text}"),
            ("throughput", f"{answered / replies.wall_s:.0f} pictures/s, decoding here included"),
        ]
    quality = is_measured and {
        "calibration_error": part.measures["calibration_error_after"],
        "threshold": model.threshold or None,
        "answered_surely": part.measures["answered"],
        **part.measures,
    }
    measures = {
        "model": model.name,
        "versions": versions,
        "system": model.system,
        "url": options.url,
        "data": str(pictures.source),
        "note": pictures.note or None,
        "complete": not replies.stopped and not problems,
        "stopped": replies.stopped,
        "problems": problems,
        "pictures": len(pictures),
        "sent": replies.sent,
        "answered": answered,
        "failed_requests": [
            {"pictures": list(failure.names), "reason": failure.reason} for failure in replies.failures
        ],
        "requests": {
            "answered": requests,
            "latency_ms": percentiles(replies.times_ms),
            "seconds": round(replies.wall_s, 2),
        },
        "asked_again": again,
        "against": against and {**against, "top1": against["top1"] if is_measured else None},
        "quality": quality or None,
        "dishes": dishes.measures or None,
        "declined": rejections.measures or None,
    }
    return Report(
        f"gourmet check: {model.name}",
        f"{model.name} version {', '.join(versions) or model.version} at {options.url}: {answered} of "
        f"{len(pictures)} pictures answered ({pictures.source})",
        measures,
        [replace(part, facts=facts, tables=tables)],
        [pictures.note] if pictures.note else [],
        [*problems, *failures],
        f"{answered} of {len(pictures)} pictures" if replies.stopped else "",
    )


def _measure_finer(
    system: PictureClassifier,
    replies: Replies[BatchAnswer],
    answers: LabelledScores,
    calibration: Calibration,
) -> Section:
    """Measure the finer names of the pictures whose folder, such as Noodles-Pasta/pad_thai, names one."""
    finer = [names for answer in replies.answers for names in answer.finer]
    named = (system.finer_name_of(Path(answers.names[row]).parent.name) for row in range(len(finer)))
    known = {row: name for row, name in enumerate(named) if name}
    if not known:
        return Section()
    rows = [*known]
    is_best = np.array([[known[row]] == [name for name, _ in finer[row][:1]] for row in rows])
    among = np.array([known[row] in [name for name, _ in finer[row]] for row in rows])
    said = np.array([bool(finer[row]) and finer[row][0][1] >= system.likely for row in rows])
    if answers.relevance is not None:
        said &= answers.relevance[rows] >= certain_subject_threshold(calibration.subject_threshold)
    measures = {
        "pictures": len(rows),
        "top1": round(float(is_best.mean()), 4),
        "top3": round(float(among.mean()), 4),
        "likely": round(float(said.mean()), 4),
        "right_of_likely": round(float(is_best[said].mean()), 4) if said.any() else None,
    }
    right = f", {is_best[said].mean():.1%} of them right" if said.any() else ""
    text = (
        f"top-1 {measures['top1']:.4f}, top-3 {measures['top3']:.4f} of {len(rows)} pictures whose folder "
        f"names one; {measures['likely']:.1%} are likely{right}"
    )
    return Section("", measures, [("dish", text)])


def _problems(
    replies: Replies[BatchAnswer], again: Mapping[str, Any] | None, versions: Sequence[str]
) -> list[str]:
    """List, a sentence each, why these figures may not be the model's. The model may still be bad."""
    problems = []
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
            f"{len(names)} of {again['pictures']} pictures {what}: {first_of(names)}"
            for what, names in ((other, again["different"]), (refused, again["refused"]))
            if names
        ]
    if len(versions) > 1:
        problems.append(
            f"the versions {', '.join(versions)} answered, so these are numbers of "
            "none of them: repeat the check when nothing is being deployed"
        )
    return problems


def _furthest(against: Mapping[str, Any]) -> Table:
    """Return the pictures about which two models disagree, or agree least."""
    rows = [
        (
            row["name"],
            f"{row['served']} {row['served_sure']:.3f}",
            f"{row['other']} {row['other_sure']:.3f}",
            f"{row['difference']:.1e}",
        )
        for row in against["worst"]
    ]
    return Table((f"furthest from {against['model']}", "served", "other", "apart"), rows, _IN_TERMINAL)


def _bundled(model: ModelInfo, parts: SystemParts) -> Path:
    """Return the labelled pictures that the model's system contains."""
    with suppress(UnknownSystem):  # its folder may have nothing that trains it
        if bundled := parts.training.bundled_data():
            return bundled[0]
    raise UsageError(
        f"{model.name!r} is a classifier, and {model.system} has no bundled pictures: "
        "name some to ask about with --data"
    )
