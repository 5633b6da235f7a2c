"""What holds for the tests themselves."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TIERS = ("unit", "served", "web", "hard", "containers")


def imported(file: Path) -> set[str]:
    """The first names of the modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("folder", [*TIERS, "support"])
def test_what_tiers_share_is_in_support_and_none_imports_another(folder: str) -> None:
    files = list((TESTS / folder).rglob("*.py"))
    assert files
    others = {*TIERS} - {folder}
    assert {str(file): both for file in files if (both := imported(file) & others)} == {}


@pytest.mark.parametrize("tier", ["unit", "served", "web"])
def test_the_smoke_tier_has_tests_of_each_that_make_test_runs(tier: str) -> None:
    assert [file for file in (TESTS / tier).glob("test_*.py") if "mark.smoke" in file.read_text()]


def test_the_files_that_are_begun_first_are_there() -> None:
    (names,) = re.findall(r"^LONGEST = \((.*?)^\)", (TESTS / "conftest.py").read_text(), re.M | re.S)
    found = ast.literal_eval(f"({names})")
    assert found
    assert [name for name in found if not (TESTS / name).is_file()] == []
