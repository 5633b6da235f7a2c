"""The hard tier: minutes of load and faults on a stack of its own, a row of a table each.

    make test-hard                                   # all of it; writes docs/reliability.md
    .venv/bin/pytest tests/hard -k overload          # one; shows its table and leaves the page alone

Every test leaves its row in --hard-out before it says whether it is content, so that what was not
survived is in the table too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hard import table as tables
from hard.table import Row

# Fixtures of the web tests, which this tier starts its own app with.
from web.conftest import start  # noqa: F401

OUT = Path(__file__).parents[2] / "runs" / "hard"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hard", "the hard tier")
    group.addoption("--hard-out", type=Path, default=OUT, help="folder of the rows")
    group.addoption("--hard-page", type=Path, help="page to write the table into; else it is only shown")


@pytest.fixture(scope="session")
def table(pytestconfig: pytest.Config) -> Iterator[Callable[[Row], Row]]:
    """Keeps a row; the first of a run sweeps away those of the run before."""
    folder: Path = pytestconfig.getoption("--hard-out", OUT)
    for old in folder.glob("*.json"):
        old.unlink()

    def keep(row: Row) -> Row:
        tables.save(row, folder)
        return row

    yield keep
    page: Path | None = pytestconfig.getoption("--hard-page", None)
    if page and (found := tables.rows(folder)):
        tables.write(found, page)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if found := tables.rows(config.getoption("--hard-out", OUT)):
        terminalreporter.section("what was tried, and what was lost")
        terminalreporter.write_line(tables.render(found))
