"""Format tables for a terminal, and cells for a spreadsheet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_EXPONENT: Final = re.compile(r"(?<=\d)e(?=[-+]?\d)")


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Format a table for a terminal, with its headings: words are aligned left, numbers right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    are_numbers = number_columns(rows[1:] or rows)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, are_numbers, strict=True)
        ).rstrip()
        for row in rows
    )


def number_columns(rows: Sequence[Sequence[object]]) -> list[bool]:
    """Return for each column whether it has numbers and no words."""
    return [
        any(map(str.isdigit, text)) and not any(map(str.isalpha, _EXPONENT.sub("", text)))
        for text in (" ".join(map(str, column)) for column in zip(*rows, strict=True))
    ]


def spreadsheet_cell(text: str) -> str:
    """Quote a text that a spreadsheet would take for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text
