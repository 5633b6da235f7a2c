"""The lab's notebooks on a real Triton: with guesses and without, and beside a busy program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from click.testing import CliRunner
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from support.lab_notebooks import KEYS, WIDE, notebook
from support.web_app import StartWeb

from gourmet.cli import main
from gourmet.served.instances import available_cpus
from gourmet.stack.connect import connect

pytestmark = pytest.mark.timeout(900)

MODELS_OF_THE_LAB = ("food_first", "food_classifier_onnx", "food_classifier_int8", "translator")


def run(book: Any, url: str, folder: Path, *, seconds: float = 0.1) -> Any:
    """Execute a notebook in the folder of a lab, where it is saved too."""
    env = {"TRITON_SERVER_URL": url, "GOURMET_LAB_SECONDS": str(seconds), "GOURMET_LAB": str(folder)}
    client = NotebookClient(book, timeout=300, kernel_name="python3")
    folder.mkdir(exist_ok=True)
    try:
        with client.setup_kernel(env={**os.environ, **env}, cwd=str(folder)):
            for index, cell in enumerate(book.cells):
                client.execute_cell(cell, index)
    finally:
        nbformat.write(book, folder / "triton.ipynb")
    return book


def printed(cell: Any) -> str:
    """The text of all of a cell's outputs."""
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join(texts)


def answers(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in (folder / "answers").glob("*.json")}


def served(url: str) -> dict[str, Any]:
    with connect(url) as triton:
        ready = triton.ready_models()
        return {model: triton.config(model) if model in ready else None for model in MODELS_OF_THE_LAB}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lab"


@pytest.fixture
def left_as_found(triton: Any) -> Iterator[None]:
    triton.load(*MODELS_OF_THE_LAB)
    before = served(triton.http_url)
    yield
    assert served(triton.http_url) == before


@pytest.mark.usefixtures("left_as_found")
@pytest.mark.parametrize(
    ("name", "exercises"),
    [
        pytest.param("triton.ipynb", ("2", "5", "7", "9"), marks=pytest.mark.slow),
        pytest.param("digits.ipynb", ("D2", "D4"), marks=pytest.mark.slow),
        pytest.param("loops.ipynb", ("L1", "L2", "L3"), marks=pytest.mark.slow),
        pytest.param("triton.ipynb", (), marks=pytest.mark.nightly),
        pytest.param("loops.ipynb", (), marks=pytest.mark.nightly),
        pytest.param("digits.ipynb", (), marks=pytest.mark.nightly),
    ],
    ids=[
        *("triton, four exercises", "digits, two exercises", "loops, three exercises"),
        *("triton", "loops", "digits"),
    ],
)
def test_every_question_is_answered_and_handed_in(
    triton: Any,
    start: StartWeb,
    folder: Path,
    name: str,
    exercises: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book = notebook(name, WIDE, *exercises)
    for cell in book.cells:
        if cell.source.startswith("begin(9, "):
            app_url = start(triton.http_url).url.removeprefix("http://")
            cell.source = f'{cell.source.removesuffix(")")}, app_url="{app_url}")'
    run(book, triton.http_url, folder)
    letter = {"loops.ipynb": "L", "digits.ipynb": "D"}.get(name, "")
    keys = {key for key in KEYS if key.rstrip("abcdefgh").rstrip("0123456789") == letter}
    keys = {key for key in keys if not exercises or key[:-1] in exercises}
    by_question = answers(folder)
    assert by_question.keys() == keys
    verdicts = {answer["measured"]["verdict"] for answer in by_question.values()}
    assert verdicts == {"as you predicted"}
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
        assert "100 % of the photos get the label of food_first" in text
        assert "no_mean does not answer FOOD_LABEL, which its config declares" in text
        assert "has no attribute 'UnferenceSession'" in text
        assert '"batch_stats":[{"batch_size":' in text


@pytest.mark.usefixtures("left_as_found")
def test_without_a_guess_the_measuring_cell_is_refused_in_a_sentence(triton: Any, folder: Path) -> None:
    book = notebook("triton.ipynb", {"3a": (1, 2)}, "3")
    with pytest.raises(CellExecutionError):
        run(book, triton.http_url, folder)
    (cell,) = [cell for cell in book.cells if cell.cell_type == "code" and cell.source.startswith("runs = ")]
    (error,) = cell.outputs
    assert error.traceback == [
        "Error: exercise 3 asks before it measures: put your low and high in place of the dots of 3b, "
        "run that cell, and then this one again"
    ]


@pytest.mark.usefixtures("left_as_found")
def test_a_measurement_beside_a_busy_program_is_explained_and_marked(triton: Any, folder: Path) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(available_cpus())]
    try:
        run(
            notebook("triton.ipynb", WIDE, "1"), triton.http_url, folder, seconds=0.01
        )  # made longer until there are answers
    finally:
        for process in busy:
            process.kill()
            process.wait()
    by_question = answers(folder)
    verdicts = {answer["measured"]["verdict"] for answer in by_question.values()}
    assert verdicts == {"as you predicted"}
    assert "other programs used" in by_question["1a"]["measured"]["disturbed"]
    assert by_question["1a"]["measured"]["explanation"][0].startswith("Measured: Of ")
