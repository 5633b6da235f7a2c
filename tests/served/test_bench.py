"""`gourmet bench` on real models: what it measures and saves, and what it refuses to report.

The models are small, made on the spot, and have the fault that their config names.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import Result
from support.cli import gourmet, said
from support.made_models import parameters, python_model, tensors
from support.triton import ROOT

from gourmet.bench.results import read_results

# Doubles its rows in 20 ms each. That slow, so that a client which the machine lets wait for a few
# milliseconds is not refused for it.
MODEL = """
import json
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.fault = json.loads(args["model_config"])["parameters"]["fault"]["string_value"]
        self.asked = 0

    def execute(self, requests):
        return [self._answer(pb_utils.get_input_tensor_by_name(r, "x").as_numpy()) for r in requests]

    def _answer(self, rows):
        time.sleep(0.02 * len(rows))
        self.asked += 1
        y = 2 * rows
        if self.fault == "permutes" and len(rows) > 1:
            y = y[::-1]
        if self.fault == "drops":
            y = y[:1]
        if self.fault == "errs":
            y = y + 1
        each = 20 if self.fault == "fails_rarely" else 3
        if self.fault.startswith("fails") and self.asked > 4 and self.asked % each == 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("not today"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.ascontiguousarray(y))])
"""
# Says the words of a text one by one, as the text system of the tests expects them.
STREAM = """
import json
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.fault = json.loads(args["model_config"])["parameters"]["fault"]["string_value"]
        self.asked = 0

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number, word in enumerate(self._words(request), 1):
                answer = np.array([word.encode()], np.object_)
                tensors = [("answer", answer), ("tokens", np.array([number], np.int32))]
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor(*tensor) for tensor in tensors]))
                time.sleep(0.02)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _words(self, request):
        words = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[0].decode().split()
        self.asked += 1
        return words[:-1] if self.fault == "loses" and self.asked > 4 and self.asked % 2 else words
