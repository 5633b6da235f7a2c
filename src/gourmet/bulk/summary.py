"""What a finished table says at a glance: how many of each class, what to look at first, and what failed."""

from __future__ import annotations

import base64
import hashlib
import heapq
import io
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from gourmet.bulk.resumable_table import Row
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError
from gourmet.reports.chart import Bar, bars
from gourmet.reports.page import render
from gourmet.reports.table import columns

# So many of the least sure, of failures and of photos that are there more than once are shown.
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
    copies: list[list[str]] = field(default_factory=list)
    copied: int = 0

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Summary:
        """`rows` is gone through twice, and what is kept of each is eight bytes."""
        found, digests = cls(), array("Q")
        found.least_sure = heapq.nsmallest(
            _SHOWN, found._counted(rows, digests), key=lambda row: float(row["probability"])
        )
        values, times = np.unique(np.frombuffer(digests, np.uint64), return_counts=True)
        found.copied = int((times[times > 1] - 1).sum())
        some = {int(value): list[str]() for value in values[times > 1][:_SHOWN]}
        for row in rows if some else ():
            if row["sha256"] and (names := some.get(_number(row["sha256"]))) is not None:
                names.append(str(row["path"]))
        found.copies = list(some.values())
        return found

    def _counted(self, rows: Iterable[Row], digests: array[int]) -> Iterator[Row]:
        """Those that were answered."""
        for row in rows:
            self.total += 1
            if row["sha256"]:
                digests.append(_number(row["sha256"]))
            if row["error"] or None in (row["answer"], row["probability"]):
                self.failures[_reason(row["error"] or "it has none")] += 1
                if len(self.failed) < _SHOWN:
                    self.failed.append(row)
                continue
            self.counts[row["answer"]] += 1
            self.sure += bool(row["sure"])
            yield row

    def text(self) -> str:
        """For a terminal."""
        answered = self.counts.total()
        said = [f"{answered:,} of {self.total:,} photos have an answer, {self.sure:,} of them sure"]
        if answered:
            rows = [
                (label, f"{count}", f"{count / answered:.0%}") for label, count in self.counts.most_common()
            ]
            said.append(columns([("class", "photos", "share"), *rows]))
        said += [f"{count:,} without an answer: {reason}" for reason, count in self.failures.most_common(5)]
        if self.copied:
            said.append(f"{self.copies_said()}, byte by byte")
        return "\n".join(said)

    def copies_said(self) -> str:
        return "1 is a copy of another" if self.copied == 1 else f"{self.copied:,} are copies of others"

    def failed_rows(self) -> list[tuple[str, str]]:
        return [(str(row["path"]), str(row["error"])) for row in self.failed]

    def page(self, contract: PictureClassifier, command: str, when: str) -> str:
        sheet = [(row, _thumbnail(contract, str(row["path"]))) for row in self.least_sure]
        return render(
            "bulk/summary.html",
            title="Photos classified",
            says=self.text().partition("\n")[0],
            command=command,
            when=when,
            summary=self,
            sheet=[(row, picture) for row, picture in sheet if picture],
            classes=self._drawn(),
        )

    def _drawn(self) -> str:
        shown = [Bar(label, float(count)) for label, count in self.counts.most_common()]
        return bars(shown, "Photos of each class", "photos") if shown else ""


def _number(sha256: str) -> int:
    return int.from_bytes(hashlib.blake2b(sha256.encode(), digest_size=8).digest(), "big")


def _reason(error: str) -> str:
    """Without what is of one photo alone: the code in brackets where there is one."""
    return error.rpartition("[")[2].rstrip("]") if error.endswith("]") else error


def _thumbnail(contract: PictureClassifier, path: str) -> str:
    """As base64 of a JPEG; empty where the photo is not there any more."""
    try:
        pixels = contract.pixels(Path(path).read_bytes())
    except (OSError, PictureError):
        return ""
    out = io.BytesIO()
    Image.fromarray(pixels).resize((_THUMBNAIL, _THUMBNAIL)).save(out, "JPEG", quality=80)
    return base64.b64encode(out.getvalue()).decode()
