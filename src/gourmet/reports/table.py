"""Format tables for a terminal, and cells for a spreadsheet."""

from __future__ import annotations

from collections.abc import Sequence


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
