"""The report of a verb that measures: one object for the terminal, the JSON and the page."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gourmet.errors import printable
from gourmet.reports import machine
from gourmet.reports.chart import Drawing
from gourmet.reports.page import render
from gourmet.reports.table import columns

_CELL: Final = 60  # characters of a cell in a terminal


@dataclass(frozen=True)
class Table:
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    in_terminal: int | None = None  # rows shown there; None shows all


@dataclass(frozen=True)
class Chart:
    title: str
    drawing: Drawing
    caption: str = ""


@dataclass(frozen=True)
class Photo:
    file: bytes
    caption: str
    name: str

    @property
    def encoded(self) -> str:
        return base64.b64encode(self.file).decode()


@dataclass(frozen=True)
class Section:
    """Measurements that belong together. Charts and photos are made for a page only."""

    title: str = ""
    measures: Mapping[str, Any] = field(default_factory=dict)
    facts: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()
    charts: Callable[[], Sequence[Chart]] = tuple
    photos_title: str = ""
    photos: Callable[[], Sequence[Photo]] = tuple

    def lines(self) -> list[str]:
        """Return the section for a terminal."""
        lines = ["", self.title] if self.title else []
        lines += [f"{name:<12}{value}" for name, value in self.facts]
        for table in self.tables:
            if rows := [[_short(cell) for cell in row] for row in table.rows[: table.in_terminal]]:
                lines += ["", columns([table.headings, *rows])]
        return lines


@dataclass(frozen=True)
class Report:
    title: str
    headline: str
    measures: Mapping[str, Any]
    sections: Sequence[Section]
    notes: Sequence[str] = ()  # what a reader of the numbers must know about them
    failures: Sequence[str] = ()  # the reasons why the verb fails
    stopped: str = ""  # how far the verb came before Ctrl-C

    def json(self) -> str:
        return json.dumps(self.measures, indent=2)

    def text(self) -> str:
        """Return the report for a terminal, without the failures, which end the verb as an error."""
        warnings = [("STOPPED", "the rest is about the answers until then")] if self.stopped else []
        warnings += [("note", note) for note in self.notes]
        lines = [self.headline, *Section(facts=warnings).lines()]
        for section in self.sections:
            lines += section.lines()
        return printable("\n".join(lines))  # names and texts are other people's

    def page(self, command: str = "", when: str = "") -> str:
        warnings = [f"Stopped after {self.stopped}."] if self.stopped else []
        return render(
            "reports/sections.html",
            title=self.title,
            says=self.headline,
            command=command,
            when=when,
            sections=self.sections,
            warnings=[*warnings, *self.notes, *self.failures],
            machine=machine.about(),
        )


def _short(cell: str) -> str:
    text = " ".join(cell.split())
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"
