"""The lab's notebooks on a real Triton: with guesses and without, of a slow model, on a busy machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from click.testing import CliRunner
from nbclient.exceptions import CellExecutionError
from support.notebook import answers, notebook, printed, run
from support.triton import MODELS, RunningTriton

from gourmet.cli import main
from gourmet.lab.exercises import explanations
from gourmet.runtime.instances import available_cpus
from gourmet.serving.connect import connect

pytestmark = pytest.mark.timeout(900)

KEYS = list(explanations())
WIDE = dict.fromkeys(KEYS, (0.0, 1e6))
MODELS_OF_THE_LAB = ("food_first", "food_classifier_onnx", "food_classifier_int8", "translator")
# Other programs may disturb the measurement; the explanation is chosen anyway.
PLANTED = """
from dataclasses import replace
from gourmet.lab.exercises import explanations, judged

begin(6, "slow_food")
for question in "6a", "6b", "6c":
    predict(question, 0, 1)
two, four = (arm("slow_food", clients=8, instances=count) for count in (2, 4))
runs = measure(two=two, four=four)
figure = replace(times(runs.four, runs.two), disturbed="")
print(judged((0, 1), figure, explanations()["6c"]).explanation)
"""


def served(url: str) -> dict[str, Any]:
    with connect(url) as triton:
        ready = triton.ready_models()
        return {model: triton.config(model) if model in ready else None for model in MODELS_OF_THE_LAB}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lab"


@pytest.fixture
def left_as_found(triton: Any) -> Iterator[None]:
    before = served(triton.http_url)
    yield
    assert served(triton.http_url) == before


@pytest.mark.slow
@pytest.mark.usefixtures("left_as_found")
@pytest.mark.parametrize("name", ["triton.ipynb", "loops.ipynb"])
def test_every_question_is_answered_and_handed_in(
    triton: Any, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = run(notebook(name, WIDE), triton.http_url, folder)
    keys = {key for key in KEYS if key.startswith("L") == (name == "loops.ipynb")}
    by_question = answers(folder)
    assert by_question.keys() == keys
    assert {answer["verdict"] for answer in by_question.values()} <= {"as you predicted", "undecided here"}
    monkeypatch.setenv("GOURMET_LAB", str(folder))
    result = CliRunner().invoke(main, ["lab", "hand-in"])
    assert result.output == f"written: {folder / 'hand-in.html'}\n"
    page = (folder / "hand-in.html").read_text()
    for key in keys:
        assert f"<h3>{key}: " in page
    assert "triton 2." in page
    assert page.count("(not answered)") == len(
        [cell for cell in book.cells if cell.metadata.get("tags") == ["box"]]
    )
    text = "\n".join(printed(cell) for cell in book.cells if cell.cell_type == "code")
    if name == "triton.ipynb":
        assert "a request of 16 rows was answered with 1 rows of FOOD_LABEL" in text
        assert "has no attribute 'lods'" in text


@pytest.mark.usefixtures("left_as_found")
def test_without_a_guess_the_measuring_cell_is_refused_in_a_sentence(triton: Any, folder: Path) -> None:
    book = notebook("triton.ipynb", {"3a": (1, 2)}, "3")
    with pytest.raises(CellExecutionError):
        run(book, triton.http_url, folder)
    (cell,) = [cell for cell in book.cells if cell.cell_type == "code" and cell.source.startswith("runs = ")]
    (error,) = cell.outputs
    assert error.traceback == [
        "Error: exercise 3 asks before it measures: put your low and high in place of the dots of 3b, 3c, "
        "run that cell, and then this one again"
    ]


def test_a_planted_slowdown_changes_the_explanation(lab_triton: RunningTriton, folder: Path) -> None:
    """Four instances of a model that waits and computes little are faster than two."""
    slow = Path(shutil.copytree(MODELS / "food_first", lab_triton.repository / "slow_food"))
    code, line = slow / "1" / "model.py", "        rows = np.stack"
    code.write_text(code.read_text().replace(line, f"        __import__('time').sleep(0.2)\n{line}"))
    config = slow / "config.pbtxt"
    config.write_text(config.read_text().replace('"food_first"', '"slow_food"'))
    with connect(lab_triton.http_url) as triton:
        triton.load("slow_food")
        book = notebook("triton.ipynb", {}, "none")
        book.cells = [*book.cells[:2], nbformat.v4.new_code_cell(PLANTED)]
        try:
            run(book, lab_triton.http_url, folder, seconds=0.5)
        finally:
            triton.unload("slow_food")
            shutil.rmtree(slow)
    assert "There was still something free" in printed(book.cells[-1])


@pytest.mark.usefixtures("left_as_found")
def test_a_measurement_beside_a_busy_program_is_undecided(triton: Any, folder: Path) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(available_cpus())]
    try:
        run(notebook("triton.ipynb", WIDE, "1"), triton.http_url, folder, seconds=0.5)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    by_question = answers(folder)
    assert {answer["verdict"] for answer in by_question.values()} == {"undecided here"}
    assert "other programs used" in by_question["1a"]["explanation"]
