"""The ONNX Runtime backend loads: configs completed, checked against the file, instances given threads."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from gourmet.repository.config_change import Change, changed
from gourmet.runtime.instances import available_cpus
from gourmet.serving.waiting import wait_until

ENGINE = 'parameters { key: "cpu_engine" value { string_value: "openvino" } }'
ONE_INSTANCE = "instance_group [ { kind: KIND_CPU count: 1 } ]"


def identity(*dims: int | str, element: str = "float") -> str:
    """`same` is `given`, with these dims; names in dims are free sizes."""
    tensor = f"{element}[{', '.join(str(dim) for dim in dims)}]"
    return f"({tensor} given) => ({tensor} same) {{ same = Identity(given) }}"


def config(
    *,
    given: str = "given",
    same: str = "same",
    data_type: str = "FP32",
    dims: str = "[3]",
    batch: int = 4,
    more: str = ONE_INSTANCE,
) -> str:
    return (
        f"max_batch_size: {batch}\n"
        f'input [ {{ name: "{given}" data_type: TYPE_{data_type} dims: {dims} }} ]\n'
        f'output [ {{ name: "{same}" data_type: TYPE_{data_type} dims: {dims} }} ]\n{more}'
    )


def tensors(config: dict[str, Any], role: str) -> dict[str, tuple[str, list[str], dict[str, Any] | None]]:
    return {
        tensor["name"]: (tensor["data_type"], [int(dim) for dim in tensor["dims"]], tensor.get("reshape"))
        for tensor in config[role]
    }


def test_a_config_is_completed_from_the_file(onnx_lab: Any) -> None:
    onnx_lab.serve("complete_none", identity("batch", 3, "width"), None)
    served = onnx_lab.client.get_model_config("complete_none")
    assert served["max_batch_size"] == 4
    assert "dynamic_batching" in served
    assert tensors(served, "input") == {"given": ("TYPE_FP32", [3, -1], None)}
    assert tensors(served, "output") == {"same": ("TYPE_FP32", [3, -1], None)}


def test_given_fields_of_a_config_are_kept_when_the_rest_is_completed(onnx_lab: Any) -> None:
    onnx_lab.serve(
        "complete_half",
        identity("batch"),
        'max_batch_size: 9\ninput [ { name: "given" data_type: TYPE_FP32 dims: [1] reshape { shape: [] } } ]',
    )
    served = onnx_lab.client.get_model_config("complete_half")
    assert served["max_batch_size"] == 9
    assert tensors(served, "output") == {"same": ("TYPE_FP32", [1], {"shape": []})}
    column = np.array([[1], [2], [3]], np.float32)
    np.testing.assert_array_equal(onnx_lab.ask("complete_half", {"given": column})["same"], column)


def test_outputs_that_triton_cannot_carry_may_be_left_out_of_the_config(onnx_lab: Any) -> None:
    model = """
        (float[batch, 3] given) => (float[batch, 3] same, seq(float[batch, 3]) listed) {
            same = Identity(given)
            listed = SequenceConstruct(given)
        }"""
    onnx_lab.serve("left_out", model, config())
    ones = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(onnx_lab.ask("left_out", {"given": ones})["same"], ones)
    with pytest.raises(
        InferenceServerException, match=r"'listed' of the ONNX file is seq\(tensor\(float\)\)"
    ):
        onnx_lab.serve("left_in", model)


def test_a_model_without_a_free_first_dimension_is_completed_without_batching(onnx_lab: Any) -> None:
    onnx_lab.serve("complete_whole", identity(2, 3))
    served = onnx_lab.client.get_model_config("complete_whole")
    assert served["max_batch_size"] == 0
    assert "dynamic_batching" not in served
    assert tensors(served, "input") == {"given": ("TYPE_FP32", [2, 3], None)}


def test_the_file_may_have_another_name(onnx_lab: Any) -> None:
    onnx_lab.put("named", identity("batch", 3), 'default_model_filename: "net.onnx"', file="net.onnx")
    onnx_lab.client.load_model("named")
    assert tensors(onnx_lab.client.get_model_config("named"), "input") == {"given": ("TYPE_FP32", [3], None)}


def test_the_file_may_lie_with_its_weights_in_a_folder_of_its_name(onnx_lab: Any) -> None:
    onnx_lab.put("folder", identity("batch", 3), config(), file="model.onnx/model.onnx")
    onnx_lab.client.load_model("folder")


@pytest.mark.parametrize(
    ("name", "model", "text", "says"),
    [
        ("bad_corrupt_and_empty", b"this is no model", "", r"model.onnx cannot be opened as an ONNX model"),
        (
            "bad_input_name",
            identity("batch", 3),
            config(given="image"),
            r"needs an input 'given', the config names 'image'; .* 'image', the ONNX file has 'given'",
        ),
        (
            "bad_engine",
            identity("batch", 3),
            config(more=ENGINE),
            r'"cpu_engine" is .openvino.; it must be one of onnxruntime',
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("bad_") else "",
)
def test_a_mismatch_of_file_and_config_is_refused_at_load_with_both_sides(
    onnx_lab: Any, name: str, model: str | bytes, text: str, says: str
) -> None:
    """One of each way to refuse; the others are in tests/unit/test_onnxruntime_backend.py."""
    with pytest.raises(InferenceServerException, match=says):
        onnx_lab.serve(name, model, text)


def test_a_missing_file_is_refused_with_the_place_where_it_should_be(onnx_lab: Any) -> None:
    onnx_lab.put("bad_missing", identity("batch", 3), config(), file="other.onnx")
    with pytest.raises(InferenceServerException, match=r"bad_missing/1 has no model.onnx: put the model"):
        onnx_lab.client.load_model("bad_missing")


@pytest.fixture
def threads_given(onnx_lab: Any) -> Callable[[str, int], list[int]]:
    """The CPU threads that each of `count` instances got since the model was last asked about."""
    seen: dict[str, int] = {}

    def threads(model: str, count: int) -> list[int]:
        def fresh_lines() -> list[str]:
            lines = [line for line in onnx_lab.log if f'"{model}_' in line and "CPU threads" in line]
            return lines[seen.get(model, 0) :]

        # Triton answers that a model is loaded before its log has reached us.
        wait_until(lambda: len(fresh_lines()) >= count, 60, f"{count} instances of {model} did not say so")
        fresh = fresh_lines()
        seen[model] = seen.get(model, 0) + len(fresh)
        return [int(line.split(" CPU threads")[0].rsplit(" ", 1)[1]) for line in fresh]

    return threads


@pytest.mark.slow
def test_every_instance_gets_its_new_share_when_their_number_changes(
    onnx_lab: Any, threads_given: Callable[[str, int], list[int]]
) -> None:
    onnx_lab.serve("resized", identity("batch", 3), config(more=ONE_INSTANCE))
    threads_given("resized", 1)
    for count in (2, 1, 2):
        new = changed(onnx_lab.client.get_model_config("resized"), Change(instances=count))
        onnx_lab.client.load_model("resized", config=json.dumps(new))
        assert threads_given("resized", count) == [max(1, available_cpus() // count)] * count
