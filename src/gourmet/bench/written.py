"""The part of a page of docs/ that a command writes anew, between two marks that stay."""

from __future__ import annotations

from pathlib import Path

from gourmet.errors import GourmetError


class NoPlaceForReport(GourmetError):
    """The page has no part that the command may write."""


def put(page: Path, begin: str, end: str, words: str, heading: str) -> None:
    """Put `words` between the marks; a page that is not there yet begins with `heading`."""
    text = page.read_text() if page.exists() else f"# {heading}\n\n{begin}\n{end}\n"
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise NoPlaceForReport(
            f"{page} has no lines {begin!r} and {end!r}: add both, empty, where it belongs"
        )
    page.write_text(f"{before}{begin}\n{words}{end}{after}")
