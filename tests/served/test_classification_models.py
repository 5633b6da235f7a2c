"""Every served classifier of pictures, on a real Triton: a new model is in these tests by itself.

What follows them is the contract of single models, as their first clients ask them.
"""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime as ort
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from PIL import Image
from support import drawn_digits
from support.eventually import eventually
from support.made_models import python_model, tensors
from support.triton import RunningTriton
from tritonclient.utils import InferenceServerException

from gourmet.contracts import SYSTEM_PARAMETER, ModelInfo
from gourmet.pictures.classifier import PictureClassifier
from gourmet.repository.config_change import Change, changed
from gourmet.repository.models import DEFAULT_REPOSITORY, model_names, read_config
from gourmet.served.instances import parameter
from gourmet.stack.connect import ask_sample, connect
from gourmet.systems import registry
from gourmet.systems.digits.contract import SYSTEM as DIGITS
from gourmet.systems.food11.contract import SYSTEM as FOOD
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import ModelBusy, ModelUnavailable, NoAnswerInTime, TritonError
from gourmet.triton_client.model_config import as_json
from gourmet.triton_client.triton import Answer, Triton

SYSTEMS = {
    name: system for name, system in registry.load_all().items() if isinstance(system, PictureClassifier)
}
MODELS = {
    name: system
    for name in model_names(DEFAULT_REPOSITORY)
    if (system := read_config(DEFAULT_REPOSITORY / name).parameters[SYSTEM_PARAMETER].string_value) in SYSTEMS
}
# Its inputs have whole shapes, with a dimension of rows in them, as its public name promises.
WHOLE_SHAPES = "onnx-mnist-cpu"


@dataclass(frozen=True)
class Served:
    """A model, and how it is asked and answers."""

    client: triton_http.InferenceServerClient
    info: ModelInfo
    system: PictureClassifier

    def tensor(self, rows: np.ndarray) -> list[triton_http.InferInput]:
        (spec,) = self.info.inputs
        tensor = triton_http.InferInput(spec.name, list(rows.shape), spec.datatype)
        tensor.set_data_from_numpy(rows)
        return [tensor]

    def encoded(self, pictures: list[bytes]) -> np.ndarray:
        return np.concatenate(
            [self.system.encode(picture, self.info.inputs[0].datatype) for picture in pictures]
        )

    def probabilities(self, result: triton_http.InferResult) -> np.ndarray:
        outputs = {output.name: result.as_numpy(output.name) for output in self.info.outputs}
        return self.system.probabilities(outputs, self.info)


@pytest.fixture(params=MODELS)
def served(request: pytest.FixtureRequest, triton: RunningTriton) -> Iterator[Served]:
    triton.load(request.param)
    with connect(triton.http_url) as ours:
        info = ours.describe(request.param)
    with triton_http.InferenceServerClient(triton.http_url, concurrency=16, network_timeout=120) as client:
        yield Served(client, info, SYSTEMS[MODELS[request.param]])


def test_rows_get_their_own_answers_and_a_broken_picture_fails_its_request(
    served: Served,
) -> None:
    """However rows are cut into requests, and requests merged into batches."""
    pictures = list(served.system.examples(12, 5))
    rows, model = served.encoded(pictures), served.info.name
    alone = np.concatenate(
        [served.probabilities(served.client.infer(model, served.tensor(row[None]))) for row in rows]
    )
    assert np.abs(alone[:, None] - alone[None]).max(axis=2).max() > 0.01, "too much alike to tell a mix-up"
    random, max_batch = np.random.default_rng(4), served.info.max_batch_size or 1
    cuts = [random.integers(0, len(rows), random.integers(1, min(8, max_batch) + 1)) for _ in range(16)]
    broken = np.full((1, *rows.shape[1:]), b"no picture", np.object_)
    waiting = []
    for number, chosen in enumerate(cuts):
        more = [broken] if model == "food_classifier" and number % 4 == 0 else []
        tensor = served.tensor(np.concatenate([rows[chosen], *more]))
        waiting.append((chosen, more, served.client.async_infer(model, tensor)))
    for chosen, more, request in waiting:
        if more:
            why = rf"row {len(chosen)} of {len(chosen) + 1}: .*\[not_a_picture\]"
            with pytest.raises(InferenceServerException, match=why) as refused:
                request.get_result()
            assert refused.value.status() == "400"
        else:
            np.testing.assert_allclose(served.probabilities(request.get_result()), alone[chosen], atol=2e-3)


def test_more_rows_than_the_largest_batch_and_another_shape_are_refused_with_a_reason(served: Served) -> None:
    row = served.encoded([served.system.sample()])
    many = np.concatenate([row] * ((served.info.max_batch_size or 1) + 1))
    for wrong in (many, np.stack([row, row], axis=-1)):
        with pytest.raises(InferenceServerException, match=r"(?i)shape|batch-size must be <="):
            served.client.infer(served.info.name, served.tensor(wrong))


