"""Draw docs/house.svg from the imports: `.venv/bin/python scripts/draw_house.py`.

An arrow is left out where a longer way along other arrows says the same.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

import house

PICTURE: Final = house.ROOT / "docs" / "house.svg"

# Where each room stands: its floor, from the roof down, the middle of it and its width.
FLOORS: Final[tuple[dict[str, tuple[int, int]], ...]] = (
    {"commands": (730, 900)},
    {
        "doctor": (362, 158),
        "lab": (546, 158),
        "tuning": (730, 158),
        "roofline": (914, 158),
        "system parts": (1098, 158),
    },
    {"measure": (600, 330), "tasks": (1020, 314)},
    {"deploying": (1020, 314)},
    {"serving": (480, 330), "training": (1020, 314)},
    {"systems": (420, 220), "repository": (690, 220), "reports": (1020, 220)},
    {"client": (300, 240), "pictures": (600, 300), "runtime": (960, 300)},
    {"contracts": (690, 560)},
)
# Beside them, on the floors that they reach from and to.
TOWERS: Final = {"app": (120, 200, 0, 4), "served models": (1345, 190, 0, 2), "backends": (1345, 190, 3, 4)}
WIDTH: Final = 1460
GAP: Final = 54
MARGIN: Final = 20
TITLE, WORDS, MODULES = 24, 18, 16
COLOURS: Final = {
    "app": ("#e8f1fd", "#3b74c4"),
    "served models": ("#e6f6ec", "#2f8f57"),
    "backends": ("#e6f6ec", "#2f8f57"),
    "contracts": ("#fdf3dc", "#b8860b"),
}
PLAIN: Final = ("#f6f6f8", "#6b7280")


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height


def arrows() -> set[tuple[str, str]]:
    """The imports between rooms, without those that a longer way implies."""
    direct = defaultdict(set)
    for source, target in house.arrows():
        if target in house.BY_NAME[source].imports.split():  # others are not drawn but fail a test
            direct[source].add(target)

    def beyond(room: str) -> set[str]:
        return set().union(*(({each} | beyond(each)) for each in direct.get(room, ())))

    return {
        (source, target)
        for source, targets in list(direct.items())
        for target in targets
        if not any(target in beyond(other) for other in targets - {target})
    }


# Rooms whose modules are shown by package.
_BY_PACKAGE: Final = ("app", "tasks", "served models", "backends")


def groups_of(room: str) -> dict[str, list[str]]:
    """What stands in a room: its modules, by the package that they are in where a room has several."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module, path in house.modules().items():
        if path.stem == "__init__" or house.room_of(module) != room:
            continue
        _, *parts = module.split(".")
        if room in _BY_PACKAGE:
            parts = parts if room == "app" else parts[1:]
            group, *parts = parts if len(parts) > 1 else ["", *parts]
            found[group].add(parts[-1] if room == "served models" else parts[0])
        elif room == "systems":
            found[""].add(".".join(parts[1:]))
        elif room == "system parts":
            found[""].add(parts[2])
        else:
            found[""].add(parts[min(1, len(parts) - 1)])
    return {group: sorted(modules) for group, modules in sorted(found.items())}


def lines_of(room: str, width: float) -> list[str]:
    lines = []
    for group, modules in groups_of(room).items():
        lines += [f"*{group}"] if group else []
        lines += textwrap.wrap(", ".join(modules), int((width - 24) / 6.1))
    return lines


def boxes() -> dict[str, Box]:
    """Every room in its place; a floor is as high as its highest room."""
    placed: dict[str, Box] = {}
    tops, bottoms = [], []
    y = float(MARGIN)
    for floor in FLOORS:
        height = max(_height(room, width) for room, (_, width) in floor.items())
        placed |= {room: Box(x, y, width, height) for room, (x, width) in floor.items()}
        tops.append(y)
        bottoms.append(y + height)
        y += height + GAP
    for room, (x, width, first, last) in TOWERS.items():
        placed[room] = Box(x, tops[first], width, bottoms[last] - tops[first])
    return placed


def _height(room: str, width: float) -> float:
    return 16 + TITLE + WORDS * len(_words(room, width)) + MODULES * len(lines_of(room, width))


def _words(room: str, width: float) -> list[str]:
    return textwrap.wrap(house.BY_NAME[room].words, int((width - 20) / 6.6))


