"""notebooks/translator.ipynb runs from top to bottom against a real Triton, and its checks can fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.notebook import NOTEBOOKS, Executed, committed, executed_in_short

pytestmark = pytest.mark.timeout(900)

NOTEBOOK = "translator.ipynb"

# Each check, a claim of it, and how to make it fail.
CHECKS = {
    "by-hand": ("There is one request for each piece", "requests += 1"),
    "bytes": ("A piece costs a hundred thousand times", "per_piece = 10.0\ntravelled = 10.0 * requests"),
    "answers": ("A sentence among others gets the words", "together = together[::-1]"),
    "inside": ("BLS asks the decoder once for each piece", "asked += 1"),
    "stream": ("The pieces, joined, are the whole answer", "came = came[:-2]"),
}
# Claims about speed, which a busy machine may refute: they must be judged, either way.
SPEEDS = ("machine", "speed", "continuous")


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
