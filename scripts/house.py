"""The rooms of this code base, what each may import, and what it does import.

tests/unit/test_house.py holds the rules; draw_house.py draws the picture of docs/house.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Room:
    """Modules that belong together; `members` are packages or modules, `imports` the rooms it may import."""

    name: str
    words: str
    members: tuple[str, ...]
    imports: str = ""

    def holds(self, module: str) -> bool:
        return any(module == member or module.startswith(f"{member}.") for member in self.members)


# From the bottom upwards: a room may import rooms that stand before it only.
_GROUND: Final = "contracts"
_LIGHT: Final = f"{_GROUND} runtime pictures"
_ENGINES: Final = f"{_LIGHT} client reports repository systems serving training deploying"
ROOMS: Final = (
    Room(
        "contracts",
        "what a system says about itself",
        ("gourmet", "gourmet.contracts", "gourmet.errors", "gourmet.import_guard"),
    ),
    Room("client", "the only code that speaks to Triton", ("gourmet.client",), _GROUND),
    Room("runtime", "what a served model needs", ("gourmet.runtime", "gourmet.result_store"), _GROUND),
    Room("pictures", "decoding and classifying pictures", ("gourmet.pictures",), f"{_GROUND} runtime"),
    Room("reports", "pages, charts and tables", ("gourmet.reports",), f"{_GROUND} runtime"),
    Room(
        "repository",
        "models and their configs on disk",
        ("gourmet.repository", "gourmet.config_change"),
        f"{_GROUND} client runtime",
    ),
    Room("systems", "their contracts, found by looking", ("gourmet.systems",), _LIGHT),
    Room(
        "serving",
        "gourmet up, and asking what runs",
        ("gourmet.serving",),
        f"{_LIGHT} client repository systems",
    ),
    Room("training", "the loop", ("gourmet.training",), f"{_LIGHT} reports repository"),
    Room(
        "deploying",
        "staging, the gate’s frame, rollback",
        ("gourmet.deploying",),
        f"{_LIGHT} client reports repository training serving",
    ),
    Room("tasks", "evaluate, gate and check, by task", ("gourmet.tasks",), _ENGINES),
    Room("measure", "load, counts and statistics", ("gourmet.measure",), f"{_ENGINES} tasks"),
    Room(
        "system parts",
        "a system’s data, network, training, export",
        ("gourmet.systems.*",),
        f"{_ENGINES} tasks measure",
    ),
    Room("tuning", "the best config here", ("gourmet.tuning",), f"{_ENGINES} tasks measure"),
    Room("roofline", "what a network computes and moves", ("gourmet.roofline",), f"{_ENGINES} measure"),
    Room("lab", "the notebook’s helpers", ("gourmet.lab",), f"{_ENGINES} tasks measure tuning"),
    Room("doctor", "what is wrong, and what to do", ("gourmet.doctor",), _ENGINES),
    Room(
        "commands",
        "one module a verb",
        ("gourmet.commands", "gourmet.cli"),
        f"{_ENGINES} tasks measure tuning roofline lab doctor",
    ),
    Room("app", "the web: pages, routes, admission", ("app",), f"{_LIGHT} client systems"),
    Room("backends", "ONNX Runtime and TorchScript for Triton", ("triton.backends",), _LIGHT),
    Room("served models", "model.py of each", ("triton.models",), f"{_LIGHT} systems"),
)
BY_NAME: Final = {room.name: room for room in ROOMS}


@dataclass(frozen=True)
class Import:
    """One import statement's target, and whether it runs when the module is imported."""

    module: str
    target: str
    at_top: bool

    def __str__(self) -> str:
        return f"{self.module} imports {self.target}"


@cache
def modules() -> dict[str, Path]:
    """Every module by its name; those of triton/ by their folders, since they lie on no path but Triton's."""
    found = {}
    for folder in (ROOT / "app", ROOT / "src" / "gourmet", ROOT / "triton"):
        for path in sorted(folder.rglob("*.py")):
            base = ROOT / "src" if folder.parent.name == "src" else ROOT
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


@cache
def imports(module: str) -> tuple[Import, ...]:
    """What a module imports, submodules by their own names."""
    return tuple(Import(module, target, at_top) for target, at_top in _targets(tree(module), at_top=True))


def _targets(node: ast.AST, *, at_top: bool) -> Iterator[tuple[str, bool]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, at_top) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            yield full if full in modules() else node.module, at_top
    else:
        at_top = (
            at_top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _for_types(node)
        )
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield from _targets(child, at_top=at_top)


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def room_of(module: str) -> str:
    """The room that a module of ours is in; KeyError for a module that is in none."""
    if module.startswith("gourmet.systems.") and module.count(".") > 2:
        return "systems" if module in _light_parts() else "system parts"
    if module in BY_NAME["contracts"].members:
        return "contracts"
    for room in ROOMS:
        if room.name not in ("contracts", "system parts") and room.holds(module):
            return room.name
    raise KeyError(f"{module} is in no room: give it one in scripts/house.py")


@cache
def _light_parts() -> frozenset[str]:
    """The systems' contracts, their folders' own modules, and what the contracts import of those."""
    light = {
        module
        for module in modules()
        if module.startswith("gourmet.systems.") and module.endswith(".contract")
    }
    light |= {target for contract in light for target in _siblings(contract)}
    return frozenset(light)


def _siblings(contract: str) -> Iterator[str]:
    folder = contract.removesuffix("contract")
    return (found.target for found in imports(contract) if found.target.startswith(folder))


def ours(target: str) -> bool:
    return target.split(".")[0] in ("app", "gourmet")


def arrows() -> dict[tuple[str, str], list[Import]]:
    """The imports between rooms, by importing and imported room."""
    found: dict[tuple[str, str], list[Import]] = {}
    for module in modules():
        for each in imports(module):
            if ours(each.target) and each.target in modules():
                pair = room_of(module), room_of(each.target)
                if pair[0] != pair[1]:
                    found.setdefault(pair, []).append(each)
    return found
