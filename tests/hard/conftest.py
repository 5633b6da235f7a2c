"""The hard tier: minutes of load and faults on a stack of its own, a row of a table each.

    make test-hard                       # all of it, and a table at the end
    make test-hard ARGS="-k overload"    # one; the rows of the others stay

Every test leaves its row in --hard-out before it says whether it is content, so that what was not
survived is in the table too.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import table as tables
from support.product import Product, running
from support.table import TableRow

ROOT = Path(__file__).parents[2]
OUT = ROOT / "runs" / "hard"
MODELS = ROOT / "triton" / "models"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hard", "the hard tier")
    group.addoption("--hard-out", type=Path, default=OUT, help="folder of the rows")
    group.addoption("--soak-minutes", type=float, default=30.0, help="length of the soak")


@pytest.fixture(scope="session")
def table(pytestconfig: pytest.Config) -> tables.Keep:
    """Keeps a row, in place of an older one of the same, and insists on it; a whole run begins with none."""
    folder: Path = pytestconfig.getoption("--hard-out", OUT)
    if _is_whole(pytestconfig):
        for old in folder.glob("*.json"):
            old.unlink()

    def keep(row: TableRow) -> None:
        tables.save(row, folder)
        assert row.survived, row

    return keep


def _is_whole(config: pytest.Config) -> bool:
    chosen = config.getoption("keyword") or config.getoption("markexpr")
    return not chosen and all(Path(argument).is_dir() for argument in config.args)


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """`gourmet up` as people run it, on a copy of the models and ports of its own."""
    models = Path(shutil.copytree(MODELS, tmp_path_factory.mktemp("product") / "models"))
    with running(models, tmp=tmp_path_factory.mktemp("tmp")) as product:
        yield product


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if rows := tables.rows(config.getoption("--hard-out", OUT)):
        terminalreporter.section("what was tried, and what was lost")
        terminalreporter.write_line(tables.render(rows))
