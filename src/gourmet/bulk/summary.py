"""Summarise a finished table: counts of each class, the least sure answers, and failures."""

from __future__ import annotations

import heapq
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from PIL import Image

from gourmet.bulk.model_rows import kind_of
from gourmet.bulk.resumable_table import Row
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError
from gourmet.reports.chart import Bar, bars
from gourmet.reports.report import Chart, Photo, Report, Section, Table

# How many of the least sure answers and of the failures are shown.
_SHOWN: Final = 24
_REASONS: Final = 5
_THUMBNAIL: Final = 112


def summarise(rows: Iterable[Row], contract: PictureClassifier) -> Report:
    """Summarise `rows`; few of them are in memory at a time."""
    counts, reasons = Counter[str](), Counter[str]()
    failed: list[Row] = []
    sure = 0

    def counted() -> Iterator[Row]:
        """Count the rows, and yield those that have an answer."""
        nonlocal sure
        for row in rows:
            if row["error"] or None in (row["label"], row["probability"]):
                reasons[_reason(row["error"] or "no answer")] += 1
                if len(failed) < _SHOWN:
                    failed.append(row)
                continue
            counts[kind_of(row, contract.subject)] += 1
            sure += bool(row["sure"])
            yield row

    least_sure = heapq.nsmallest(_SHOWN, counted(), key=lambda row: float(row["probability"]))
    answered, lost = counts.total(), reasons.total()
    classes = [(label, f"{count}", f"{count / answered:.0%}") for label, count in counts.most_common()]
    why = [(reason, f"{count:,}") for reason, count in reasons.most_common()]
    first = "without an answer" + (f": the first {len(failed)}" if lost > len(failed) else "")
    section = Section(
        tables=[
            Table(("class", "photos", "share"), classes),
            Table(("without an answer", "photos"), why, _REASONS),
            Table((first, "why"), [(str(row["path"]), str(row["error"])) for row in failed], in_terminal=0),
        ],
        charts=lambda: _draw(counts) if counts else (),
        photos_title="Least sure",
        photos=lambda: list(_thumbnails(least_sure, contract)),
    )
    headline = f"{answered:,} of {answered + lost:,} photos have an answer, {sure:,} of them sure"
    return Report("Photos classified", headline, counts, [section])


def _draw(counts: Counter[str]) -> Sequence[Chart]:
    shown = [Bar(label, float(count)) for label, count in counts.most_common()]
    return [Chart("Photos of each class", bars(shown, "Photos of each class", "photos"))]


def _reason(error: str) -> str:
    """Return the error's code in brackets if it has one, else the error: it groups errors of many photos."""
    return error.rpartition("[")[2].rstrip("]") if error.endswith("]") else error


def _thumbnails(rows: Iterable[Row], contract: PictureClassifier) -> Iterator[Photo]:
    """Yield the photos as small JPEGs, without those that are gone."""
    for row in rows:
        try:
            pixels = contract.pixels(Path(str(row["path"])).read_bytes())
        except (OSError, PictureError):
            continue
        out = io.BytesIO()
        Image.fromarray(pixels).resize((_THUMBNAIL, _THUMBNAIL)).save(out, "JPEG", quality=80)
        yield Photo(out.getvalue(), f"{row['verdict']} ({row['probability']:.2f})", str(row["path"]))
