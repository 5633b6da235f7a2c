"""All that a check found, what is wrong with it, and both as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gourmet.runtime.statistics import ModelStatistics
from gourmet.tasks.checking import RequestOptions
from gourmet.tasks.classification.accuracy import Accuracy, accuracy
from gourmet.tasks.classification.calibration import (
    Bin,
    Operating,
    calibration_error,
    operating_at,
    reliability,
)
from gourmet.tasks.classification.checking.batch_consistency import Again
from gourmet.tasks.classification.checking.pictures import Pictures
from gourmet.tasks.classification.checking.requests import Asked
from gourmet.tasks.classification.checking.served import Served

if TYPE_CHECKING:  # it imports torch, which a check without weights does not need
    from gourmet.tasks.classification.checking.reference_comparison import Agreement

PERCENTILES: Final = (50, 90, 95, 99)
_NAMED_FAILURES: Final = 5


@dataclass(frozen=True)
class ClassificationQuality:
    """How right the answers are, of those that were given."""

    accuracy: Accuracy
    bins: list[Bin]
    at_threshold: Operating | None  # none where the model has no threshold

    @property
    def calibration_error(self) -> float:
        return calibration_error(self.bins)


@dataclass(frozen=True)
class Report:
    """One check of one served model."""

    served: Served
    pictures: Pictures
    options: RequestOptions
    asked: Asked
    counted: ModelStatistics
    again: Again | None
    eager: Agreement | None
    no_eager: str  # why it is not there
    quality: ClassificationQuality | None  # none without labels or answers
    min_top1: float | None = None

    @property
    def stopped(self) -> bool:
        return self.asked.stopped

    @property
    def answered(self) -> int:
        return int(self.asked.answered.sum())

    @property
    def rows_per_s(self) -> float:
        return self.answered / self.asked.wall_s if self.asked.wall_s else 0.0

    @property
    def latency_ms(self) -> Mapping[str, float]:
        """Percentiles over the answered requests; empty if there are none."""
        times = self.asked.latencies_ms
        if not times:
            return {}
        return {f"p{q}": float(np.percentile(times, q)) for q in PERCENTILES} | {"max": max(times)}

    def problems(self) -> list[str]:
        """What keeps these numbers from being the model's, a sentence each; the model may still be bad."""
        found = []
        failures = self.asked.failures
        if failures:
            lost = sum(len(failure.names) for failure in failures)
            named = "; ".join(map(str, failures[:_NAMED_FAILURES]))
            more = f"; and {len(failures) - _NAMED_FAILURES} more" if len(failures) > _NAMED_FAILURES else ""
            requests = len(failures) + len(self.asked.latencies_ms)
            found.append(
                f"{len(failures)} of {requests} requests failed, which leaves {lost} of "
                f"{self.asked.sent} pictures without an answer: {named}{more}"
            )
        if self.again and self.again.different:
            wrong = self.again.different
            found.append(
                f"{len(wrong)} of {self.again.pictures} pictures got another answer when asked about alone, "
                f"so the model mixes up the rows of its batches: {'; '.join(wrong[:_NAMED_FAILURES])}"
            )
        if self.again and self.again.refused:
            refused = self.again.refused
            found.append(
                f"{len(refused)} of {self.again.pictures} pictures were refused when asked about alone: "
                f"{'; '.join(refused[:_NAMED_FAILURES])}"
            )
        if len(self.asked.versions) > 1:
            found.append(
                f"the versions {', '.join(sorted(self.asked.versions))} answered, so these are numbers of "
                "none of them: repeat the check when nothing is being deployed"
            )
        return found

    def faults(self) -> list[str]:
        return self.problems() + self._too_low()

    def _too_low(self) -> list[str]:
        wanted, top1 = self.min_top1, self.quality.accuracy.top1 if self.quality else None
        if wanted is None:
            return []
        if top1 is None:
            return [f"--min-top1 {wanted} cannot be judged: there are no labels, or no answers"]
        return [f"top-1 is {top1:.4f}, below the {wanted} that --min-top1 asks for"] if top1 < wanted else []

    def progress(self) -> str:
        return f"{self.answered} of {len(self.pictures)} pictures"

    def summary(self) -> str:
        from gourmet.tasks.classification.checking.summary import summary

        return summary(self)

    def page(self) -> str:
        from gourmet.tasks.classification.checking.page import page

        return page(self)

    def furthest_from_network(self) -> list[tuple[str, str, str, str]]:
        """Picture, answers of both, and how far apart, for a table."""
        labels = self.served.labels
        return [
            (
                each.name,
                f"{labels[each.served]} {each.served_sure:.3f}",
                f"{labels[each.eager]} {each.eager_sure:.3f}",
                f"{each.difference:.1e}",
            )
            for each in (self.eager.worst if self.eager else ())
        ]

    def as_dict(self) -> dict[str, Any]:
        """For a report that another program reads."""
        problems = self.problems()
        return {
            "model": self.served.info.name,
            "versions": sorted(self.asked.versions),
            "system": self.served.info.system,
            "url": self.served.url,
            "data": str(self.pictures.source),
            "part": self.pictures.part or None,
            "note": self.pictures.note or None,
            "complete": not self.stopped and not problems,
            "stopped": self.stopped,
            "problems": problems,
            "pictures": len(self.pictures),
            "sent": self.asked.sent,
            "answered": self.answered,
            "failed_requests": [
                {"pictures": list(failure.names), "reason": failure.reason} for failure in self.asked.failures
            ],
            "requests": {
                "answered": len(self.asked.latencies_ms),
                "rows": self.options.batch,
                "in_flight": self.options.in_flight,
                "mean_in_flight": round(self.asked.mean_in_flight, 2),
                "latency_ms": {name: round(value, 2) for name, value in self.latency_ms.items()},
                "rows_per_s": round(self.rows_per_s, 1),
                "seconds": round(self.asked.wall_s, 2),
            },
            "triton": {
                "rows": self.counted.rows,
                "executions_by_rows": {str(k): v for k, v in self.counted.executions_by_batch.items()},
                "mean_rows": round(self.counted.mean_batch, 2),
                "cache_hits": self.counted.cache_hits,
            },
            "asked_again": asdict(self.again) if self.again else None,
            "eager": self._eager(),
            "quality": self._quality(),
        }

    def _eager(self) -> dict[str, Any]:
        if self.eager is None:
            return {"compared": False, "why": self.no_eager}
        labels = self.served.labels
        worst = [
            asdict(each) | {"served": labels[each.served], "eager": labels[each.eager]}
            for each in self.eager.worst
        ]
        return {
            "compared": True,
            **asdict(self.eager),
            "weights": str(self.eager.weights),
            "worst": worst,
        }

    def _quality(self) -> dict[str, Any] | None:
        if self.quality is None:
            return None
        at = self.quality.at_threshold
        return {
            **self.quality.accuracy.as_dict(),
            "calibration_error": round(self.quality.calibration_error, 4),
            "threshold": at and at.threshold,
            "answered_surely": at and round(at.coverage, 4),
            "right_of_answered": at and (None if math.isnan(at.accuracy) else round(at.accuracy, 4)),
        }


def quality(served: Served, pictures: Pictures, asked: Asked) -> ClassificationQuality | None:
    """Measure the answers against the labels, if there are any of both."""
    there = asked.answered
    if pictures.classes is None or not there.any():
        return None
    probabilities, classes = asked.probabilities[there], pictures.classes[there]
    threshold = served.info.threshold
    return ClassificationQuality(
        accuracy=accuracy(probabilities, classes, served.labels),
        bins=reliability(probabilities, classes),
        at_threshold=operating_at(threshold, probabilities, classes) if threshold else None,
    )
