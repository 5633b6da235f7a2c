"""The reports in a folder, the latest first, and the page of each.

Whatever wrote them: a report is an HTML file, known by its title; beside an index.html, JSON may tell
more. What a visitor names is an id out of the list, never a path.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

from app.lab import told
from app.lab.told import Told
from app.remembered import Remembered

_PATTERNS: Final = ("*.html", "*/*.html", "*/*/*.html")
_PAGE: Final = "index.html"
_MOST_FILES: Final = 1000
_MOST_BYTES: Final = 20_000_000
_HEAD_BYTES: Final = 4096
# How long a report that was written just now may go unnoticed.
_AGE_S: Final = 1.0
_TITLE: Final = re.compile(r"<title[^>]*>([^<]*)", re.I)


@dataclass(frozen=True)
class Report:
    id: str
    path: Path
    title: str
    when: datetime
    told: Told | None = None


class Reports:
    """Those of `folder`, which need not be there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        # Each with the times and sizes of its files, at which it is read again.
        self._known: dict[str, tuple[object, Report]] = {}
        self._listed = Remembered(self._list, _AGE_S)

    def latest(self) -> list[Report]:
        return self._listed.get()

    def page(self, report_id: str) -> bytes | None:
        """The HTML of the report that the list has under that id."""
        paths = [report.path for report in self.latest() if report.id == report_id]
        try:
            return paths[0].read_bytes() if paths else None
        except OSError:  # removed since
            return None

    def _list(self) -> list[Report]:
        known, self._known = self._known, {}
        for path in islice(self._paths(), _MOST_FILES):
            place = str(path.relative_to(self._folder))
            try:
                state = [_state(file) for file in (path, *(path.with_name(name) for name in told.FILES))]
                before = known.get(place)
                self._known[place] = before if before and before[0] == state else (state, _read(path, place))
            except OSError:  # removed since, or not to be read by us
                continue
        return sorted((report for _, report in self._known.values()), key=_when, reverse=True)

    def _paths(self) -> Iterator[Path]:
        for pattern in _PATTERNS:
            for path in self._folder.glob(pattern):
                # A link could lead out of the folder.
                if path.resolve() == path and path.is_file() and path.stat().st_size < _MOST_BYTES:
                    yield path


def _state(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _when(report: Report) -> datetime:
    return report.when


def _read(path: Path, place: str) -> Report:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES).decode(errors="replace")
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    title = _TITLE.search(head)
    found = told.read(path.parent) if path.name == _PAGE else None
    return Report(
        id=hashlib.blake2b(place.encode(errors="surrogateescape"), digest_size=8).hexdigest(),
        path=path,
        title=(found and found.title) or told.short(html.unescape(title[1] if title else "")) or place,
        when=(found and found.when) or written,
        told=found,
    )
