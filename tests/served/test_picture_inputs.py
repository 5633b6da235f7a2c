"""What NVIDIA's image_client.py demands of a model before it sends a picture, of all ONNX picture models."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import model_config_pb2

from gourmet import repository

# Its inputs have whole shapes, with a dimension of rows in them, as its public name promises; Triton takes a
# format for three dimensions only.
_WHOLE_SHAPES = {"onnx-mnist-cpu"}
# What it sees of a picture is for a decoder.
_OTHER_ANSWERS = {"captioner_vision"}
PICTURE_MODELS = [
    name
    for name in repository.model_names(repository.DEFAULT)
    if (config := repository.read_config(repository.DEFAULT / name)).backend == "onnxruntime"
    and len(config.input) == 1  # those of several take texts
]


@pytest.fixture(scope="module")
def client(triton: Any) -> Any:
    with triton_grpc.InferenceServerClient(triton.grpc_url) as connected:
        yield connected


def test_there_are_picture_models() -> None:
    assert {"food_classifier_onnx", "food_classifier_int8", "digits"} <= set(PICTURE_MODELS)


@pytest.mark.parametrize("name", sorted(set(PICTURE_MODELS) - _WHOLE_SHAPES))
def test_a_picture_client_learns_all_it_needs(client: Any, name: str) -> None:
    metadata, config = client.get_model_metadata(name), client.get_model_config(name).config
    assert len(metadata.inputs) == 1
    assert config.max_batch_size > 0
    if name not in _OTHER_ANSWERS:
        # One vector a picture, of floats.
        assert len(metadata.outputs) == 1
        rows, *vector = metadata.outputs[0].shape
        assert metadata.outputs[0].datatype == "FP32"
        assert rows == -1
        assert sum(size > 1 for size in vector) == 1
    # A picture of a known size, with its channels where the format says.
    assert metadata.inputs[0].shape[0] == -1
    sizes = list(metadata.inputs[0].shape)[1:]
    assert len(sizes) == 3
    first, last = model_config_pb2.ModelInput.FORMAT_NCHW, model_config_pb2.ModelInput.FORMAT_NHWC
    channels = {first: sizes[0], last: sizes[2]}.get(config.input[0].format, 0)
    assert channels in (1, 3), "no format, or not the one of its shape"
    assert math.prod(sizes) == channels * max(sizes) ** 2
