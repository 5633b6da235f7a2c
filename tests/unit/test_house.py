"""The arrows of the house run one way: what may import what, held for every import there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import draw_house
import house
import pytest

from gourmet import repository
from gourmet.systems import registry

ROOT = Path(__file__).parents[2]
# The rooms where torch may be imported with the module. Elsewhere a verb imports it when it needs it.
WITH_TORCH = {"training", "deploying", "tasks", "system parts"}
TORCH = {"torch", "torchvision"}
HTTP_CLIENTS = {"tritonclient", "gevent", "geventhttpclient"}
# Where a system may be named in the app: its own feature. The pages' words are in one file for all.
FEATURES = "app.features."


def test_a_room_may_import_only_rooms_that_stand_before_it() -> None:
    before: list[str] = []
    for room in house.ROOMS:
        assert set(room.imports.split()) <= set(before), room.name
        before.append(room.name)


def test_every_module_is_in_a_room() -> None:
    for module in house.modules():
        house.room_of(module)


@pytest.mark.parametrize("room", [room.name for room in house.ROOMS])
def test_a_room_imports_no_room_that_it_may_not(room: str) -> None:
    allowed = set(house.BY_NAME[room].imports.split())
    wrong = [
        str(each)
        for (source, target), found in house.arrows().items()
        for each in found
        if source == room and target not in allowed
    ]
    assert not wrong


def test_torch_is_imported_only_where_networks_are() -> None:
    wrong = [
        str(each)
        for module in house.modules()
        # A served model's network is a module of its own, which model.py imports when an instance starts.
        if house.room_of(module) not in WITH_TORCH and not re.fullmatch(r"triton\..*_network", module)
        for each in house.imports(module)
        if each.at_top and each.target.split(".")[0] in TORCH
    ]
    assert not wrong


def reached_at_once(module: str) -> set[str]:
    """Everything that importing a module imports, by way of modules of ours."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        for each in house.imports(waiting.pop()):
            if each.at_top and each.target not in found:
                found.add(each.target)
                waiting += [each.target] if each.target in house.modules() else []
    return found


@pytest.mark.parametrize("room", ["commands", "app", "served models", "backends", "doctor", "measure", "lab"])
def test_nothing_waits_for_torch_that_does_not_compute_with_it(room: str) -> None:
    wrong = [
        module
        for module in house.modules()
        if house.room_of(module) == room and not module.endswith("_network")
        if {target.split(".")[0] for target in reached_at_once(module)} & TORCH
    ]
    assert not wrong


def test_the_app_asks_triton_from_one_package() -> None:
    for module in house.modules():
        if module.startswith("app.") and not module.startswith("app.triton."):
            assert not [str(e) for e in house.imports(module) if e.target.split(".")[0] in HTTP_CLIENTS]


def named(system: str) -> set[str]:
    """The names that stand for one system only."""
    models = [
        name
        for name in repository.model_names(repository.DEFAULT)
        if f'"{system}"' in (repository.DEFAULT / name / "config.pbtxt").read_text()
    ]
    return {system, *models}


def at_home(module: str, system: str) -> bool:
    """Whether `module` is of the system: its folder, its served models, a feature of the app."""
    return module.startswith((f"gourmet.systems.{system}", "triton.models.", FEATURES))


@pytest.mark.parametrize("system", registry.names())
def test_only_its_own_modules_import_a_system(system: str) -> None:
    wrong = [
        str(each)
        for module in house.modules()
        if not at_home(module, system)
        for each in house.imports(module)
        if each.target.startswith(f"gourmet.systems.{system}")
    ]
    assert not wrong


def documentation(tree: ast.AST) -> set[ast.AST]:
    """What only the documentation of the API shows: examples of its schemas."""
    keywords = (node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "examples")
    return {node for keyword in keywords for node in ast.walk(keyword)}


@pytest.mark.parametrize("system", registry.names())
def test_nothing_else_has_a_system_s_name_in_it(system: str) -> None:
    """Docstrings, help and the documentation may give examples: the defaults of the README."""
    names = named(system)
    wrong = [
        f"{module}:{node.lineno} {node.value!r}"
        for module in house.modules()
        if not at_home(module, system)
        for node in ast.walk(house.tree(module))
        if isinstance(node, ast.Constant) and node.value in names
        if node not in documentation(house.tree(module))
    ]
    assert not wrong


def test_the_picture_of_the_house_is_current() -> None:
    assert draw_house.PICTURE.read_text(encoding="utf-8") == draw_house.svg(), (
        "docs/house.svg shows other modules or imports: run `.venv/bin/python scripts/draw_house.py`"
    )


def test_every_room_has_a_place_in_the_picture() -> None:
    assert draw_house.boxes().keys() == house.BY_NAME.keys()