def test_triton_s_classification_extension_names_the_label(served: Served) -> None:
    config = read_config(DEFAULT_REPOSITORY / served.info.name)
    output = next(candidate for candidate in config.output if candidate.label_filename)
    tensor = served.tensor(served.encoded([served.system.sample()]))
    best = served.probabilities(served.client.infer(served.info.name, tensor))[0].argmax()
    wanted = [triton_http.InferRequestedOutput(output.name, class_count=1)]
    answer = served.client.infer(served.info.name, tensor, outputs=wanted).as_numpy(output.name)
    assert answer.ravel()[0].decode().split(":")[1:] == [str(best), served.system.labels[best]]


@pytest.mark.promise("README: selects another one after a restart, and nothing else changes")
@pytest.mark.parametrize("system", SYSTEMS)
def test_all_models_of_a_system_agree_on_the_sample(triton: RunningTriton, system: str) -> None:
    models = [name for name, owner in MODELS.items() if owner == system]
    answers = [ask_sample(triton.http_url, system, model) for model in models]
    matches = [re.fullmatch(r"the sample is (.+), (\d+)%", answer) for answer in answers]
    assert len({match[1] for match in matches if match}) == 1, answers
    sure = [int(match[2]) for match in matches if match]
    assert len(sure) == len(models) > 1
    assert max(sure) - min(sure) <= 5


def test_a_missing_model_is_named(triton: RunningTriton) -> None:
    with pytest.raises(ModelUnavailable, match="'no_soup' is not ready"):
        ask_sample(triton.http_url, "food11", "no_soup")


@pytest.mark.parametrize("model", ["food_classifier", "food_classifier_onnx"])
def test_requests_of_clients_that_left_are_not_computed(triton: RunningTriton, model: str) -> None:
    """Over gRPC: over HTTP, Triton notices it with the answer."""
    clients = 32
    with connect(triton.http_url) as ours:
        info = ours.describe(model)
        rows = np.repeat(FOOD.encode(FOOD.sample(), info.inputs[0].datatype), 16, axis=0)
        before = ours.total(model)
    tensor = triton_grpc.InferInput(info.inputs[0].name, list(rows.shape), info.inputs[0].datatype)
    tensor.set_data_from_numpy(rows)
    with triton_grpc.InferenceServerClient(triton.grpc_url) as client, ThreadPoolExecutor(clients) as pool:

        def leave(_: int) -> None:
            with suppress(InferenceServerException):
                client.infer(model, [tensor], client_timeout=0.03)

        list(pool.map(leave, range(clients)))
    for _ in range(2):  # it waits behind what is left, in either instance
        ask_sample(triton.http_url, "food11", model)
    with connect(triton.http_url) as ours:
        assert ours.total(model).since(before).rows < 16 * clients / 2


# food_classifier, as its first clients ask it


