"""SECURITY.md promises nothing that no test is named for."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "SECURITY.md"


def test_every_promise_names_tests_that_exist() -> None:
    section = PAGE.read_text().partition("## What is promised")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for *_, promise, _mechanism, tests in rows:
        named = re.findall(r"`([\w/]+\.py)`", tests)
        assert named, promise
        for name in named:
            path = TESTS / name if "/" in name else TESTS / "unit" / name
            assert path.is_file(), f"{promise}: {name}"
