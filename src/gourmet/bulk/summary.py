"""Summarise a finished table: counts of each class, the least sure answers, and failures."""

from __future__ import annotations

import base64
import heapq
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from PIL import Image

from gourmet.bulk.model_rows import in_short
from gourmet.bulk.resumable_table import Row
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError
from gourmet.reports.chart import Bar, bars
from gourmet.reports.page import render
from gourmet.reports.table import columns

# How many of the least sure answers and of the failures are shown.
_SHOWN: Final = 24
_THUMBNAIL: Final = 112


@dataclass
class Summary:
    total: int = 0
    sure: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    failed: list[Row] = field(default_factory=list)
    least_sure: list[Row] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Iterable[Row], subject: str = "") -> Summary:
        """Summarise `rows`; few of them are in memory at a time."""
        summary = cls()
        summary.least_sure = heapq.nsmallest(
            _SHOWN, summary._counted(rows, subject), key=lambda row: in_short(row, subject)[1]
        )
        return summary

    def _counted(self, rows: Iterable[Row], subject: str) -> Iterator[Row]:
        """Count the rows, and yield those that have an answer."""
        for row in rows:
            self.total += 1
            if row["error"] or None in (row["label"], row["probability"]):
                self.failures[_reason(row["error"] or "no answer")] += 1
                if len(self.failed) < _SHOWN:
                    self.failed.append(row)
                continue
            self.counts[in_short(row, subject)[0]] += 1
            self.sure += bool(row["sure"])
            yield row

    def text(self) -> str:
        """Return the summary for a terminal."""
        answered = self.counts.total()
        parts = [f"{answered:,} of {self.total:,} photos have an answer, {self.sure:,} of them sure"]
        if answered:
            rows = [
                (label, f"{count}", f"{count / answered:.0%}") for label, count in self.counts.most_common()
            ]
            parts.append(columns([("class", "photos", "share"), *rows]))
        parts += [f"{count:,} without an answer: {reason}" for reason, count in self.failures.most_common(5)]
        return "\n".join(parts)

    def failed_rows(self) -> list[tuple[str, str]]:
        return [(str(row["path"]), str(row["error"])) for row in self.failed]

    def page(self, contract: PictureClassifier, command: str, when: str) -> str:
        sheet = [
            (row["path"], *in_short(row, contract.subject), _thumbnail(contract, str(row["path"])))
            for row in self.least_sure
        ]
        return render(
            "bulk/summary.html",
            title="Photos classified",
            says=self.text().partition("\n")[0],
            command=command,
            when=when,
            summary=self,
            sheet=[row for row in sheet if row[-1]],
            classes=self._drawn(),
        )

    def _drawn(self) -> str:
        shown = [Bar(label, float(count)) for label, count in self.counts.most_common()]
        return bars(shown, "Photos of each class", "photos") if shown else ""


def _reason(error: str) -> str:
    """Return the error's code in brackets if it has one, else the error: it groups errors of many photos."""
    return error.rpartition("[")[2].rstrip("]") if error.endswith("]") else error


def _thumbnail(contract: PictureClassifier, path: str) -> str:
    """Return a JPEG in base64; empty if the photo is gone."""
    try:
        pixels = contract.pixels(Path(path).read_bytes())
    except (OSError, PictureError):
        return ""
    out = io.BytesIO()
    Image.fromarray(pixels).resize((_THUMBNAIL, _THUMBNAIL)).save(out, "JPEG", quality=80)
    return base64.b64encode(out.getvalue()).decode()
