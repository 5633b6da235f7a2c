"""The PyTorch backend answers as NVIDIA's does: names, types, batches, parameters, and what it refuses."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
import torch
from support.made_models import ONE_INSTANCE, parameters, tensors
from tritonclient.utils import InferenceServerException

TYPES = {
    "BOOL": np.array([[True], [False]]),
    "UINT8": np.array([[0], [255]], np.uint8),
    "INT8": np.array([[-128], [127]], np.int8),
    "INT16": np.array([[-(2**15)], [2**15 - 1]], np.int16),
    "INT32": np.array([[-(2**31)], [2**31 - 1]], np.int32),
    "INT64": np.array([[-(2**63)], [2**63 - 1]], np.int64),
    "FP16": np.array([[-65504.0], [6e-8]], np.float16),
    "FP32": np.array([[-3.4e38], [1.5]], np.float32),
    "FP64": np.array([[-1.7e308], [5e-324]], np.float64),
}


class Doubler(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


class Same(torch.nn.Module):
    """As many as there are types."""

    def forward(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        d: torch.Tensor,
        e: torch.Tensor,
        f: torch.Tensor,
        g: torch.Tensor,
        h: torch.Tensor,
        i: torch.Tensor,
    ) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in (a, b, c, d, e, f, g, h, i)]


class Minus(torch.nn.Module):
    """Two inputs and two outputs that cannot be mixed up unseen."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return left - right, (left > right).sum(dim=1, keepdim=True)


class Named(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"second": x + 2, "first": x + 1}


class RefusingRow(torch.nn.Module):
    """Fails for a row of minus ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == -1).any()):
            raise ValueError("a row is -1")
        return x * 2


Serve = Callable[..., None]


def scripted(module: torch.nn.Module) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        torch.jit.save(torch.jit.script(module.eval()), buffer)
    return buffer.getvalue()


@pytest.fixture
def serve(onnx_lab: Any) -> Serve:
    """Puts a TorchScript file into the running Triton's repository, and loads it."""

    def put(name: str, file: bytes, config: str, filename: str = "model.pt", **beside: str) -> None:
        folder = onnx_lab.repository / name / "1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / filename).write_bytes(file)
        for other, text in beside.items():
            (folder / f"{other}.json").write_text(text)
        (folder.parent / "config.pbtxt").write_text(
            f'backend: "pytorch" platform: "pytorch_libtorch"\n{config}'
        )
        onnx_lab.client.load_model(name)

    return put


def test_every_type_passes_through_unchanged(onnx_lab: Any, serve: Serve) -> None:
    config = "max_batch_size: 4"
    for role, name in (("input", "INPUT"), ("output", "OUTPUT")):
        entries = [
            f'{{ name: "{name}__{at}" data_type: TYPE_{kind} dims: [ 1 ] }}' for at, kind in enumerate(TYPES)
        ]
        config += f" {role} [ {', '.join(entries)} ]"
    serve("every_torch_type", scripted(Same()), config)
    feeds = {f"INPUT__{at}": values for at, values in enumerate(TYPES.values())}
    answer = onnx_lab.ask("every_torch_type", feeds)
    for at, (kind, values) in enumerate(TYPES.items()):
        assert answer[f"OUTPUT__{at}"].dtype == values.dtype, kind
        np.testing.assert_array_equal(answer[f"OUTPUT__{at}"], values, kind)


def test_inputs_are_found_by_argument_and_outputs_by_number(onnx_lab: Any, serve: Serve) -> None:
    """The config names the second of each first; a number and an order alone are tried in tests/unit."""
    outputs = (
        '{ name: "count__1" data_type: TYPE_INT64 dims: [ 1 ] }, '
        '{ name: "difference__0" data_type: TYPE_FP32 dims: [ 2 ] }'
    )
    serve(
        "arguments",
        scripted(Minus()),
        f"max_batch_size: 4 {tensors('input', 'right', 'left')} output [ {outputs} ]",
    )
    left, right = np.array([[1, 5], [2, 9]], np.float32), np.array([[3, 1], [1, 1]], np.float32)
    answer = onnx_lab.ask("arguments", {"left": left, "right": right})
    np.testing.assert_array_equal(answer["difference__0"], left - right)
    np.testing.assert_array_equal(answer["count__1"], [[1], [2]])
    alone = onnx_lab.ask("arguments", {"left": left, "right": right}, outputs=["count__1"])
    assert set(alone) == {"count__1"}


