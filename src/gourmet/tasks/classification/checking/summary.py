"""A check in a terminal: what was asked, how fast, how right, how like the network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from gourmet.reports.table import columns
from gourmet.tasks.classification.checking.report import ClassificationQuality, Report

_WORST = 5


def summary(report: Report) -> str:
    """The whole table."""
    told = list(_aligned(_lines(report)))
    if report.quality:
        told += ["", columns([("class", "pictures", "recall", "precision"), *report.quality.accuracy.rows()])]
    if report.eager and report.eager.largest_difference:
        rows = report.furthest_from_network()[:_WORST]
        told += ["", columns([("furthest from the network", "served", "network", "apart"), *rows])]
    return "\n".join(told)


def headline(report: Report) -> str:
    """The model, the pictures, and whether all of them were answered."""
    versions = ", ".join(sorted(report.asked.versions)) or report.served.info.version
    part = f", part {report.pictures.part}" if report.pictures.part else ""
    return (
        f"{report.served.info.name} version {versions} at {report.served.url}: {report.answered} of "
        f"{len(report.pictures)} pictures answered ({report.pictures.source}{part})"
    )


def _lines(report: Report) -> Iterator[tuple[str, str]]:
    yield "", headline(report)
    if report.stopped:
        yield "STOPPED", "what follows is about the answers that had come by then"
    if report.pictures.note:
        yield "note", report.pictures.note
    yield from facts(report)


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """Name and value of everything measured, but for the classes."""
    if report.quality:
        yield from _quality(report.quality)
    yield from _eager(report)
    if report.again:
        again = report.again
        yield (
            "order",
            f"{again.pictures} asked again alone: {len(again.different)} answered otherwise, "
            f"probabilities apart by at most {again.largest_difference:.1e}",
        )
    asked, options = report.asked, report.options
    if report.latency_ms:
        times = ", ".join(f"{name} {value:.0f}" for name, value in report.latency_ms.items())
        requests = _count(len(asked.latencies_ms), "request")
        yield "latency", f"{times} ms, {requests} of up to {_count(options.batch, 'row')}"
    yield (
        "throughput",
        f"{report.rows_per_s:.0f} rows/s over {asked.wall_s:.1f} s, decoding here included; "
        f"{asked.mean_in_flight:.1f} of {options.in_flight} requests in flight on average",
    )
    yield "batches", _batches(report)


def _quality(quality: ClassificationQuality) -> Iterator[tuple[str, str]]:
    found, at = quality.accuracy, quality.at_threshold
    yield "top-1", f"{found.top1:.4f}, top-3 {found.top3:.4f}, top-5 {found.top5:.4f}"
    yield "balanced", f"{found.balanced:.4f} ± {found.balanced_margin:.4f} (95 %)"
    yield "calibration", f"error {quality.calibration_error:.4f}, as served"
    if at:
        right = "none" if math.isnan(at.accuracy) else f"{at.accuracy:.1%}"
        yield "threshold", f"{at.coverage:.1%} reach {at.threshold:g}, {right} of them right"


def _eager(report: Report) -> Iterator[tuple[str, str]]:
    if report.eager is None:
        yield "network", f"not compared: {report.no_eager}"
        return
    eager = report.eager
    top1 = "" if eager.top1 is None else f", whose top-1 is {eager.top1:.4f}"
    yield (
        "network",
        f"{eager.different} of {eager.pictures} answered otherwise than by {eager.weights}{top1}; "
        f"probabilities apart by at most {eager.largest_difference:.1e}",
    )


def _batches(report: Report) -> str:
    counts = report.counted
    sizes = ", ".join(f"{times} of {size}" for size, times in counts.executions_by_batch.items())
    words = (
        f"{counts.mean_batch:.1f} rows at once on average inside Triton ({sizes})" if sizes else "none ran"
    )
    if counts.cache_hits:
        words += f"; {counts.cache_hits} requests answered from the cache"
    if counts.rows > report.asked.sent:
        words += f"; {counts.rows - report.asked.sent} rows were asked for by others"
    return words


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _aligned(lines: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, value in lines:
        yield f"{name:<12}{value}" if name else value
