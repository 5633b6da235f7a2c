"""The ONNX Runtime backend answers: every type, any names, any mix of requests in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

EVERY_TYPE = {
    "BOOL": np.array([[True], [False]]),
    "UINT8": np.array([[0], [255]], np.uint8),
    "UINT16": np.array([[0], [2**16 - 1]], np.uint16),
    "UINT32": np.array([[0], [2**32 - 1]], np.uint32),
    "UINT64": np.array([[0], [2**64 - 1]], np.uint64),
    "INT8": np.array([[-128], [127]], np.int8),
    "INT16": np.array([[-(2**15)], [2**15 - 1]], np.int16),
    "INT32": np.array([[-(2**31)], [2**31 - 1]], np.int32),
    "INT64": np.array([[-(2**63)], [2**63 - 1]], np.int64),
    "FLOAT16": np.array([[-65504.0], [6e-8]], np.float16),
    "FLOAT": np.array([[-3.4e38], [1.4e-45]], np.float32),
    "DOUBLE": np.array([[-1.7e308], [5e-324]], np.float64),
    "STRING": np.array([["пельмени ✓".encode()], [b""]], np.object_),
}


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, Sequence[Any]]],
    outputs: dict[str, tuple[int, Sequence[Any]]],
    initializers: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A checked model; tensors are given as name -> (element type, dims), names in dims are free sizes."""
    made = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, *what) for name, what in inputs.items()],
        [helper.make_tensor_value_info(name, *what) for name, what in outputs.items()],
        initializers,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def doubler(dims: Sequence[Any], *, counts_rows: bool = False) -> onnx.ModelProto:
    """y = x + x; with `counts_rows`, `rows` says in each row how many rows its run had."""
    tensor = (TensorProto.FLOAT, ["batch", *dims])
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    outputs: dict[str, tuple[int, Sequence[Any]]] = {"y": tensor}
    constants: list[onnx.TensorProto] = []
    if counts_rows:
        nodes += [
            helper.make_node("Shape", ["x"], ["count"], start=0, end=1),
            helper.make_node("Concat", ["count", "one"], ["per_row"], axis=0),
            helper.make_node("Expand", ["count", "per_row"], ["rows"]),
        ]
        outputs["rows"] = (TensorProto.INT64, ["batch", 1])
        constants = [helper.make_tensor("one", TensorProto.INT64, [1], [1])]
    return graph(nodes, {"x": tensor}, outputs, constants)


def test_every_element_type_passes_through_unchanged_under_its_own_name(onnx_lab: Any) -> None:
    types = {name: (getattr(TensorProto, name), ["batch", 1]) for name in EVERY_TYPE}
    onnx_lab.serve(
        "every_type",
        graph(
            [helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]) for name in types],
            {f"in_{name}": what for name, what in types.items()},
            {f"out_{name}": what for name, what in reversed(types.items())},
        ),
    )

    answers = onnx_lab.ask("every_type", {f"in_{name}": values for name, values in EVERY_TYPE.items()})

    assert answers.keys() == {f"out_{name}" for name in EVERY_TYPE}
    for name, values in EVERY_TYPE.items():
        assert answers[f"out_{name}"].dtype == values.dtype, name
        np.testing.assert_array_equal(answers[f"out_{name}"], values, err_msg=name)


@pytest.fixture(scope="module")
def difference(onnx_lab: Any) -> str:
    """A model that tells its inputs apart, and gives two outputs."""
    tensor = (TensorProto.FLOAT, ["batch", 3])
    onnx_lab.serve(
        "difference",
        graph(
            [
                helper.make_node("Sub", ["a", "b"], ["difference"]),
                helper.make_node("Add", ["a", "b"], ["sum"]),
            ],
            {"a": tensor, "b": tensor},
            {"difference": tensor, "sum": tensor},
        ),
    )
    return "difference"


def test_inputs_go_by_name_whatever_their_order(onnx_lab: Any, difference: str) -> None:
    a, b = np.full((2, 3), 5, np.float32), np.full((2, 3), 3, np.float32)
    assert (onnx_lab.ask(difference, {"b": b, "a": a})["difference"] == 2).all()