def svg() -> str:
    """The whole picture."""
    placed = boxes()
    if missing := {room.name for room in house.ROOMS} - placed.keys():
        raise SystemExit(f"{', '.join(sorted(missing))} has no place in scripts/draw_house.py")
    height = max(box.bottom for box in placed.values()) + MARGIN
    drawn = sorted(arrows())
    used: set[float] = set()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        'font-family="system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif">',
        "<title>The rooms of the code and what each imports</title>",
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>',
        *_heads(),
        *(_arrow(source, target, placed, drawn, used) for source, target in drawn),
        *(part for room, box in placed.items() for part in _room(room, box)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _heads() -> list[str]:
    strokes = sorted({PLAIN[1], *(stroke for _, stroke in COLOURS.values())})
    return [
        f'<marker id="head{stroke[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{stroke}"/></marker>'
        for stroke in strokes
    ]


def _arrow(
    source: str, target: str, placed: dict[str, Box], drawn: list[tuple[str, str]], used: set[float]
) -> str:
    """From the bottom of a room to the top of another, between the rooms of the floors on the way."""
    start, end = placed[source], placed[target]
    x = _port(start, target, {b: placed[b].x for a, b in drawn if a == source})
    last = _port(end, source, {a: placed[a].x for a, b in drawn if b == target})
    path = f"M{x:.1f} {start.bottom:.1f}"
    y = start.bottom
    for top, bottom, taken in _floors(placed):
        if start.bottom <= top and bottom <= end.y:
            share = (top - start.bottom) / (end.y - start.bottom)
            lane = _free(x + (last - x) * share, taken, used)
            path += f"{_bow(x, y, lane, top)}L{lane:.1f} {bottom:.1f}"
            x, y = lane, bottom
    _, stroke = COLOURS.get(source, PLAIN)
    return (
        f'<path d="{path}{_bow(x, y, last, end.y - 1)}" '
        f'fill="none" stroke="{stroke}" stroke-width="1.5" marker-end="url(#head{stroke[1:]})"/>'
    )


def _bow(x1: float, y1: float, x2: float, y2: float) -> str:
    half = (y2 - y1) / 2
    return f"C{x1:.1f} {y1 + half:.1f} {x2:.1f} {y2 - half:.1f} {x2:.1f} {y2:.1f}"


def _floors(placed: dict[str, Box]) -> list[tuple[float, float, list[Box]]]:
    """Each floor's top and bottom, and what stands on it."""
    floors = []
    for floor in FLOORS:
        mine = [placed[room] for room in floor]
        top, bottom = mine[0].y, max(box.bottom for box in mine)
        floors.append((top, bottom, [box for box in placed.values() if box.y < bottom and box.bottom > top]))
    return floors


def _free(x: float, taken: list[Box], used: set[float]) -> float:
    """The place nearest to `x` that is between rooms, and not that of another arrow."""
    wide = range(MARGIN, WIDTH - MARGIN)
    clear = [at for at in wide if all(abs(at - box.x) > box.width / 2 + 10 for box in taken)]
    found = min(
        (at for at in clear if all(abs(at - other) >= 8 for other in used)), key=lambda at: abs(at - x)
    )
    used.add(found)
    return found


def _port(box: Box, room: str, others: dict[str, float]) -> float:
    """Where on a side the arrow to or from `room` ends, among the others that end on it."""
    order = sorted(others, key=lambda other: (others[other], other))
    return box.left + box.width * (order.index(room) + 1) / (len(order) + 1)


def _room(room: str, box: Box) -> list[str]:
    fill, stroke = COLOURS.get(room, PLAIN)
    y = box.y + TITLE
    parts = [
        f'<rect x="{box.left:.1f}" y="{box.y:.1f}" width="{box.width}" height="{box.height:.1f}" rx="9" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="1.3"/>',
        _text(box.x, y, room, 'font-size="16" font-weight="600" fill="#111827"'),
    ]
    for line in _words(room, box.width):
        y += WORDS
        parts.append(_text(box.x, y, line, 'font-size="12.5" fill="#374151"'))
    y += 3
    for line in lines_of(room, box.width):
        y += MODULES
        style = (
            'font-size="11.5" font-weight="600" fill="#4b5563"'
            if line[0] == "*"
            else 'font-size="11" fill="#6b7280"'
        )
        parts.append(_text(box.x, y, line.removeprefix("*"), style))
    return parts


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" {style}>{escape(words)}</text>'


def main() -> None:
    PICTURE.write_text(svg(), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(Path.cwd()) if PICTURE.is_relative_to(Path.cwd()) else PICTURE}")  # noqa: T201


if __name__ == "__main__":
    main()