@pytest.mark.slow
def test_outputs_of_a_dictionary_have_its_names(onnx_lab: Any, serve: Serve) -> None:
    serve("two_outputs", scripted(Named()), f"{tensors('input', 'x')} {tensors('output', 'first', 'second')}")
    answer = onnx_lab.ask("two_outputs", {"x": np.array([1, 2], np.float32)})
    assert {name: list(values) for name, values in answer.items()} == {"first": [2, 3], "second": [3, 4]}


@pytest.mark.slow
def test_requests_share_a_run_and_a_bad_one_fails_alone(onnx_lab: Any, serve: Serve) -> None:
    batching = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 300000 }"
    serve(
        "rows",
        scripted(RefusingRow()),
        f"{batching} {ONE_INSTANCE} {tensors('input', 'x')} {tensors('output', 'y')}",
    )
    inputs = [np.full((rows, 2), value, np.float32) for rows, value in ((1, 3), (2, -1), (3, 4), (1, 5))]
    answers = onnx_lab.ask_together("rows", [{"x": rows_of_request} for rows_of_request in inputs])
    assert isinstance(answers[1], InferenceServerException)
    for sent, answer in zip(inputs, answers, strict=True):
        if (sent != -1).all():
            assert isinstance(answer, dict)
            np.testing.assert_array_equal(answer["y"], 2 * sent)


@pytest.mark.slow
def test_nvidia_s_parameters_and_another_file_name_are_taken(onnx_lab: Any, serve: Serve) -> None:
    named = {
        "INFERENCE_MODE": "false",
        "DISABLE_OPTIMIZED_EXECUTION": "true",
        "ENABLE_WEIGHT_SHARING": "true",
    }
    more = parameters(**named, INTRA_OP_THREAD_COUNT="1", INTER_OP_THREAD_COUNT="1")
    config = f'default_model_filename: "net.pt" max_batch_size: 2 {ONE} {more}'
    serve("switched", scripted(Doubler()), config, "net.pt")
    sent = np.array([[1, 2]], np.float32)
    np.testing.assert_array_equal(onnx_lab.ask("switched", {"x": sent})["y"], 2 * sent)


X = tensors("input", "x")
ONE = f"{X} {tensors('output', 'y')}"
STRINGS = ONE.replace("FP32", "STRING")
slow = partial(pytest.param, marks=pytest.mark.slow)  # each starts a process with torch
UNSUPPORTED = "is TYPE_STRING; this backend supports .*; sequence_batching is not supported"
INTEGERS = f"{tensors('input', 'x', kind='INT64')} {tensors('output', 'y')}"


@pytest.mark.parametrize(
    ("name", "module", "config", "says"),
    [
        ("strings", Doubler(), f"max_batch_size: 1 sequence_batching {{ }} {STRINGS}", UNSUPPORTED),
        slow("two_named", Doubler(), f"{X} {tensors('output', 'y', 'z')}", "returns 1 values"),
        ("other_type", Doubler(), INTEGERS, "has type int64, the config declares float32"),
        ("no_gpu", Doubler(), f"{ONE} instance_group [ {{ kind: KIND_GPU gpus: [ 0 ] }} ]", "GPU"),
    ],
)  # fmt: skip
def test_a_network_that_does_not_fit_its_config_is_refused_with_the_reason(
    serve: Serve, name: str, module: torch.nn.Module, config: str, says: str
) -> None:
    with pytest.raises(InferenceServerException, match=says):
        serve(f"bad_{name}", scripted(module), config)


@pytest.mark.slow
def test_a_file_that_is_not_the_deployed_torchscript_is_refused(serve: Serve) -> None:
    with pytest.raises(InferenceServerException, match="cannot be opened as TorchScript"):
        serve("bad_bytes", b"not a network", ONE)
    file = scripted(Doubler())
    manifest = json.dumps({"file": "model.pt", "sha256": sha256(file[:-1]).hexdigest()})
    with pytest.raises(InferenceServerException, match="this is not the deployed file"):
        serve("bad_hash", file, ONE, manifest=manifest)
