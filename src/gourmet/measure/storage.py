"""Where benchmarks are kept: a folder a run, with the JSON, the CSV and the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from gourmet.measure import page, tables
from gourmet.measure.results import Bench, UnreadableResult, as_json, read

DEFAULT: Final = Path("runs") / "bench"
_JSON: Final = "bench.json"
_CSV: Final = "bench.csv"
_PAGE: Final = "index.html"


def save(bench: Bench, folder: Path | None = None) -> Path:
    """Write a run, by default into a new folder under runs/bench named by its time and title."""
    folder = folder or DEFAULT / folder_name(bench.when, bench.title)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _JSON).write_text(as_json(bench))
    (folder / _CSV).write_text(tables.as_csv(bench))
    (folder / _PAGE).write_text(page.report(bench))
    return folder


def load(path: Path) -> Bench:
    """A saved run, given by its folder or its JSON file."""
    return read(path / _JSON if path.is_dir() else path)


def saved(folder: Path = DEFAULT) -> list[tuple[Path, Bench]]:
    """The runs under a folder, the latest first; what cannot be read is left out."""
    found = []
    for path in folder.glob(f"*/{_JSON}"):
        try:
            found.append((path.parent, read(path)))
        except UnreadableResult:
            continue
    return sorted(found, key=lambda each: each[1].when, reverse=True)


def folder_name(when: str, title: str) -> str:
    moment = re.sub(r"[^0-9T]", "", when)[:15].replace("T", "-")
    named = re.sub(r"[^a-z0-9_.]+", "-", title.lower()).strip("-")
    return f"{moment}-{named}"[:80]
