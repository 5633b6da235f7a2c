"""The reports in a folder, the latest first, and the page of each.

Any program may have written them: a report is an HTML file, known by its title, whose head may say in a
`description` what it found and in a `date` when. A visitor names an id from the list, never a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

from app.core.ttl_cache import TtlCache

_PATTERNS: Final = ("*.html", "*/*.html", "*/*/*.html")
_PAGE: Final = "index.html"
_MOST_FILES: Final = 1000
_MOST_BYTES: Final = 20_000_000
_HEAD_BYTES: Final = 4096
_MOST_CHARACTERS: Final = 300
# How long a new report may go unnoticed.
_AGE_S: Final = 1.0
# Without the time at the end of ours, which the list shows anyway.
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)(?: · \d{4}-\d\d-\d\d \d\d:\d\d)?</title>", re.I | re.S)
_SAID: Final = re.compile(r"<meta name=['\"](\w+)['\"] content=(['\"])(.*?)\2", re.I | re.S)
_WHOLE_TITLE: Final = re.compile(rb"<title[^>]*>.*?</title>", re.I | re.S)
# Where a page's content begins: after the tag of its body, or else after its type.
_BODY: Final = re.compile(rb"<body[^>]*>", re.I)
_DOCTYPE: Final = re.compile(rb"\s*<!doctype[^>]*>", re.I)


@dataclass(frozen=True)
class Report:
    id: str
    path: Path
    place: str  # the path within the folder of reports, without the name that all pages share
    title: str
    when: datetime
    says: str = ""


class Reports:
    """Those of `folder`, which need not be there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._listed = TtlCache(self._list, _AGE_S)

    def latest(self) -> list[Report]:
        return self._listed.get()

    def page(self, report_id: str) -> tuple[Report, bytes] | None:
        """The report that the list has under that id, and its HTML."""
        found = next((report for report in self.latest() if report.id == report_id), None)
        try:
            return (found, found.path.read_bytes()) if found else None
        except OSError:  # removed since
            return None

    def _list(self) -> list[Report]:
        found: list[Report] = []
        for path in islice(self._paths(), _MOST_FILES):
            with contextlib.suppress(OSError):  # removed since, or not to be read by us
                found.append(_read(path, str(path.relative_to(self._folder))))
        times = Counter(report.title for report in found)
        distinct = [
            replace(report, title=f"{report.title} ({report.place})") if times[report.title] > 1 else report
            for report in found
        ]
        return sorted(distinct, key=lambda report: report.when, reverse=True)

    def _paths(self) -> Iterator[Path]:
        for pattern in _PATTERNS:
            for path in self._folder.glob(pattern):
                # A link could lead out of the folder.
                if path.resolve() == path and path.is_file() and path.stat().st_size < _MOST_BYTES:
                    yield path


def framed(data: bytes, title: str, bar: str) -> bytes:
    """A report's HTML with `title`, which no other report has, and a bar above its content."""
    named = f"<title>{html.escape(title)}</title>".encode()
    data, replaced = _WHOLE_TITLE.subn(lambda _: named, data, count=1)
    begins = _BODY.search(data) or _DOCTYPE.match(data)
    at = begins.end() if begins else 0
    return b"".join([data[:at], b"" if replaced else named, bar.encode(), data[at:]])


def _read(path: Path, place: str) -> Report:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES).decode(errors="replace")
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    title = _TITLE.search(head)
    said = {name.lower(): html.unescape(content) for name, _, content in _SAID.findall(head)}
    with contextlib.suppress(ValueError):
        when = datetime.fromisoformat(said.get("date", ""))
        written = when if when.tzinfo else when.replace(tzinfo=UTC)
    return Report(
        id=hashlib.blake2b(place.encode(errors="surrogateescape"), digest_size=8).hexdigest(),
        path=path,
        place=place.removesuffix(f"/{_PAGE}"),
        title=_short(html.unescape(title[1] if title else "")) or place,
        when=written,
        says=_short(said.get("description", "")),
    )


def _short(text: str) -> str:
    """Text on one line, and not too much of it."""
    words = " ".join(text.split())
    return words if len(words) <= _MOST_CHARACTERS else words[: _MOST_CHARACTERS - 1] + "…"
