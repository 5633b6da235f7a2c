"""The notebook's claims and its reading of perf_analyzer's reports, without a server."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from gourmet.errors import GourmetError
from gourmet.lab.claims import Claim, Grades
from gourmet.lab.server import Executions, Measurement, take, times
from gourmet.measure.comparison import above
from gourmet.measure.results import Latency, Split
from gourmet.measure.validity import Disturbed
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


# As the real program wrote it.
SMALL_REPORT = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency\n"
    "2,199.5,68,413,11,12,161,33,1,400,979,1651,9834\n"
)


def test_a_report_is_read_in_milliseconds_and_rows(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text(SMALL_REPORT)
    got = take(tmp_path / "one.csv", batch=4)
    assert (got.batch, got.rows_per_s) == (4, 199.5)
    split = Split(0.011, 0.012, 0.161, 0.033, 0.068 + 0.413 + 0.001)
    assert vars(got.split_ms) == pytest.approx(vars(split))
    mean = split.server + split.network
    assert vars(got.latency_ms) == pytest.approx(vars(Latency(mean, 0.4, 0.979, 1.651, 9.834)))


@pytest.mark.parametrize(
    "report", ["", SMALL_REPORT.splitlines()[0], SMALL_REPORT.replace("Server Queue", "Queue")]
)
def test_a_report_of_another_form_is_refused(tmp_path: Path, report: str) -> None:
    (tmp_path / "one.csv").write_text(report)
    with pytest.raises(GourmetError, match="report has not one whole row"):
        take(tmp_path / "one.csv")


def said(*rates: float) -> str:
    """What perf_analyzer says of windows of so many requests a second."""
    return "".join(
        f"  Pass [{number}] throughput: {rate} infer/sec. Avg latency: 9000 usec (std 10 usec).\n"
        for number, rate in enumerate(rates, 1)
    )


def measured(tmp_path: Path, *rates: float) -> Measurement:
    (tmp_path / "one.csv").write_text(REPORT)
    (tmp_path / "one.txt").write_text(said(*rates))
    return take(tmp_path / "one.csv")


def test_a_figure_of_windows_has_an_interval_and_one_alone_is_told_as_no_finding(tmp_path: Path) -> None:
    slow, fast = measured(tmp_path, 100, 102, 98), measured(tmp_path, 199, 200, 203)
    gained = times(fast, slow)
    assert above(gained, 1.5) is True
    assert gained.low
    assert gained.low < gained.value
    alone = times(measured(tmp_path, 200), measured(tmp_path, 100))
    assert above(alone, 1.05) is None, "twice as much, of one window each"
    told = Claim("Batches pay", above(alone, 1.05), f"{alone:.2f} times", "The network gains nothing.").text()
    assert told.startswith("undecided here: Batches pay (2.00 times).")
    assert "gains nothing" not in told
    assert "· **undecided here:**" in Claim("Batches pay", None, "2.00", "Nothing.").markdown()


def test_a_notebook_refuses_windows_that_bench_would_refuse(tmp_path: Path) -> None:
    with pytest.raises(Disturbed, match="the windows answered 100, 300, 101 requests a second, 197% from"):
        measured(tmp_path, 100, 300, 101)


def test_what_to_make_of_a_claim_is_about_what_was_found_and_not_about_both() -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            source = "".join(cell["source"])
            more, less = source.find("More than expected"), source.find("Less than expected")
            assert cell["cell_type"] != "code" or (more < 0) == (less < 0), source
            for at in (more, less):
                assert at < 0 or "if room_for" in source, source


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
