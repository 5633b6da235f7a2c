"""Draw docs/house.svg from the imports: `.venv/bin/python scripts/draw_house.py`.

The floors are the layers of import-linter's first contract in pyproject.toml. An arrow is left out where a
longer way along other arrows says the same.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

import grimp

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURE: Final = ROOT / "docs" / "house.svg"

WORDS: Final = {
    "app": "the web: pages, routes, admission",
    "client": "the only code that speaks to Triton",
    "commands": "one module a verb",
    "contracts": "what a system says about itself",
    "deploying": "staging, the gate’s frame, rollback",
    "doctor": "what is wrong, and what to do",
    "lab": "the notebook’s helpers",
    "measure": "load, counts and statistics",
    "pictures": "decoding and classifying pictures",
    "repository": "models, configs and results on disk",
    "reports": "pages, charts and tables",
    "roofline": "what a network computes and moves",
    "runtime": "what a served model needs",
    "served models": "model.py of each, and the backends",
    "serving": "gourmet up, and what runs",
    "systems": "the registry, contracts, what is served",
    "system parts": "a system’s data, network, training, export",
    "tasks": "evaluate, gate and check, by task",
    "training": "the loop",
    "tuning": "the best config here",
}
# The rooms whose middle is not where an even distribution over its floor would put it.
MIDDLES: Final = {
    "app": 120,
    "served models": 1280,
    "measure": 620,
    "tasks": 780,
    "deploying": 860,
    "client": 500,
    "pictures": 900,
}
# The modules of a system that its served models import.
SERVED: Final = ("contract", "serving", "sentences", "tokenizer")
# Rooms that are not a layer of their own, and the layer whose floor they stand on.
BESIDE: Final = {"system parts": "tuning", "systems": "reports", "app": "tasks", "served models": "tasks"}
# Layers that are drawn as part of another.
WITHIN: Final = {
    "cli": "commands",
    "errors": "contracts",
    "import_guard": "contracts",
    "result_store": "repository",
}
COLOURS: Final = {
    "app": ("#e8f1fd", "#3b74c4"),
    "served models": ("#e6f6ec", "#2f8f57"),
    "contracts": ("#fdf3dc", "#b8860b"),
}
PLAIN: Final = ("#f6f6f8", "#6b7280")
WIDTH, GAP, MARGIN, LINE, PAGE = 226, 56, 24, 16, 1400


@dataclass(frozen=True)
class Box:
    x: float  # of its middle
    y: float
    height: float


def floors() -> list[list[str]]:
    """The rooms of each floor, from the roof down."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = config["tool"]["importlinter"]["contracts"][0]["layers"]
    found = [[room for room in re.findall(r"\w+", layer) if room not in WITHIN] for layer in layers]
    for room, beside in BESIDE.items():
        next(floor for floor in found if beside in floor).append(room)
    return [floor for floor in found if floor]


def room_of(module: str) -> str:
    package, *path = module.split(".")
    if package == "app" or not path:
        return "app" if package == "app" else "contracts"
    if path[0] == "systems":
        return "systems" if len(path) < 3 or path[2] in SERVED else "system parts"
    return WITHIN.get(path[0], path[0])


def imports() -> dict[str, set[str]]:
    """Which room imports which."""
    found = defaultdict[str, set[str]](set)
    graph = grimp.build_graph("gourmet", "app", cache_dir=None)
    for module in graph.modules:
        for target in graph.find_modules_directly_imported_by(module):
            found[room_of(module)].add(room_of(target))
    for path in (ROOT / "triton").rglob("*.py"):
        for target in re.findall(r"^\s*from (gourmet[\w.]*) import", path.read_text(encoding="utf-8"), re.M):
            found["served models"].add(room_of(target))
    return {room: targets - {room} for room, targets in found.items()}


def arrows() -> list[tuple[str, str]]:
    """The imports between rooms, without those that a longer way implies."""
    direct = imports()

    def beyond(room: str) -> set[str]:
        return set[str]().union(*({each} | beyond(each) for each in direct.get(room, ())))

    return sorted(
        (source, target)
        for source, targets in direct.items()
        for target in targets
        if not any(target in beyond(other) for other in targets - {target})
    )


def texts(room: str) -> list[tuple[str, str]]:
    """The lines in a room, each with its style."""
    about = textwrap.wrap(WORDS.get(room, ""), 30)
    title = (room, 'font-size="16" font-weight="600" fill="#111827"')
    return [title, *((line, 'font-size="12.5" fill="#374151"') for line in about)]


def svg() -> str:
    """The whole picture."""
    written = {room: texts(room) for floor in floors() for room in floor}
    boxes, y = dict[str, Box](), float(MARGIN)
    for floor in floors():
        height = LINE * (1.5 + max(len(written[room]) for room in floor))
        for place, room in enumerate(floor):
            middle = MIDDLES.get(room, PAGE * (place + 0.5) / len(floor))
            boxes[room] = Box(middle, y, height)
        y += height + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PAGE} {y - GAP + MARGIN:.0f}" '
        'font-family="system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif">',
        "<title>The rooms of the code and what each imports</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="context-stroke"/></marker>',
    ]
    drawn = arrows()
    for source, target in drawn:
        start, end = boxes[source], boxes[target]
        x1 = _port(start, [boxes[b].x for a, b in drawn if a == source], end.x)
        x2 = _port(end, [boxes[a].x for a, b in drawn if b == target], start.x)
        y1, y2 = start.y + start.height, end.y - 1
        _, stroke = COLOURS.get(source, PLAIN)
        parts.append(
            f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + GAP:.0f} {x2:.0f} {y2 - GAP:.0f} {x2:.0f} {y2:.0f}" '
            f'fill="none" stroke="{stroke}" stroke-width="1.5" marker-end="url(#head)"/>'
        )
    for room, box in boxes.items():
        fill, stroke = COLOURS.get(room, PLAIN)
        parts.append(
            f'<rect x="{box.x - WIDTH / 2:.0f}" y="{box.y:.0f}" width="{WIDTH}" height="{box.height:.0f}" '
            f'rx="9" fill="{fill}" stroke="{stroke}" stroke-width="1.3"/>'
        )
        for number, (line, style) in enumerate(written[room], 1):
            at = f'x="{box.x:.0f}" y="{box.y + 4 + LINE * number:.0f}"'
            parts.append(f'<text {at} text-anchor="middle" {style}>{escape(line)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _port(box: Box, others: list[float], to: float) -> float:
    """Where on a side of a room the arrow to or from `to` ends, among the others there."""
    return box.x - WIDTH / 2 + WIDTH * (sorted(others).index(to) + 1) / (len(others) + 1)


if __name__ == "__main__":
    PICTURE.write_text(svg(), encoding="utf-8")
