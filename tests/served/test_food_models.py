"""The food models' public contract, asked the way old clients ask, on a real Triton."""

from __future__ import annotations

import base64
import json
import urllib.request

import numpy as np
import onnxruntime as ort
import pytest
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from gourmet.client.model_config import as_json
from gourmet.repository import DEFAULT, read_config
from gourmet.repository.config_change import Change, changed
from gourmet.runtime.instances import parameter
from gourmet.systems.food11 import contract
from gourmet.systems.food11.contract import SYSTEM


@pytest.fixture(scope="module")
def client(triton):
    with triton_http.InferenceServerClient(triton.http_url) as client:
        yield client


def classify(client, rows: list[bytes]):
    tensor = triton_http.InferInput("INPUT_IMAGE", [len(rows), 1], "BYTES")
    tensor.set_data_from_numpy(np.array(rows, np.object_).reshape(-1, 1))
    return client.infer("food_classifier", [tensor])


@pytest.fixture(scope="module")
def pictures() -> list[bytes]:
    return SYSTEM.examples(16, 7, (120, 90))


def test_a_client_that_sends_base64_text_reads_label_and_probability(client) -> None:
    tensor = triton_http.InferInput("INPUT_IMAGE", [1, 1], "BYTES")
    text = base64.b64encode(contract.SYSTEM.sample()).decode()
    tensor.set_data_from_numpy(np.array([[text]], dtype=object))
    outputs = [triton_http.InferRequestedOutput(name) for name in ("FOOD_LABEL", "PROBABILITY")]
    answer = client.infer("food_classifier", [tensor], outputs=outputs)
    assert answer.as_numpy("FOOD_LABEL").shape == (1, 1)
    assert answer.as_numpy("FOOD_LABEL")[0, 0].decode() in contract.SYSTEM.labels
    assert 1 / len(contract.SYSTEM.labels) <= answer.as_numpy("PROBABILITY")[0, 0] <= 1
    assert answer.as_numpy("PROBABILITIES") is None


def test_the_label_is_the_one_with_the_highest_probability(client, pictures) -> None:
    answer = classify(client, pictures)
    probabilities = answer.as_numpy("PROBABILITIES")
    assert probabilities.shape == (16, 11)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(answer.as_numpy("PROBABILITY")[:, 0], probabilities.max(axis=1))
    labels = [label.decode() for label in answer.as_numpy("FOOD_LABEL")[:, 0]]
    assert labels == [contract.SYSTEM.labels[best] for best in probabilities.argmax(axis=1)]


def test_a_request_with_a_bad_row_is_refused_with_the_row_and_the_reason(client, pictures) -> None:
    with pytest.raises(InferenceServerException, match=r"row 1 of 3: .*\[not_a_picture\]") as caught:
        classify(client, [pictures[0], b"no picture at all", pictures[1]])
    assert caught.value.status() == "400"


def test_the_first_rest_request_of_a_tutorial_works(triton) -> None:
    picture = base64.b64encode(contract.SYSTEM.sample()).decode()
    body = {"inputs": [{"name": "INPUT_IMAGE", "shape": [1, 1], "datatype": "BYTES", "data": [picture]}]}
    request = urllib.request.Request(
        f"http://{triton.http_url}/v2/models/food_classifier/infer",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        outputs = {output["name"]: output["data"] for output in json.load(answer)["outputs"]}
    assert outputs["FOOD_LABEL"][0] in contract.SYSTEM.labels


@pytest.mark.parametrize(
    ("engine", "precision", "apart"),
    [
        pytest.param("torch", "fp32", 1e-5, marks=pytest.mark.slow),
        ("onnxruntime", "int8", 1e-6),
    ],
)
def test_every_engine_agrees_with_the_file_of_its_precision(
    client, pictures, engine: str, precision: str, apart: float
) -> None:
    shipped = as_json(read_config(DEFAULT / "food_classifier"))
    file = "model.onnx" if precision == "fp32" else "model_int8.onnx"
    session = ort.InferenceSession(DEFAULT / "food_classifier" / "1" / file)
    (image_input,), (output,) = session.get_inputs(), session.get_outputs()
    pixels = np.stack([SYSTEM.pixels(picture) for picture in pictures])
    rows = session.run(
        None, {image_input.name: SYSTEM.tensor(pixels, "FP32" if precision == "fp32" else "UINT8")}
    )
    expected, food = SYSTEM.answers({output.name: rows[0]}, float(parameter(shipped, "temperature")))
    try:
        config = changed(shipped, Change(instances=1, engine=engine, precision=precision))
        client.load_model("food_classifier", config=json.dumps(config))
        answer = classify(client, pictures)
    finally:
        client.load_model("food_classifier", config=json.dumps(shipped))
    np.testing.assert_allclose(answer.as_numpy("PROBABILITIES"), expected, atol=apart)
    np.testing.assert_allclose(answer.as_numpy("FOOD")[:, 0], food, atol=apart)


def test_an_engine_that_is_not_there_is_refused_with_those_that_are(client) -> None:
    config = as_json(read_config(DEFAULT / "food_classifier"))
    config["parameters"]["cpu_engine"]["string_value"] = "tensorrt"
    with pytest.raises(InferenceServerException, match="must be one of onnxruntime, torch"):
        client.load_model("food_classifier", config=json.dumps(config))
