"""notebooks/triton.ipynb runs from top to bottom against a real Triton, and its checks can fail."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from nbclient.exceptions import CellExecutionError
from support.notebook import A_PATH, Executed, committed, printed
from support.notebook import executed as run_notebook

from gourmet.cli import main
from gourmet.lab.server import Lab

# Three minutes' worth of processes and measurements where the machine has something else to do.
pytestmark = pytest.mark.timeout(1500)

PATH = Path(__file__).parents[2] / "notebooks" / "triton.ipynb"
MODELS = ("food_classifier", "food_classifier_onnx", "food_classifier_int8")

# Three windows, whatever they say: intervals are wide, and every claim of speed may be left open.
WINDOWS = "--measurement-interval 500 --stability-percentage 900 --max-trials 3"

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


@pytest.fixture(scope="module")
def executed(triton: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executed]:
    temporary = tmp_path_factory.mktemp("lab")
    env = {"TRITON_SERVER_URL": triton.http_url, "GOURMET_LAB_WINDOWS": WINDOWS, "TMPDIR": str(temporary)}
    try:
        with run_notebook(PATH, env, 600) as found:
            yield found
        assert not list(temporary.glob("gourmet-*")), "inputs and reports go with the kernel"
    finally:
        for model in MODELS:
            there = ["--url", triton.http_url, "--repository", str(triton.repository)]
            CliRunner().invoke(main, ["config", model, "--reset", *there])


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_what_must_hold_holds_and_can_fail(executed: Executed, name: str) -> None:
    claim, sabotage = CHECKS[name]
    executed.must_hold(name, claim)
    if name != "answers":
        executed.must_fail(name, claim, sabotage)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPEEDS)
def test_what_depends_on_the_machine_is_judged_and_can_fail(executed: Executed, name: str) -> None:
    executed.must_judge(name)
    executed.must_fail(name, *SPEEDS[name], or_undecided=True)


@pytest.mark.slow
def test_the_end_counts_every_verdict_and_the_configs_are_as_they_were(
    executed: Executed, triton: Any
) -> None:
    said = [printed(cell) for cell in executed.client.nb.cells if cell.cell_type == "code"]
    told = re.findall(r"of (\d+) claims seen on this machine", "\n".join(said))
    assert int(told[-1]) == len(executed.verdicts())
    assert Lab(triton.http_url).config(MODELS[0])["instance_group"][0]["count"] == 2


@pytest.mark.slow
def test_mixed_up_rows_stop_the_notebook(executed: Executed) -> None:
    claim, sabotage = CHECKS["answers"]
    with pytest.raises(CellExecutionError, match=claim):
        executed.again("answers", sabotage)


def test_the_committed_outputs_are_small_of_one_run_and_can_be_read_in_the_dark() -> None:
    cells = committed(PATH)
    about = printed(cells[0]) + str(cells[0].outputs)
    for stated in ("processor", "cpus", "versions", "measured", "load", "triton 2."):
        assert stated in about
    assert len(PATH.read_text()) < 1_500_000
    shown = [output.get("data", {}).get("text/html", "") for cell in cells for output in cell.outputs]
    images = [re.fullmatch(r'<img src="data:image/svg\+xml;base64,([^"]+)">', html) for html in shown]
    pictures = [base64.b64decode(image[1]).decode() for image in images if image]
    assert len(pictures) >= 8
    for picture in pictures:
        assert "<rect width='100%' height='100%' fill='#fff'/>" in picture
        assert "<script" not in picture
        assert not re.findall(A_PATH, picture)
