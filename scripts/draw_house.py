"""Draw the picture in docs/house.md from the imports: `.venv/bin/python scripts/draw_house.py`.

An arrow is left out where a longer way along other arrows says the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

import grimp

from gourmet.reports.table import write_section

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "house.md"

WORDS: Final = {
    "app": "the web: pages, routes, admission",
    "bulk": "many inputs into a table",
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
# The modules of a system that its served models and its contract import.
SERVED: Final = ("contract", "serving", "texts", "tokenizer")
# Layers that are drawn as part of another.
WITHIN: Final = {
    "cli": "commands",
    "errors": "contracts",
    "import_guard": "contracts",
    "result_store": "repository",
}
COLOURS: Final = {
    "app": "fill:#e8f1fd,stroke:#3b74c4",
    "served models": "fill:#e6f6ec,stroke:#2f8f57",
    "contracts": "fill:#fdf3dc,stroke:#b8860b",
}


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


def picture() -> str:
    """The rooms and arrows in Mermaid's words."""
    names = {room: room.replace(" ", "_") for room in WORDS}
    lines = [f'{names[room]}["<b>{room}</b><br>{words}"]' for room, words in WORDS.items()]
    lines += [f"{names[source]} --> {names[target]}" for source, target in arrows()]
    lines += [f"style {names[room]} {colours}" for room, colours in COLOURS.items()]
    return "```mermaid\nflowchart TB\n" + "".join(f"    {line}\n" for line in lines) + "```\n"


if __name__ == "__main__":
    write_section(
        PAGE, "<!-- from here on drawn by scripts/draw_house.py -->", "<!-- to here -->", picture(), ""
    )
