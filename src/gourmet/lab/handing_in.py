"""A student's lab as one page: predictions, figures, verdicts, code, answers in words, and the machine."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gourmet.errors import UsageError
from gourmet.lab.exercises import ANSWERS, MACHINE_FILE, folder
from gourmet.reports.page import render

FILE: Final = "hand-in.html"
_ANSWERED: Final = re.compile(r"""\banswer\(\s*["'](\w+)["']""")
_EMPTY: Final = "write your answer"


@dataclass(frozen=True)
class Part:
    """A cell of code with the answers that it gave, or the student's words on an open question."""

    code: str = ""
    answers: tuple[dict[str, Any], ...] = ()
    question: str = ""
    words: str = ""


@dataclass
class Section:
    """An exercise of a notebook, with the parts that the page shows."""

    heading: str
    parts: list[Part] = field(default_factory=list)

    @property
    def is_begun(self) -> bool:
        return any(part.answers or part.words for part in self.parts)


def write_page() -> Path:
    """Write the page into the folder of the lab."""
    answers = {
        path.stem: {"key": path.stem, **json.loads(path.read_text())}
        for path in (folder() / ANSWERS).glob("*.json")
    }
    answered = {key: answer for key, answer in answers.items() if "verdict" in answer}
    if not answered:
        raise UsageError(f"{folder()} has no answer yet: work on an exercise first (`gourmet lab`)")
    sections = [
        section
        for path in sorted(folder().glob("*.ipynb"), reverse=True)  # triton.ipynb, then loops.ipynb
        for section in _sections(path, answered)
    ]
    begun = [section for section in sections if section.is_begun]
    shown = {answer["key"] for section in begun for part in section.parts for answer in part.answers}
    if more := tuple(answer for key, answer in answered.items() if key not in shown):
        begun.append(Section("Answered elsewhere", [Part(answers=more)]))
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    machine = json.loads((folder() / MACHINE_FILE).read_text())
    right = sum(answer["verdict"] == "as you predicted" for answer in answered.values())
    page = render(
        "lab/hand_in.html",
        title="The lab, handed in",
        when=when,
        sections=begun,
        machine=machine,
        right=right,
        count=len(answered),
        not_begun=[section.heading for section in sections if not section.is_begun],
    )
    path = folder() / FILE
    path.write_text(page)
    return path


def _sections(notebook: Path, answers: dict[str, dict[str, Any]]) -> list[Section]:
    """Return the exercises of a notebook in their order, with the parts that the page shows."""
    sections: list[Section] = []
    for cell in json.loads(notebook.read_text())["cells"]:
        text = "".join(cell["source"])
        if text.startswith("## ") and cell["cell_type"] == "markdown":
            sections.append(Section(text.partition("\n")[0].lstrip("# ")))
        elif not sections:
            continue  # the introduction and the imports
        elif cell["cell_type"] == "code":
            keys = [key for key in _ANSWERED.findall(text) if key in answers]
            sections[-1].parts.append(Part(code=text, answers=tuple(answers[key] for key in keys)))
        elif "box" in cell["metadata"].get("tags", ()):
            question, _, words = text.partition("\n\n")
            words = "" if _EMPTY in words else words
            sections[-1].parts.append(Part(question=question.strip("*"), words=words))
    return [section for section in sections if any(part.question for part in section.parts)]