@pytest.mark.parametrize("wanted", [["sum"], ["difference"], ["sum", "difference"]])
def test_only_the_wanted_outputs_come_back(onnx_lab: Any, difference: str, wanted: list[str]) -> None:
    ones = np.ones((1, 3), np.float32)
    assert onnx_lab.ask(difference, {"a": ones, "b": ones}, wanted).keys() == set(wanted)


@pytest.mark.parametrize(
    ("feeds", "says"),
    [
        ({"a": (1, 3)}, ["'difference'", "2 inputs", "1"]),
        ({"a": (1, 3), "b": (1, 3), "c": (1, 3)}, ["difference", "'c'"]),
        ({"a": (1, 3), "b": (1, 4)}, ["'b'", "[-1,3]", "[1,4]"]),
        ({"a": (1, 3), "b": (2, 3)}, ["batch size does not match", "'difference'"]),
    ],
)
def test_a_wrong_name_or_shape_is_refused_with_both_sides(
    onnx_lab: Any, difference: str, feeds: dict[str, tuple[int, ...]], says: list[str]
) -> None:
    with pytest.raises(InferenceServerException) as refused:
        onnx_lab.ask(difference, {name: np.zeros(shape, np.float32) for name, shape in feeds.items()})
    assert all(word in str(refused.value) for word in says), str(refused.value)


def test_a_wrong_type_is_refused_with_both_sides(onnx_lab: Any, difference: str) -> None:
    ones = np.ones((1, 3), np.float32)
    with pytest.raises(InferenceServerException, match=r"'b' data-type is 'INT32'.*expects 'FP32'"):
        onnx_lab.ask(difference, {"a": ones, "b": ones.astype(np.int32)})


BATCHING = "dynamic_batching { max_queue_delay_microseconds: 200000 }\n"
ROWS = '{ name: "rows" data_type: TYPE_INT64 dims: [1] }'


def declared(dims: Sequence[int], more: str = "", *, rows: bool = False) -> str:
    """The config of a doubler with a batch of up to 64 rows, in one instance so that requests meet."""
    outputs = f'{{ name: "y" data_type: TYPE_FP32 dims: {list(dims)} }}' + (f", {ROWS}" if rows else "")
    return (
        f'max_batch_size: 64\ninput [ {{ name: "x" data_type: TYPE_FP32 dims: {list(dims)} }} ]\n'
        f"output [ {outputs} ]\ninstance_group [ {{ kind: KIND_CPU count: 1 }} ]\n{more}"
    )


def test_requests_of_one_call_share_a_run_and_each_gets_its_own_rows(onnx_lab: Any) -> None:
    onnx_lab.serve("merging", doubler([5], counts_rows=True), declared([5], BATCHING, rows=True))
    random = np.random.default_rng(7)
    sent = [{"x": random.random((rows, 5), np.float32)} for rows in random.integers(1, 5, size=24)]

    answers = onnx_lab.ask_together("merging", sent)

    for feeds, answer in zip(sent, answers, strict=True):
        np.testing.assert_array_equal(answer["y"], 2 * feeds["x"])
    assert max(int(answer["rows"].max()) for answer in answers) > 4, "no run had rows of two requests"


def test_requests_of_different_lengths_run_apart_in_the_same_model(onnx_lab: Any) -> None:
    onnx_lab.serve("lengths", doubler(["length"]), declared([-1], BATCHING))
    sent = [{"x": np.full((1 + n % 2, 1 + n % 3), n, np.float32)} for n in range(12)]

    answers = onnx_lab.ask_together("lengths", sent)

    for feeds, answer in zip(sent, answers, strict=True):
        np.testing.assert_array_equal(answer["y"], 2 * feeds["x"])


