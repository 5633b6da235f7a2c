"""notebooks/translator.ipynb runs from top to bottom against a real Triton, and its checks can fail."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.timeout(900)

PATH = Path(__file__).parents[2] / "notebooks" / "translator.ipynb"

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


def is_check(cell: Any, name: str) -> bool:
    return {"check", name} <= set(cell.metadata.get("tags", []))


def printed(cell: Any) -> str:
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join(texts)


@pytest.fixture(scope="module")
def executed(triton: Any) -> Iterator[NotebookClient]:
    env = {**os.environ, "TRITON_SERVER_URL": triton.http_url, "GOURMET_LAB_SECONDS": "0.8"}
    client = NotebookClient(nbformat.read(PATH, as_version=4), timeout=300, kernel_name="python3")
    with client.setup_kernel(env=env, cwd=str(PATH.parent)):
        for index, cell in enumerate(client.nb.cells):
            client.execute_cell(cell, index)
        yield client


def again(client: NotebookClient, name: str, beforehand: str) -> str:
    """Run a check once more after other code, and return what it says."""
    [cell] = [cell for cell in client.nb.cells if is_check(cell, name)]
    source = cell.source.replace("grades.require(", "grades.judge(")
    for each in (nbformat.v4.new_code_cell(beforehand), nbformat.v4.new_code_cell(source)):
        client.nb.cells.append(each)
        client.execute_cell(each, len(client.nb.cells) - 1)
    return printed(client.nb.cells[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_what_must_hold_holds_and_can_fail(executed: NotebookClient, name: str) -> None:
    claim, sabotage = CHECKS[name]
    [cell] = [cell for cell in executed.nb.cells if is_check(cell, name)]
    [line] = [line for line in printed(cell).splitlines() if claim in line]
    assert line.startswith("seen here: ")
    text = again(executed, name, sabotage)
    [line] = [line for line in text.splitlines() if claim in line]
    assert line.startswith("NOT seen here: ")
    assert "What to make of it: " in text


@pytest.mark.slow
@pytest.mark.parametrize("name", SPEEDS)
def test_what_depends_on_the_machine_is_judged(executed: NotebookClient, name: str) -> None:
    [cell] = [cell for cell in executed.nb.cells if is_check(cell, name)]
    verdicts = [line for line in printed(cell).splitlines() if re.match(r"(seen here|NOT seen here): ", line)]
    assert verdicts
    assert all(re.search(r"\(.*\d.*\)\.$", line) for line in verdicts), "a verdict gives its figures"


def test_the_committed_outputs_are_of_one_whole_run_and_name_no_machine() -> None:
    cells = [cell for cell in nbformat.read(PATH, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = "".join(str(cell.outputs) for cell in cells)
    assert "'error'" not in outputs
    assert not re.findall(r"/(?:home|root|work|tmp|opt|usr|var|Users)/\S*", outputs)
