"""A notebook that was run from top to bottom, whose checks can be run again after a sabotage."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

NOTEBOOKS: Final = Path(__file__).parents[2] / "notebooks"
A_PATH: Final = r"/(?:home|root|work|tmp|opt|usr|var|Users)/\S*"


def printed(cell: Any) -> str:
    """The text of all of a cell's outputs."""
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join(texts)


def committed(path: Path) -> list[Any]:
    """The cells of code of a committed notebook, which must be of one whole run and name no machine."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    words = re.sub(r"base64,[^\"]*", "", "".join(str(cell.outputs) for cell in cells))
    assert not re.findall(A_PATH, words)
    assert Path.home().name == "root" or Path.home().name not in words
    return cells


@dataclass
class Executed:
    """The notebook after its last cell, its kernel still there."""

    client: NotebookClient

    def check(self, name: str) -> Any:
        tags = ((cell, set(cell.metadata.get("tags", []))) for cell in self.client.nb.cells)
        [cell] = [cell for cell, found in tags if {"check", name} <= found]
        return cell

    def verdicts(self) -> list[str]:
        cells = (cell for cell in self.client.nb.cells if "check" in cell.metadata.get("tags", []))
        return [
            line
            for cell in cells
            for line in printed(cell).splitlines()
            if re.match(r"(NOT seen|seen|undecided) here: ", line)
        ]

    def again(self, name: str, beforehand: str) -> str:
        """Run a check once more after other code, and return what it says."""
        cells = [nbformat.v4.new_code_cell(source) for source in (beforehand, self.check(name).source)]
        for cell in cells:
            self.client.nb.cells.append(cell)
            self.client.execute_cell(cell, len(self.client.nb.cells) - 1)
        return printed(cells[-1])

    def must_fail(self, name: str, claim: str, sabotage: str, *, or_undecided: bool = False) -> None:
        text = self.again(name, sabotage)
        [line] = [line for line in text.splitlines() if claim in line]
        assert line.startswith(("NOT seen here: ", *(["undecided here: "] if or_undecided else [])))
        assert "What to make of it: " in text

    def must_hold(self, name: str, claim: str) -> None:
        [line] = [line for line in printed(self.check(name)).splitlines() if claim in line]
        assert line.startswith("seen here: "), printed(self.check(name))

    def must_hold_and_can_fail(self, name: str, claim: str, sabotage: str) -> None:
        self.must_hold(name, claim)
        self.must_fail(name, claim, sabotage)

    def must_judge(self, name: str) -> None:
        """What depends on the machine holds, or not, or is undecided, and in any case with its figures."""
        lines = printed(self.check(name)).splitlines()
        found = [line for line in lines if re.match(r"(NOT seen|seen|undecided) here: ", line)]
        assert found
        assert all(re.search(r"\(.*\d.*\)\.$", line) for line in found), found


@contextmanager
def executed(path: Path, env: Mapping[str, str], cell_timeout_s: int) -> Iterator[Executed]:
    client = NotebookClient(nbformat.read(path, as_version=4), timeout=cell_timeout_s, kernel_name="python3")
    with client.setup_kernel(env={**os.environ, **env}, cwd=str(path.parent)):
        for index, cell in enumerate(client.nb.cells):
            client.execute_cell(cell, index)
        yield Executed(client)


@contextmanager
def executed_in_short(name: str, url: str) -> Iterator[Executed]:
    """A notebook of generation, whose measurements are short, and which goes on where a claim fails."""
    env = {"TRITON_SERVER_URL": url, "GOURMET_LAB_SECONDS": "0.8"}
    with executed(NOTEBOOKS / name, env, 300) as found:
        for cell in found.client.nb.cells:  # what must hold would stop a sabotaged run
            cell.source = cell.source.replace("grades.require(", "grades.judge(")
        yield found
