"""The lab's notebooks on a real Triton: good guesses, absurd ones, none; a slow model, a busy machine."""

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
from support.triton import MODELS
from support.up import Up

from gourmet.cli import main
from gourmet.lab.exercises import explanations
from gourmet.runtime.instances import available_cpus
from gourmet.serving.connect import connect

pytestmark = pytest.mark.timeout(900)

KEYS = list(explanations())
WIDE = dict.fromkeys(KEYS, (0.0, 1e6))
ABSURD = dict.fromkeys(KEYS, (1e6, 2e6))
MODELS_OF_THE_LAB = ("food_first", "food_classifier_onnx", "food_classifier_int8", "translator")
# Other tests may disturb the measurement: the explanation is chosen anyway, and the disturbance is printed.
PLANTED = """
from dataclasses import replace
from gourmet.lab.exercises import explanations, judged

begin(6, "MODEL")
for question in "6a", "6b", "6c":
    predict(question, 0, 1)
two, four = (arm("MODEL", clients=8, instances=count) for count in (2, 4))
runs = measure(two=two, four=four)
figure = times(runs.four, runs.two)
print(judged((0, 1), replace(figure, disturbed=""), explanations()["6c"]).explanation)
print("disturbed" if figure.disturbed else "quiet")
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
    found = answers(folder)
    assert found.keys() == keys
    assert {answer["verdict"] for answer in found.values()} <= {"as you predicted", "undecided here"}
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
def test_absurd_guesses_are_never_right(triton: Any, folder: Path) -> None:
    run(notebook("triton.ipynb", ABSURD, "3"), triton.http_url, folder)
    found = answers(folder)
    assert found.keys() == {"3a", "3b", "3c"}
    assert {answer["verdict"] for answer in found.values()} <= {"less than you predicted", "undecided here"}


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


def test_a_planted_slowdown_changes_the_explanation(folder: Path, tmp_path: Path) -> None:
    """Four instances of a model that waits and computes little are faster than two."""
    slow = Path(shutil.copytree(MODELS / "food_first", tmp_path / "slow_food"))
    code, line = slow / "1" / "model.py", "        rows = np.stack"
    code.write_text(code.read_text().replace(line, f"        __import__('time').sleep(0.2)\n{line}"))
    (tmp_path / "up").mkdir()
    up = Up("--triton-only", "--system", "digits", tmp=tmp_path / "up")
    url = f"127.0.0.1:{up.http}"
    try:
        up.wait_for("ready")
        load = ["load", "slow_food", "--from", str(slow), "--url", url]
        assert CliRunner().invoke(main, load).exit_code == 0
        book = notebook("triton.ipynb", {}, "none")
        book.cells = book.cells[:2]
        book.cells += [
            nbformat.v4.new_code_cell(PLANTED.replace("MODEL", name)) for name in ("food_first", "slow_food")
        ]
        run(book, url, folder, seconds=1.0)
    finally:
        CliRunner().invoke(main, ["unload", "slow_food", "--url", url])
        up.stop()
    usual, planted = (printed(cell) for cell in book.cells[-2:])
    assert "There was still something free" in planted
    if available_cpus() <= 2 and "disturbed" not in usual:
        assert "There was still something free" not in usual


@pytest.mark.usefixtures("left_as_found")
def test_a_measurement_beside_a_busy_program_decides_nothing(triton: Any, folder: Path) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(available_cpus())]
    try:
        run(notebook("triton.ipynb", WIDE, "1"), triton.http_url, folder, seconds=0.5)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    found = answers(folder)
    assert {answer["verdict"] for answer in found.values()} == {"undecided here"}
    assert "other programs used" in found["1a"]["explanation"]
