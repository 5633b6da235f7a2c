"""notebooks/triton.ipynb runs from top to bottom against a real Triton, and its checks can fail."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from click.testing import CliRunner
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from gourmet.cli import main
from gourmet.lab.server import Lab

# Three minutes' worth of processes and measurements where the machine has something else to do.
pytestmark = pytest.mark.timeout(1500)

PATH = Path(__file__).parents[2] / "notebooks" / "triton.ipynb"
MODELS = ("food_classifier", "food_classifier_onnx", "food_classifier_int8")

# A few requests, as many as are sent at a time: as long as those need, on a busy machine too.
WINDOWS = "--request-count 16"

# Each check, the claim that must hold wherever Triton works at all, and how to make it fail.
CHECKS = {
    "anatomy": ("Triton names the inputs and outputs", 'metadata["inputs"][0]["name"] = "PICTURE"'),
    "answers": (
        "A request of 16 photos gets the answers of 16 requests",
        "photos, honest = photos[:4], Lab.probabilities\n"
        "def mixed_up(lab, model, pictures, rows=1):\n"
        "    answers = honest(lab, model, pictures, rows)\n"
        "    return answers[::-1] if rows > 1 else answers\n"
        "Lab.probabilities = mixed_up",
    ),
    "int8": ("The int8 model gives nearly always the same label", "int8 = int8[::-1]"),
    "queue": ("Every request went through the network alone", "executed.by_rows = {1: 9, 2: 1}"),
    "client-batches": (
        "Each request really went through the network as a batch",
        "rows_seen[16].by_rows = {1: 16}",
    ),
    "dynamic-batches": ("Batches above one really happened", "merged[8].by_rows = {1: 99}"),
    "instances": ("The config changed under load and no request failed", 'asked.failed.append("gone")'),
    "scaled-onnx": ("Batches above one really happened", "onnx_merged.by_rows = {1: 99}"),
}
# Claims about speed, which a busy machine may refute: they must be judged, either way.
SPEEDS = {
    "machine": ("Nothing else keeps this machine busy", "load = 99"),
    "queue": ("The queue's share", "one = {1: one[16], 8: one[8], 16: one[1]}"),
    "client-batches": ("Sixteen rows a request bring more", "batches[16] = batches[1]"),
    "dynamic-batches": ("Where many ask at a time", "dynamic = dict(one)"),
    "instances": ("A second instance brings", "instances[2], cores = instances[1], 2"),
    "onnx": ("ONNX is ahead of Python", "onnx = dict(one)"),
    "scaled-onnx": ("A second instance brings", "onnx_two, cores = onnx[8], 2"),
    "eight-bits": ("Eight bits are ahead", "eight_bits[8] = onnx_two"),
}


def is_check(cell: Any, name: str) -> bool:
    return {"check", name} <= set(cell.metadata.get("tags", []))


def printed(cell: Any) -> str:
    """The text of all of a cell's outputs."""
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join(texts)


def lines_about(text: str, claim: str) -> list[str]:
    return [line for line in text.splitlines() if claim in line]


@dataclass
class Executed:
    """The notebook after its last cell, its kernel still there."""

    client: NotebookClient

    def check(self, name: str) -> Any:
        [cell] = [cell for cell in self.client.nb.cells if is_check(cell, name)]
        return cell

    def again(self, name: str, beforehand: str) -> str:
        """Run a check once more after other code, and return what it says."""
        cell = nbformat.v4.new_code_cell(f"{self.check(name).source}")
        change = nbformat.v4.new_code_cell(beforehand)
        for each in (change, cell):
            self.client.nb.cells.append(each)
            self.client.execute_cell(each, len(self.client.nb.cells) - 1)
        return printed(cell)


