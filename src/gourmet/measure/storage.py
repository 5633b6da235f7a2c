"""Benchmarks as pages, and where they are kept: a folder a run, with JSON, CSV and page; some in docs/."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from gourmet.client.config_summary import summary
from gourmet.client.model_config import as_pbtxt
from gourmet.errors import GourmetError
from gourmet.measure import charts, tables
from gourmet.measure.comparison import Pair, differences
from gourmet.measure.results import Bench, as_json, read
from gourmet.reports import page
from gourmet.reports.table import markdown, write_section

DEFAULT: Final = Path("runs") / "bench"
_JSON: Final = "bench.json"
# A page that has figures of benchmarks in it, or includes the templates that have.
render: Final = partial(page.render, charts=charts, tables=tables, summary=summary, as_pbtxt=as_pbtxt)


def as_page(bench: Bench, template: str = "measure/bench.html", **more: Any) -> str:
    return render(template, bench=bench, **vars(bench), **more)


def save(bench: Bench, folder: Path | None = None, *page: str, **more: Any) -> Path:
    """Write a run, by default into a new folder under runs/bench named by its time and title."""
    folder = folder or DEFAULT / folder_name(bench.when, bench.title)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _JSON).write_text(as_json(bench))
    (folder / "bench.csv").write_text(tables.as_csv(bench))
    (folder / "index.html").write_text(as_page(bench, *page, **more))
    return folder


def comparison(before: Bench, now: Bench, pairs: Sequence[Pair], noise: float) -> str:
    """Two runs side by side."""
    shown = {"before": before, "now": now, "pairs": pairs, "noise": noise}
    title, changed = f"{now.title}: now against before", differences(before, now)
    return render("measure/comparison.html", title=title, changed=changed, **shown)


def load(path: Path) -> Bench:
    """A saved run, given by its folder or its JSON file."""
    return read(path / _JSON if path.is_dir() else path)


def saved(folder: Path = DEFAULT) -> list[tuple[Path, Bench]]:
    """The runs under a folder, the latest first; what cannot be read is left out."""
    found = []
    for path in folder.glob(f"*/{_JSON}"):
        try:
            found.append((path.parent, read(path)))
        except GourmetError:
            continue
    return sorted(found, key=lambda each: each[1].when, reverse=True)


def folder_name(when: str, title: str) -> str:
    moment = re.sub(r"[^0-9T]", "", when)[:15].replace("T", "-")
    named = re.sub(r"[^a-z0-9_.]+", "-", title.lower()).strip("-")
    return f"{moment}-{named}"[:80]


def write_docs(bench: Bench, name: str, folder: Path, page_name: str) -> tuple[Path, Path]:
    """Write the part of the scenario `name` of a page of docs/, and its picture."""
    text, picture = folder / page_name, folder / f"labs-{name}.svg"
    marks = f"<!-- from here on written by `gourmet bench scenario {name}` -->", f"<!-- to here: {name} -->"
    words = render("measure/section.txt", bench=bench, picture=picture.name, markdown=markdown)
    write_section(text, *marks, words, "The labs on this machine")
    picture.write_text(charts.throughput(bench.points))
    return text, picture
