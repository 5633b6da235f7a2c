"""The lab's notebooks as a student fills them in, with short measurements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import nbformat
from support.triton import ROOT

from gourmet.lab.exercises import explanations

KEYS = list(explanations())
WIDE = dict.fromkeys(KEYS, (0.0, 1e6))
NOTEBOOKS: Final = ROOT / "notebooks"
_PREDICT: Final = re.compile(r'predict\("(\w+):.*')
# What a student writes in place of the dots, by the first line of the cell.
_SOLUTIONS: Final = {
    cell.source.partition("\n")[0]: cell.source
    for cell in nbformat.read(ROOT / "docs" / "lab" / "teacher.ipynb", as_version=4).cells
    if cell.cell_type == "code"
}
# The shortest measurements that still show that everything works.
_QUICK: Final = {
    "rounds=3": "rounds=1",
    "runs = measure(\n": "runs = measure(\n    rounds=1,\n",
    "instances=24": "instances=3",
    "instances=12": "instances=2",
    "--measurement-interval 2000": "--measurement-mode count_windows --measurement-request-count 5",
    "--window 0.4 --windows 2 --warm-up 0.2": "--window 0.1 --windows 2 --warm-up 0.1",
}

Guesses = Mapping[str, tuple[float, float]]


def notebook(name: str, guesses: Guesses, *exercises: str) -> Any:
    """A notebook with its dots replaced, measured in one round; only of these exercises, if any."""
    book, exercise, cells = nbformat.read(NOTEBOOKS / name, as_version=4), "", []
    for cell in book.cells:
        if heading := re.match(r"## ([LD]?\d+|The)", cell.source):
            exercise = heading[1]
        if exercise in ("", "The", *exercises) or not exercises:
            cell.source = _PREDICT.sub(lambda line: _filled(line, guesses), cell.source)
            for usual, quick in _QUICK.items():
                cell.source = cell.source.replace(usual, quick)
            cell.source = _SOLUTIONS.get(cell.source.partition("\n")[0], cell.source)
            cells.append(cell)
    book.cells = cells
    return book


def _filled(line: re.Match[str], guesses: Guesses) -> str:
    low, high = guesses.get(line[1], ("...", "..."))
    return line[0].replace("..., ...", f"{low}, {high}")
