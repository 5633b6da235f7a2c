"""The notebook's claims and its reading of perf_analyzer's reports, without a server."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from gourmet.errors import GourmetError
from gourmet.lab.claims import Claim, Grades
from gourmet.lab.server import Executions, take
from gourmet.systems.food11 import contract as food
from gourmet.systems.translator import contract as translator

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"

REPORT = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency\n"
    "8,106.5,157,682,60000,74,12000,217,5,72037,141591,143593,146149\n"
)


def test_a_report_is_read_once_so_that_an_old_one_cannot_pass_for_a_new_one(tmp_path: Path) -> None:
    report = tmp_path / "one.csv"
    report.write_text(REPORT)
    measured = take(report, batch=4)
    assert (measured.batch, measured.rows_per_s) == (4, 106.5)
    with pytest.raises(GourmetError, match=r"no one\.csv found: the perf_analyzer above gave up"):
        take(report)


HELD = Claim("Water is wet", True, "100 %", "Then it is ice.")
FAILED = Claim("Pigs fly", False, "0 of 9", "They lack wings.")


def test_a_claim_that_fails_says_what_to_make_of_it_and_the_end_counts_it() -> None:
    grades = Grades()
    judgement = grades.judge("1", HELD, FAILED)
    assert "✔ **seen here:** Water is wet (100 %)." in judgement._repr_markdown_()
    assert "✘ **NOT seen here:** Pigs fly (0 of 9)." in judgement._repr_markdown_()
    assert "They lack wings." in judgement._repr_markdown_()
    assert "Then it is ice." not in judgement._repr_markdown_()
    assert repr(grades) == "1 of 2 claims seen on this machine"
    grades.judge("1", HELD)
    assert repr(grades) == "1 of 1 claims seen on this machine"


def test_what_is_required_stops_where_it_does_not_hold() -> None:
    grades = Grades()
    grades.require("2", HELD)
    with pytest.raises(GourmetError, match=r"Pigs fly: no \(0 of 9\)\. They lack wings"):
        grades.require("2", HELD, FAILED)
    assert "NOT seen here" in grades._repr_markdown_()


def test_executions_count_rows_and_not_requests() -> None:
    seen = Executions({1: 2, 8: 1})
    assert (seen.mean, seen.largest, str(seen)) == (10 / 3, 8, "2 of 1 row, 1 of 8 rows")
    assert (Executions().mean, Executions().largest, str(Executions())) == (0, 0, "none")


@pytest.mark.parametrize(
    ("notebook", "contract"), [("triton", food.SYSTEM), ("translator", translator.SYSTEM)]
)
def test_what_a_notebook_s_cells_import_and_ask_of_the_contract_is_there(
    notebook: str, contract: object
) -> None:
    read = json.loads((NOTEBOOKS / f"{notebook}.ipynb").read_text())
    cells = [each for each in read["cells"] if each["cell_type"] == "code"]
    python, found = TransformerManager(), dict[str, object]()
    for cell in cells:
        source = python.transform_cell("".join(cell["source"]))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                exec(compile(ast.Module([node], []), "cell", "exec"), found)
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "contract":
                assert hasattr(contract, node.attr), node.attr
    assert found["contract"] is contract