def test_a_rest_request_with_base64_text_is_answered_with_label_and_probabilities(
    triton: RunningTriton,
) -> None:
    pictures = [base64.b64encode(picture).decode() for picture in FOOD.examples(16, 7, (120, 90))]
    body = {"inputs": [{"name": "INPUT_IMAGE", "shape": [16, 1], "datatype": "BYTES", "data": pictures}]}
    request = urllib.request.Request(
        f"http://{triton.http_url}/v2/models/food_classifier/infer",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        outputs = {output["name"]: output["data"] for output in json.load(answer)["outputs"]}
    probabilities = np.reshape(outputs["PROBABILITIES"], (16, 11))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(outputs["PROBABILITY"], probabilities.max(axis=1))
    assert outputs["FOOD_LABEL"] == [FOOD.labels[best] for best in probabilities.argmax(axis=1)]


@pytest.mark.parametrize(
    "precision",
    [pytest.param("fp32", marks=pytest.mark.slow), "int8"],
)
def test_each_precision_answers_as_its_file(triton: RunningTriton, precision: str) -> None:
    shipped = as_json(read_config(DEFAULT_REPOSITORY / "food_classifier"))
    file = "model.onnx" if precision == "fp32" else "model_int8.onnx"
    session = ort.InferenceSession(DEFAULT_REPOSITORY / "food_classifier" / "1" / file)
    (image_input,), (output, dishes) = session.get_inputs(), session.get_outputs()
    pictures = FOOD.examples(16, 7, (120, 90))
    pixels = np.stack([FOOD.pixels(picture) for picture in pictures])
    rows = session.run(
        None, {image_input.name: FOOD.tensor(pixels, "FP32" if precision == "fp32" else "UINT8")}
    )
    expected, food = FOOD.scores_from({output.name: rows[0]}, float(parameter(shipped, "temperature")))
    tensor = triton_http.InferInput("INPUT_IMAGE", [16, 1], "BYTES")
    tensor.set_data_from_numpy(np.array(pictures, np.object_).reshape(-1, 1))
    with triton_http.InferenceServerClient(triton.http_url, network_timeout=120) as client:
        try:
            config = changed(shipped, Change(instances=1, precision=precision))
            client.load_model("food_classifier", config=json.dumps(config))
            answer = client.infer("food_classifier", [tensor])
        finally:
            client.load_model("food_classifier", config=json.dumps(shipped))
    np.testing.assert_allclose(answer.as_numpy("PROBABILITIES"), expected, atol=1e-6)
    np.testing.assert_allclose(answer.as_numpy("FOOD")[:, 0], food, atol=1e-6)
    named = FOOD.finer({name: answer.as_numpy(name) for name in ("DISHES", "DISH_PROBABILITIES")}, 16)
    assert dishes.name == "dishes"
    assert [row[0][0] for row in named] == [row[0][0] for row in FOOD.best_dishes(rows[1])]


# The digits' models


@pytest.mark.smoke
@pytest.mark.parametrize("model", ["digits", WHOLE_SHAPES])
@pytest.mark.parametrize(("ink", "paper"), [(255, 0), (0, 255)], ids=["white on black", "black on white"])
def test_drawn_digits_are_recognised(triton: RunningTriton, model: str, ink: int, paper: int) -> None:
    if model == WHOLE_SHAPES:
        triton.load(model)
    with connect(triton.http_url) as ours:
        info = ours.describe(model)
        for digit in range(10):
            rows = {info.inputs[0].name: DIGITS.encode(drawn_digits.png(digit, ink=ink, paper=paper), "FP32")}
            assert DIGITS.probabilities(ours.infer(model, rows).outputs, info).argmax() == digit


@pytest.mark.parametrize("digit", [0, 8])
def test_a_digit_is_read_in_the_input_format_of_the_first_client(triton: RunningTriton, digit: int) -> None:
    # It sends the grey values of a picture of 28 × 28, from 0 to 255, as they are.
    triton.load(WHOLE_SHAPES)
    with Image.open(io.BytesIO(drawn_digits.png(digit, size=28))) as picture:
        values = np.asarray(picture, np.float32).reshape(1, 1, 28, 28)
    with connect(triton.http_url) as ours:
        answer = ours.infer(WHOLE_SHAPES, {"input.1": values}).outputs["26"]
    assert answer.shape == (1, 10)
    assert answer.argmax() == digit


# The queue in front of a model

WAITING: Final = 3
MODEL: Final = """
import pathlib
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        folder = pathlib.Path(__file__).parent
        (folder / "begun").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
        rows = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", values)]) for values in rows]
"""


@pytest.fixture
def waits(lab_triton: RunningTriton) -> Iterator[Path]:
    """A model that waits for the file "go" in this folder, with the queue policy of translator_bls."""
    policy = read_config(DEFAULT_REPOSITORY / "translator_bls").dynamic_batching.default_queue_policy
    policy.max_queue_size = WAITING
    folder, queue = (
        lab_triton.repository / "waits",
        f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}",
    )
    dims = tensors("input", "x", dims=[1]) + tensors("output", "y", dims=[1])
    python_model(folder, MODEL, "max_batch_size: 1", dims, queue)
    with triton_http.InferenceServerClient(lab_triton.http_url) as client:
        client.load_model("waits")
        yield folder / "1"
        (folder / "1" / "go").touch()
        client.unload_model("waits")
    shutil.rmtree(folder)


@pytest.mark.parametrize("too_much", ["too many", "too late"])
def test_requests_beyond_the_queue_are_refused_and_expired_ones_are_not_computed(
    waits: Path, lab_triton: RunningTriton, too_much: str
) -> None:
    def ask(seconds: float = 60) -> Answer | TritonError:
        try:
            return Triton(lab_triton.http_url).infer(
                "waits", {"x": np.zeros((1, 1), np.float32)}, Deadline(seconds)
            )
        except TritonError as error:
            return error

    def pending() -> int:
        with urllib.request.urlopen(lab_triton.options.metrics_url, timeout=60) as reply:
            text = reply.read().decode()
        values = re.findall(r'^nv_inference_pending_request_count{model="waits",[^}]*} (\d+)', text, re.M)
        return sum(map(int, values))

    with connect(lab_triton.http_url) as ours, ThreadPoolExecutor(1 + WAITING) as clients:
        before = ours.total("waits")
        accepted = [clients.submit(ask)]
        eventually((waits / "begun").exists)
        if too_much == "too many":
            accepted += [clients.submit(ask) for _ in range(WAITING)]
            eventually(lambda: pending() == WAITING)
            assert isinstance(ask(), ModelBusy)
        else:
            assert isinstance(ask(1), NoAnswerInTime)
        (waits / "go").touch()
        assert all(isinstance(request.result(), Answer) for request in accepted)
        assert isinstance(ask(), Answer)  # once nothing waits
        rows = len(accepted) + 1
        assert ours.counted("waits", before, lambda counted: counted.rows >= rows).rows == rows
