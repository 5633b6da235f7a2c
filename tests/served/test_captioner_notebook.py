"""notebooks/captioner.ipynb runs from top to bottom against a real Triton, and its checks can fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.notebook import NOTEBOOKS, Executed, committed, executed_in_short

pytestmark = pytest.mark.timeout(900)

NOTEBOOK = "captioner.ipynb"

# Each check, a claim of it, and how to make it fail.
CHECKS = {
    "by-hand": ("There is one request to see the photo", "requests += 1"),
    "answers": ("A photo among others gets the words", "together = together[::-1]"),
    "stream": ("The pieces, joined, are the whole answer", "came = came[:-2]"),
    "clients": ("The config is what it was", "before = {}"),
}
# Claims about speed, which a busy machine may refute: they must be judged, either way.
SPEEDS = ("machine", "seeing", "clients")


@pytest.fixture(scope="module")
def executed(triton: Any) -> Iterator[Executed]:
    with executed_in_short(NOTEBOOK, triton.http_url) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_what_must_hold_holds_and_can_fail(executed: Executed, name: str) -> None:
    executed.must_hold_and_can_fail(name, *CHECKS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SPEEDS)
def test_what_depends_on_the_machine_is_judged(executed: Executed, name: str) -> None:
    executed.must_judge(name)


def test_the_committed_outputs_are_of_one_whole_run_and_name_no_machine() -> None:
    assert committed(NOTEBOOKS / NOTEBOOK)
