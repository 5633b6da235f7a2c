"""OpenVINO in ONNX Runtime's place: the same answers for the same file, and errors that say what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

from gourmet.errors import GourmetError
from gourmet.runtime.cpu_engine import engine
from gourmet.runtime.openvino_network import OpenVinoNetwork

HEAD = '<ir_version: 8, opset_import: ["": 18]>\n'
TWO_OUTPUTS = """
    g (float[batch, 3, 4] x, float[batch, 4] z) => (float[batch, 4] low, float[batch, 3, 4] high)
    <int64[1] axes = {1}> {
        sum = ReduceSum <keepdims = 0> (x, axes)
        low = Sub(sum, z)
        high = Add(x, x)
    }"""
FREE = "g (float[batch, length] x) => (float[batch, length] y) { y = Add(x, x) }"
MIXES_ROWS = """
    g (float[batch, 2] x) => (float[1, 2] y)
    <int64[1] axes = {0}> { y = ReduceMax <keepdims = 1> (x, axes) }"""


def saved(folder: Path, text: str) -> Path:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
    return path


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_rows_come_back_in_order_whichever_outputs_are_wanted(tmp_path: Path, rows: int) -> None:
    path = saved(tmp_path, TWO_OUTPUTS)
    random = np.random.default_rng(rows)
    feeds = {"x": random.random((rows, 3, 4), np.float32), "z": random.random((rows, 4), np.float32)}
    network = OpenVinoNetwork(path, 1, batched=True)
    expected = ort.InferenceSession(path).run(["high", "low"], feeds)
    for wanted, ours in zip(expected, network.run(["high", "low"], feeds), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)
    assert [array.shape for array in network.run(None, feeds)] == [(rows, 4), (rows, 3, 4)]
    assert network.run([], feeds) == []


def test_rows_of_any_length_go_through_together_and_answers_stay(tmp_path: Path) -> None:
    network = OpenVinoNetwork(saved(tmp_path, FREE), 1, batched=True)
    asked = [np.random.default_rng(0).random(shape, np.float32) for shape in ((2, 3), (1, 5), (4, 1))]
    answers = [network.run(["y"], {"x": given})[0] for given in asked]
    for given, answer in zip(asked, answers, strict=True):  # each outlives the next question
        np.testing.assert_array_equal(answer, 2 * given)


def test_rows_of_a_model_without_batches_are_not_taken_apart(tmp_path: Path) -> None:
    network = OpenVinoNetwork(saved(tmp_path, MIXES_ROWS), 1, batched=False)
    answer = network.run(["y"], {"x": np.array([[1, 5], [4, 2]], np.float32)})[0]
    np.testing.assert_array_equal(answer, [[4, 5]])


def test_a_file_that_it_cannot_run_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = saved(tmp_path, "g (float[1] x) => (float[1] y) { y = Unknown(x) }")
    with pytest.raises(GourmetError, match=r'model.onnx: .*Unknown.* the parameter "cpu_engine" is left out'):
        OpenVinoNetwork(path, 1, batched=False)


def test_the_config_names_the_engine_or_none() -> None:
    def config(name: str) -> dict[str, object]:
        return {"parameters": {"cpu_engine": {"string_value": name}}}

    assert engine({}) == "onnxruntime"
    assert engine(config("openvino")) == "openvino"
    with pytest.raises(GourmetError, match=r"'tensorrt'; it must be one of onnxruntime, openvino"):
        engine(config("tensorrt"))


def test_nothing_is_reported_to_anybody(tmp_path: Path) -> None:
    """What sends reports is not even imported."""
    path = saved(tmp_path, FREE)
    program = (
        "import sys; from pathlib import Path; from gourmet.runtime.openvino_network import OpenVinoNetwork; "
        "OpenVinoNetwork(Path(sys.argv[1]), 1, batched=True); print('openvino_telemetry' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
