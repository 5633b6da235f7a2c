"""A student's lab as one page with its tables, and the tables of a class in one."""

from __future__ import annotations

import csv
import datetime
import getpass
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gourmet.errors import UsageError
from gourmet.lab.exercises import AFTER, ANSWERS, MACHINE_FILE, Answer, counted, folder, read_answer
from gourmet.reports.page import render

FILE: Final = "hand-in.html"
_NAME_FILE: Final = "name.txt"
_ANSWERED: Final = re.compile(r"""\banswer\(\s*["'](\w+)["']""")
_EMPTY: Final = "write your answer"
_ITEM: Final = re.compile(r"\s*(?:[-*•]|\d+[.)])\s+")
# A longer cell is folded under its first line.
_SHORT: Final = 4


@dataclass(frozen=True)
class Part:
    """A cell of code with the answers that it gave, or the student's words on an open question."""

    code: str = ""
    answers: tuple[Answer, ...] = ()
    question: str = ""
    words: str = ""

    @property
    def is_short(self) -> bool:
        return self.code.count("\n") < _SHORT

    @property
    def blocks(self) -> list[tuple[bool, list[str]]]:
        """The words as paragraphs, and as lists: True, and the items."""
        blocks: list[tuple[bool, list[str]]] = []
        for line in self.words.splitlines():
            item = _ITEM.match(line)
            if item and blocks and blocks[-1][0]:
                blocks[-1][1].append(line[item.end() :])
            elif item:
                blocks.append((True, [line[item.end() :]]))
            elif not line.strip():
                blocks.append((False, []))
            elif blocks and blocks[-1][1]:
                blocks[-1][1][-1] += f" {line.strip()}"
            else:
                blocks.append((False, [line.strip()]))
        return [block for block in blocks if block[1]]


@dataclass
class Section:
    """An exercise of a notebook, with the parts that the page shows."""

    heading: str
    parts: list[Part] = field(default_factory=list)

    @property
    def is_begun(self) -> bool:
        return any(part.answers or part.words for part in self.parts)


def write_page(name: str = "") -> Path:
    """Write the page, and its figures as JSON and CSV, into the folder of the lab.

    The name of the student is kept for the next time; without one it is that of the user's account.
    """
    answers = [read_answer(path) for path in sorted((folder() / ANSWERS).glob("*.json"))]
    answered = {answer["key"]: answer for answer in answers if "measured" in answer}
    if not answered:
        raise UsageError(f"{folder()} has no answer yet: work on an exercise first (`gourmet lab`)")
    kept = folder() / _NAME_FILE
    if name:
        kept.write_text(name)
    name = kept.read_text() if kept.exists() else getpass.getuser()
    sections = [
        section
        for path in sorted(folder().glob("*.ipynb"), reverse=True)  # triton.ipynb, loops.ipynb, digits.ipynb
        for section in _sections(path, answered)
    ]
    begun = [section for section in sections if section.is_begun]
    shown = {answer["key"] for section in begun for part in section.parts for answer in part.answers}
    if more := tuple(answer for key, answer in answered.items() if key not in shown):
        begun.append(Section("Answered elsewhere", [Part(answers=more)]))
    machine = json.loads((folder() / MACHINE_FILE).read_text())
    tally = _tally(list(answered.values()))
    words = {part.question: part.words for section in begun for part in section.parts if part.words}
    data = {"name": name, "machine": machine, **tally, "words": words, "answers": list(answered.values())}
    path = folder() / FILE
    path.with_suffix(".json").write_text(json.dumps(data, indent=1, ensure_ascii=False))
    _write_table(path.with_suffix(".csv"), [_line(answer) for answer in answered.values()])
    page = render(
        "lab/hand_in.html",
        title=f"The lab of {name}",
        when=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        sections=begun,
        machine=machine,
        tally=tally,
        count=len(answered),
        not_begun=[section.heading for section in sections if not section.is_begun],
    )
    path.write_text(page)
    return path


def collect(class_folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Write a table of all that was handed in below a folder, a row a student; return it too."""
    rows = []
    for path in sorted(class_folder.rglob("hand-in.json")):
        try:
            data = json.loads(path.read_text())
            tally = {name: data[name] for name in _TALLIED}
            row = {"name": data["name"], "first begun": data["machine"].get("first begun", ""), **tally}
            row |= {"questions in words": len(data["words"]), "folder": str(path.parent)}
            row |= {answer["key"]: answer["measured"]["verdict"] for answer in data["answers"]}
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise UsageError(f"{path} is not what `gourmet lab hand-in` writes ({exc!r})") from exc
        rows.append(row)
    if not rows:
        raise UsageError(
            f"{class_folder} has no hand-in.json: `gourmet lab hand-in` writes one beside its page"
        )
    path = class_folder / "class.csv"
    _write_table(path, rows)
    return path, rows


_TALLIED: Final = ("as predicted", "otherwise", "undecided", "changed before", "changed after", "disturbed")


def _tally(answers: Sequence[Answer]) -> dict[str, int]:
    """Count verdicts, an undecided one as neither; and questions whose prediction was changed."""
    verdicts = [answer["measured"]["verdict"] for answer in answers]
    right = verdicts.count("as you predicted")
    wrong = sum(verdict.endswith("than you predicted") for verdict in verdicts)
    changes = [{made["when"] for made in answer["predictions"]} for answer in answers]
    before = sum("before the measurement" in when for when in changes)
    after = sum(AFTER in when for when in changes)
    disturbed = sum(bool(answer["measured"]["disturbed"]) for answer in answers)
    counts = (right, wrong, len(verdicts) - right - wrong, before, after, disturbed)
    return dict(zip(_TALLIED, counts, strict=True))


def _line(answer: Answer) -> dict[str, Any]:
    """Return a question's row in the CSV."""
    measured, judged = answer["measured"], counted(answer)
    first, last = answer["predictions"][0], answer["predictions"][-1]
    return {
        **{"key": answer["key"], "question": answer["question"], "unit": measured["unit"]},
        **{"low": judged["low"], "high": judged["high"], "first predicted at": first["at"]},
        "changes": len(answer["predictions"]) - 1,
        "last change": last["when"] if last is not first else "",
        **{name: measured[name] for name in ("value", "verdict", "disturbed")},
        **{f"interval {name}": measured[name] for name in ("low", "high")},
        "measured at": measured["at"],
    }


def _write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)


def _sections(notebook: Path, answers: dict[str, Answer]) -> list[Section]:
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
