"""Format tables as Markdown and for a terminal, and write the generated section of a page in docs/."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from gourmet.errors import GourmetError


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table; all columns but the first are aligned right."""
    ruled = ("---", *("---:" for _ in headings[1:]))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headings, ruled, *rows))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Format a table for a terminal: words are aligned left, numbers right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if _is_number(rows[-1][column]) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _is_number(text: str) -> bool:
    return text == "–" or text.replace(".", "").replace("e-", "").isdigit()


def spreadsheet_cell(text: str) -> str:
    """Quote a text that a spreadsheet would take for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text


def write_section(page: Path, begin: str, end: str, words: str, heading: str) -> None:
    """Write `words` between the lines `begin` and `end`; create a missing page with `heading`."""
    text = page.read_text() if page.exists() else f"# {heading}\n\n{begin}\n{end}\n"
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise GourmetError(f"{page} has no lines {begin!r} and {end!r}: add both where the section belongs")
    page.write_text(f"{before}{begin}\n{words}{end}{after}")