"""
X, Y = tensors("input", "x", dims=[4]), tensors("output", "y", dims=[4])
STREAMED = (
    *("model_transaction_policy { decoupled: true }", tensors("input", "text", kind="STRING", dims=[1])),
    tensors("output", "answer", kind="STRING", dims=[1]),
    tensors("output", "tokens", kind="INT32", dims=[1]),
    parameters(system="echo"),
)
CONFIGS = {"doubles": ("max_batch_size: 8", X, Y, "dynamic_batching { }"), "streams": STREAMED}
# Figures that nobody needs to believe: a run must end quickly, and on a busy machine too.
QUICK = ["--rows", "4", "--window", "0.4", "--windows", "2", "--warm-up", "0.2", "--steady", "95"]
PATIENT = ["--attempts", "8"]

Bench = Callable[..., Result]
Serve = Callable[[str], str]


@pytest.fixture(scope="module")
def serve(onnx_lab: Any, lab_triton: Any) -> Serve:
    """Loads the model with a fault, the first time it is asked for, and returns its name.

    What comes behind a fault's name keeps tests apart: a model has a count of what it was asked, and a
    queue that outlives the client who filled it.
    """

    def load(name: str) -> str:
        kind, _, fault = name.partition("_")
        folder = lab_triton.repository / name
        if not folder.exists():
            code = STREAM if kind == "streams" else MODEL
            python_model(folder, code, *CONFIGS[kind], parameters(fault=fault))
            onnx_lab.client.load_model(name)
        return name

    return load


@pytest.fixture
def bench(lab_triton: Any, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("GOURMET_SYSTEMS", str(ROOT / "tests" / "support" / "systems"))

    def run(model: str, *arguments: str) -> Result:
        to = ["--url", lab_triton.http_url, "--grpc-url", lab_triton.grpc_url]
        return gourmet("bench", "run", serve(model), *to, *QUICK, *arguments)

    return run


@pytest.mark.parametrize(
    ("model", "arguments", "says"),
    [
        ("doubles_permutes", ["--batch", "4"], "the answer to input 0 is that of input 3: rows are mixed up"),
        ("doubles_drops", ["--batch", "4"], "a request of 4 rows was answered with 1 rows of y"),
        ("doubles_fails", [], r"of \d+ requests failed \(.*not today.*: no figures are reported"),
        ("doubles_fails_often", ["--allow-errors", "1"], r"requests failed \(\d+\.\d%; allowed 1%\)"),
        ("streams_loses", [], "is not the one expected"),
    ],
    ids=["permuted", "dropped", "failed", "failed too often", "a piece is lost"],
)
def test_nothing_is_reported(
    bench: Bench, tmp_path: Path, model: str, arguments: list[str], says: str
) -> None:
    result = bench(model, *arguments, "--save", str(tmp_path / "run"))
    assert result.exit_code == 1, result.output
    assert result.output.startswith("Error: ")
    assert re.search(says, result.output), result.output
    assert not (tmp_path / "run").exists()


def test_a_stated_share_of_errors_is_counted_apart(bench: Bench, tmp_path: Path) -> None:
    arguments = ["--concurrency", "8", "--allow-errors", "20", *PATIENT, "--save", str(tmp_path)]
    result = bench("doubles_fails_rarely", *arguments)
    assert result.exit_code == 0, result.output
    (point,) = read_results(tmp_path).points
    ((reason, failed),) = point.errors.items()
    assert "not today" in reason
    assert 0 < failed < 0.2 * point.requests


@pytest.mark.promise("README: every answer checked")
def test_a_model_that_is_always_wrong_is_found_out_by_a_reference(bench: Bench, tmp_path: Path) -> None:
    right = "double (float[n, 4] x) => (float[n, 4] y) { y = Add(x, x) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {right}')
    onnx.save(model, tmp_path / "double.onnx")
    result = bench("doubles_errs", "--reference", str(tmp_path / "double.onnx"))
    assert result.exit_code == 1
    assert "is not the one expected (expected: as double.onnx answers without a server)" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--concurrency", "2", "--batch", "4"],
        ["--concurrency", "2", "--batch", "4", "--protocol", "grpc"],
        # Of five requests, one cut by the end of the window would break Little's law by itself.
        pytest.param(["--rate", "6", "--batch", "4", "--window", "3"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_a_load_is_measured_and_saved(bench: Bench, tmp_path: Path, arguments: list[str]) -> None:
    result = bench("doubles_no", *arguments, *PATIENT, "--save", str(tmp_path))
    assert result.exit_code == 0, result.output
    (point,) = read_results(tmp_path).points
    assert point.rows_per_s.value > 0
    assert 20 < point.latency_ms.p50 <= point.latency_ms.p95 <= point.latency_ms.p99
    assert point.split_ms.infer > 15
    assert sum(size.executions for size in point.batches) > 0
    assert point.errors == {}
    checks = {check.name for check in point.checks}
    assert {"answers", "errors", "rows counted by Triton", "Little's law", "windows steady"} <= checks
    (row,) = csv.DictReader((tmp_path / "bench.csv").read_text().splitlines())
    assert float(row["Inferences/Second"]) == pytest.approx(point.rows_per_s.value, abs=0.001)
    assert point.name in (tmp_path / "chart.svg").read_text()
    assert point.stream is None


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_pieces_of_a_streamed_answer_are_timed(bench: Bench, tmp_path: Path, protocol: str) -> None:
    more = ["--rows", "6", "--window", "0.8", "--protocol", protocol]
    result = bench("streams_no", *more, *PATIENT, "--save", str(tmp_path))
    assert result.exit_code == 0, result.output
    saved = read_results(tmp_path)
    (point,) = saved.points
    assert saved.data == "6 examples of Echo, seed 5"
    assert point.stream is not None
    assert point.stream.between_ms is not None
    # The model pauses for 20 ms before each further piece. Who reads late finds several at once, but the mean
    # is that of the pauses.
    assert point.stream.between_ms.mean > 10
    assert point.latency_ms.p50 > point.stream.first_ms.p50 + 20
    assert 1 < point.stream.pieces_per_answer < 12
    assert point.stream.pieces_per_s.value > point.rows_per_s.value
    assert "first piece p50 ms" in result.output


@pytest.mark.slow
def test_a_range_is_measured_and_compared(bench: Bench, tmp_path: Path) -> None:
    saved = tmp_path / "one"
    result = bench(
        "doubles_no", "--concurrency", "1:2", "--batch", "8", "--json", *PATIENT, "--save", str(saved)
    )
    assert result.exit_code == 0, result.output
    assert [point["demand"]["level"] for point in json.loads(result.stdout)["points"]] == [1, 2]
    assert said("bench", "compare", saved, saved).count("same") == 2


@pytest.mark.parametrize(
    ("model", "arguments", "says"),
    [
        ("doubles_no", ["--concurrency", "2", "--rate", "3"], "give one"),
        ("doubles_no", ["--concurrency", "8:1"], "has 0 steps"),
        ("doubles_no", ["--through", "app"], "the web app takes photos"),
        ("streams_no", ["--batch", "2"], "takes one input a request"),
    ],
)
def test_impossible_loads_are_refused_with_a_reason(
    bench: Bench, model: str, arguments: list[str], says: str
) -> None:
    result = bench(model, *arguments)
    assert result.exit_code == 2
    assert says in result.output


def test_a_model_that_is_not_there_is_named_with_those_that_are(lab_triton: Any, serve: Serve) -> None:
    serve("doubles_no")
    output = said("bench", "run", "--url", lab_triton.http_url, "nobody", status=1)
    assert re.search(r"'nobody' is not ready \(unknown to Triton\); ready are .*\bdoubles_no", output)
