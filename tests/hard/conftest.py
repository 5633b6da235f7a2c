"""Fixtures of the hard tier: minutes of load and faults on a stack of its own.

make test-hard                       # all of it, with the figures at the end
make test-hard ARGS="-k overload"    # one
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.product import Product, running
from support.triton import MODELS, ROOT

FIGURES = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-minutes", type=float, default=30.0, help="length of the soak of the hard tier")


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[object], None]:
    """Shows a test's figures at the end of the run, also where the test fails."""
    lines = request.config.stash.setdefault(FIGURES, [])
    return lambda figures: lines.append(f"{request.node.name}: {figures}")


@pytest.fixture(scope="session")
def drawings() -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "tests" / "drawings").glob("*.jpg"))]


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """`gourmet up` as people run it, on a copy of the models and ports of its own."""
    models = Path(shutil.copytree(MODELS, tmp_path_factory.mktemp("product") / "models"))
    with running(models, tmp=tmp_path_factory.mktemp("tmp")) as product:
        yield product


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if lines := config.stash.get(FIGURES, []):
        terminalreporter.section("figures")
        terminalreporter.write_line("\n".join(lines))
