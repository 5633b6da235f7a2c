"""The report of a check: figures and faults, as plain data and as text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from gourmet.reports.table import columns
from gourmet.tasks.checking import CheckOptions, Replies, as_words, first_of, percentiles
from gourmet.tasks.classification.accuracy import (
    Accuracy,
    Bin,
    OfOrigin,
    Operating,
    accuracy,
    by_origin,
    calibration_error,
    of_origins,
    operating_at,
    origin_lines,
    reliability,
)
from gourmet.tasks.classification.agreement import (
    Agreement,
    AskedAgain,
    BatchAnswer,
    PictureAnswers,
    ServedClassifier,
)
from gourmet.tasks.classification.checked_pictures import CheckedPictures
from gourmet.tasks.classification.labelled_pictures import origin_of

_NAMED: Final = 5


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
        return int(self.answers.there.sum())

    @cached_property
    def quality(self) -> Quality | None:
        """Return the accuracy, or None without labels or answers."""
        answered = self.answers.there
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
        relevance = self.answers.relevance[self.answers.there]
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
        """Why the check fails, a sentence each; empty if it passes."""
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