def test_a_request_that_breaks_its_run_fails_alone(onnx_lab: Any) -> None:
    table = helper.make_tensor("table", TensorProto.FLOAT, [3, 1], [10.0, 20.0, 30.0])
    onnx_lab.serve(
        "lookup",
        graph(
            [
                helper.make_node("Gather", ["table", "index"], ["wide"]),
                helper.make_node("Squeeze", ["wide", "axes"], ["value"]),
            ],
            {"index": (TensorProto.INT64, ["batch", 1])},
            {"value": (TensorProto.FLOAT, ["batch", 1])},
            [table, helper.make_tensor("axes", TensorProto.INT64, [1], [2])],
        ),
        'max_batch_size: 64\ninput [ { name: "index" data_type: TYPE_INT64 dims: [1] } ]\n'
        'output [ { name: "value" data_type: TYPE_FP32 dims: [1] } ]\n'
        f"instance_group [ {{ kind: KIND_CPU count: 1 }} ]\n{BATCHING}",
    )
    indices = [0, 1, 99, 2, 0, -50, 1]

    answers = onnx_lab.ask_together("lookup", [{"index": np.array([[n]])} for n in indices])

    for index, answer in zip(indices, answers, strict=True):
        if -3 <= index < 3:
            assert answer["value"].item() == 10.0 * (index + 1)
        else:
            assert isinstance(answer, InferenceServerException)
            assert str(index) in str(answer)


def test_a_shape_the_config_allows_and_the_file_does_not_is_refused_with_both_sides(onnx_lab: Any) -> None:
    onnx_lab.serve("narrow", doubler([4]), declared([-1]))
    with pytest.raises(InferenceServerException, match=r"input 'x' has shape \[1, 5\], .* takes \[-1, 4\]"):
        onnx_lab.ask("narrow", {"x": np.zeros((1, 5), np.float32)})
    assert onnx_lab.ask("narrow", {"x": np.ones((1, 4), np.float32)})["y"].sum() == 8


def test_bytes_that_are_no_text_are_refused_by_name(onnx_lab: Any) -> None:
    text = (TensorProto.STRING, ["batch", 1])
    onnx_lab.serve(
        "text", graph([helper.make_node("Identity", ["words"], ["same"])], {"words": text}, {"same": text})
    )
    with pytest.raises(InferenceServerException, match=r"input 'words' .* no UTF-8 text"):
        onnx_lab.ask("text", {"words": np.array([[b"\xff\xd8\xff"]], np.object_)})


def test_without_a_batch_dimension_shapes_are_whole_and_a_scalar_comes_back_as_one(onnx_lab: Any) -> None:
    onnx_lab.serve(
        "whole",
        graph(
            [helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0)],
            {"x": (TensorProto.FLOAT, [2, "width"])},
            {"total": (TensorProto.FLOAT, [])},
        ),
    )
    assert onnx_lab.client.get_model_config("whole")["max_batch_size"] == 0
    answer = onnx_lab.ask("whole", {"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(answer["total"], [6.0])


def test_an_optional_input_has_the_value_of_the_file_until_it_is_sent(onnx_lab: Any) -> None:
    vector = (TensorProto.FLOAT, [2])
    onnx_lab.serve(
        "optional",
        graph(
            [helper.make_node("Add", ["x", "bias"], ["y"])],
            {"x": vector, "bias": vector},
            {"y": vector},
            [helper.make_tensor("bias", TensorProto.FLOAT, [2], [10.0, 10.0])],
        ),
        'input [ { name: "x" data_type: TYPE_FP32 dims: [2] },'
        ' { name: "bias" data_type: TYPE_FP32 dims: [2] optional: true } ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [2] } ]',
    )
    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(onnx_lab.ask("optional", {"x": x})["y"], [11, 11])
    np.testing.assert_array_equal(onnx_lab.ask("optional", {"x": x, "bias": x})["y"], [2, 2])


def test_a_model_whose_answer_has_other_rows_than_its_input_says_so(onnx_lab: Any) -> None:
    onnx_lab.serve(
        "rowless",
        graph(
            [
                helper.make_node("NonZero", ["x"], ["places"]),
                helper.make_node("Transpose", ["places"], ["y"]),
            ],
            {"x": (TensorProto.FLOAT, ["batch", 2])},
            {"y": (TensorProto.INT64, ["count", 2])},
        ),
    )
    with pytest.raises(InferenceServerException, match=r"output 'y' came back as \[6, 2\] for 3 rows"):
        onnx_lab.ask("rowless", {"x": np.ones((3, 2), np.float32)})