@pytest.fixture(scope="module")
def executed(triton: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executed]:
    notebook = nbformat.read(PATH, as_version=4)
    temporary = tmp_path_factory.mktemp("lab")
    env = {
        **os.environ,
        "TRITON_SERVER_URL": triton.http_url,
        "GOURMET_LAB_WINDOWS": WINDOWS,
        "TMPDIR": str(temporary),
    }
    client = NotebookClient(notebook, timeout=600, kernel_name="python3")
    try:
        with client.setup_kernel(env=env, cwd=str(PATH.parent)):
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index)
            yield Executed(client)
        assert not list(temporary.glob("gourmet-*")), "inputs and reports go with the kernel"
    finally:
        for model in MODELS:
            CliRunner().invoke(main, ["config", model, "--reset", "--url", triton.http_url])


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_what_must_hold_holds(executed: Executed, name: str) -> None:
    claim, _ = CHECKS[name]
    [line] = lines_about(printed(executed.check(name)), claim)
    assert line.startswith("seen here: "), printed(executed.check(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", SPEEDS)
def test_what_depends_on_the_machine_is_judged(executed: Executed, name: str) -> None:
    claim, _ = SPEEDS[name]
    [line] = lines_about(printed(executed.check(name)), claim)
    assert re.match(r"(seen here|NOT seen here): ", line)
    assert re.search(r"\(.*\d.*\)\.$", line), "a verdict gives its figures"


@pytest.mark.slow
def test_the_end_lists_every_verdict_and_the_configs_are_as_they_were(
    executed: Executed, triton: Any
) -> None:
    last = next(cell for cell in reversed(executed.client.nb.cells) if cell.cell_type == "code")
    told = re.search(r"(\d+) of (\d+) claims seen on this machine", printed(last))
    assert told
    assert int(told[2]) == sum(
        len(lines_about(printed(cell), "seen here: "))
        for cell in executed.client.nb.cells
        if "check" in cell.metadata.get("tags", [])
    )
    assert Lab(triton.http_url).config(MODELS[0])["instance_group"][0]["count"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "claim", "sabotage"),
    [
        *((name, *how) for name, how in CHECKS.items() if name != "answers"),
        *((name, *how) for name, how in SPEEDS.items()),
    ],
)
def test_a_check_can_fail_and_says_what_to_make_of_it(
    executed: Executed, name: str, claim: str, sabotage: str
) -> None:
    text = executed.again(name, sabotage)
    [line] = lines_about(text, claim)
    assert line.startswith("NOT seen here: ")
    assert "What to make of it: " in text


@pytest.mark.slow
def test_mixed_up_rows_stop_the_notebook(executed: Executed) -> None:
    claim, sabotage = CHECKS["answers"]
    with pytest.raises(CellExecutionError, match=claim):
        executed.again("answers", sabotage)


COMMITTED = nbformat.read(PATH, as_version=4)
CODE = [cell for cell in COMMITTED.cells if cell.cell_type == "code"]


def test_the_committed_outputs_are_of_one_whole_run() -> None:
    assert [cell.execution_count for cell in CODE] == list(range(1, len(CODE) + 1))
    assert not [output for cell in CODE for output in cell.outputs if output.output_type == "error"]
    about = printed(CODE[0]) + str(CODE[0].outputs)
    for stated in ("processor", "cpus", "versions", "measured", "load", "triton 2."):
        assert stated in about


def test_the_committed_notebook_is_small_and_names_no_machine_or_person() -> None:
    text = PATH.read_text()
    assert len(text) < 1_500_000
    outputs = "".join(str(cell.outputs) for cell in CODE)
    words = re.sub(r"base64,[^\"]*", "", outputs) + "".join(drawn())
    assert not re.findall(r"/(?:home|root|work|tmp|opt|usr|var|Users)/\S*", words)
    assert Path.home().name == "root" or Path.home().name not in words


def drawn() -> list[str]:
    """The committed SVGs."""
    shown = [output.get("data", {}).get("text/html", "") for cell in CODE for output in cell.outputs]
    found = [re.fullmatch(r'<img src="data:image/svg\+xml;base64,([^"]+)">', html) for html in shown]
    return [base64.b64decode(image[1]).decode() for image in found if image]


def test_its_pictures_can_be_read_in_the_dark_and_before_the_notebook_is_trusted() -> None:
    pictures = drawn()
    assert len(pictures) >= 8
    for picture in pictures:
        assert "<rect width='100%' height='100%' fill='#fff'/>" in picture
        assert "<script" not in picture
