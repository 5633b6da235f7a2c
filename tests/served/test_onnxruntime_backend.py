"""The ONNX Runtime backend: what it loads, and what it answers to any mix of requests."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.made_models import ONE_INSTANCE, tensors
from tritonclient.utils import InferenceServerException

from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.served import manifest

EVERY_TYPE = {
    "bool": np.array([[True], [False]]),
    "uint8": np.array([[0], [255]], np.uint8),
    "uint16": np.array([[0], [2**16 - 1]], np.uint16),
    "uint32": np.array([[0], [2**32 - 1]], np.uint32),
    "uint64": np.array([[0], [2**64 - 1]], np.uint64),
    "int8": np.array([[-128], [127]], np.int8),
    "int16": np.array([[-(2**15)], [2**15 - 1]], np.int16),
    "int32": np.array([[-(2**31)], [2**31 - 1]], np.int32),
    "int64": np.array([[-(2**63)], [2**63 - 1]], np.int64),
    "float16": np.array([[-65504.0], [6e-8]], np.float16),
    "float": np.array([[-3.4e38], [1.4e-45]], np.float32),
    "double": np.array([[-1.7e308], [5e-324]], np.float64),
    "string": np.array([["пельмени ✓".encode()], [b""]], np.object_),
}


COUNTS_ROWS = """
    (float[batch, 5] x) => (float[batch, 5] y, int64[batch, 1] rows) <int64[1] one = {1}> {
        y = Add(x, x)
        count = Shape <start = 0, end = 1> (x)
        per_row = Concat <axis = 0> (count, one)
        rows = Expand(count, per_row)
    }"""


def doubler(*dims: int | str) -> str:
    """y = x + x for rows of these dims."""
    tensor = f"float[{', '.join(str(dim) for dim in ('batch', *dims))}]"
    return f"({tensor} x) => ({tensor} y) {{ y = Add(x, x) }}"


def test_every_element_type_passes_through_unchanged_under_its_own_name(onnx_lab: Any) -> None:
    types = list(EVERY_TYPE)
    inputs = ", ".join(f"{name}[batch, 1] in_{name}" for name in types)
    outputs = ", ".join(f"{name}[batch, 1] out_{name}" for name in reversed(types))
    nodes = "\n".join(f"out_{name} = Identity(in_{name})" for name in types)
    onnx_lab.serve("every_type", f"({inputs}) => ({outputs}) {{ {nodes} }}")

    answers = onnx_lab.ask("every_type", {f"in_{name}": values for name, values in EVERY_TYPE.items()})

    assert answers.keys() == {f"out_{name}" for name in EVERY_TYPE}
    for name, values in EVERY_TYPE.items():
        assert answers[f"out_{name}"].dtype == values.dtype, name
        np.testing.assert_array_equal(answers[f"out_{name}"], values, err_msg=name)


def test_inputs_match_by_name_and_only_requested_outputs_come_back(onnx_lab: Any) -> None:
    rows = "float[batch, 3]"
    onnx_lab.serve(
        "difference",
        f"({rows} a, {rows} b) => ({rows} difference, {rows} sum) "
        "{ difference = Sub(a, b) sum = Add(a, b) }",
    )
    a, b = np.full((2, 3), 5, np.float32), np.full((2, 3), 3, np.float32)
    assert (onnx_lab.ask("difference", {"b": b, "a": a})["difference"] == 2).all()
    for wanted in (["sum"], ["sum", "difference"]):
        assert onnx_lab.ask("difference", {"a": a, "b": b}, wanted).keys() == set(wanted)


BATCHING = "dynamic_batching { max_queue_delay_microseconds: 200000 }\n"


def declared(dims: Sequence[int], more: str = "", *, rows: bool = False) -> str:
    """The config of a doubler with a batch of up to 64 rows, in one instance so that requests meet."""
    counted = tensors("output", "rows", kind="INT64", dims=[1]) if rows else ""
    x, y = tensors("input", "x", dims=[*dims]), tensors("output", "y", dims=[*dims])
    return f"max_batch_size: 64\n{x}{y}{counted}{ONE_INSTANCE}\n{more}"


def test_requests_of_one_call_share_a_run_and_each_gets_its_own_rows(onnx_lab: Any) -> None:
    onnx_lab.serve("merging", COUNTS_ROWS, declared([5], BATCHING, rows=True))
    random = np.random.default_rng(7)
    sent = [{"x": random.random((rows, 5), np.float32)} for rows in random.integers(1, 5, size=24)]

    answers = onnx_lab.ask_together("merging", sent)

    for feeds, answer in zip(sent, answers, strict=True):
        np.testing.assert_array_equal(answer["y"], 2 * feeds["x"])
    assert max(int(answer["rows"].max()) for answer in answers) > 4, "no run had rows of two requests"


def test_requests_of_different_lengths_run_apart_in_the_same_model(onnx_lab: Any) -> None:
    onnx_lab.serve("lengths", doubler("length"), declared([-1], BATCHING))
    sent = [{"x": np.full((1 + n % 2, 1 + n % 3), n, np.float32)} for n in range(12)]

    answers = onnx_lab.ask_together("lengths", sent)

    for feeds, answer in zip(sent, answers, strict=True):
        np.testing.assert_array_equal(answer["y"], 2 * feeds["x"])


def test_a_request_that_breaks_its_run_fails_alone(onnx_lab: Any) -> None:
    onnx_lab.serve(
        "lookup",
        """
        (int64[batch, 1] index) => (float[batch, 1] value)
        <float[3, 1] table = {10, 20, 30}, int64[1] axes = {2}> {
            wide = Gather(table, index)
            value = Squeeze(wide, axes)
        }""",
        f"max_batch_size: 64\n{tensors('input', 'index', kind='INT64', dims=[1])}"
        f"{tensors('output', 'value', dims=[1])}{ONE_INSTANCE}\n{BATCHING}",
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
    onnx_lab.serve("narrow", doubler(4), declared([-1]))
    with pytest.raises(
        InferenceServerException, match=r"(?s)invalid dimensions for input: x.* Got: 5 Expected: 4"
    ):
        onnx_lab.ask("narrow", {"x": np.zeros((1, 5), np.float32)})
    assert onnx_lab.ask("narrow", {"x": np.ones((1, 4), np.float32)})["y"].sum() == 8


def test_bytes_that_are_not_utf_8_are_refused_by_name(onnx_lab: Any) -> None:
    onnx_lab.serve("text", "(string[batch, 1] words) => (string[batch, 1] same) { same = Identity(words) }")
    with pytest.raises(InferenceServerException, match=r"input 'words' .* not UTF-8 text"):
        onnx_lab.ask("text", {"words": np.array([[b"\xff\xd8\xff"]], np.object_)})


def test_without_a_batch_dimension_shapes_are_whole_and_a_scalar_comes_back_as_one(onnx_lab: Any) -> None:
    onnx_lab.serve("whole", "(float[2, width] x) => (float total) { total = ReduceSum <keepdims = 0> (x) }")
    served = onnx_lab.client.get_model_config("whole")
    assert served["max_batch_size"] == 0
    assert "dynamic_batching" not in served
    answer = onnx_lab.ask("whole", {"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(answer["total"], [6.0])


def test_an_optional_input_has_the_value_of_the_file_until_it_is_sent(onnx_lab: Any) -> None:
    onnx_lab.serve(
        "optional",
        "(float[2] x, float[2] bias = {10, 10}) => (float[2] y) { y = Add(x, bias) }",
        'input [ { name: "x" data_type: TYPE_FP32 dims: [2] },'
        ' { name: "bias" data_type: TYPE_FP32 dims: [2] optional: true } ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [2] } ]',
    )
    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(onnx_lab.ask("optional", {"x": x})["y"], [11, 11])
    np.testing.assert_array_equal(onnx_lab.ask("optional", {"x": x, "bias": x})["y"], [2, 2])


def test_a_model_that_returns_another_number_of_rows_is_an_error(onnx_lab: Any) -> None:
    onnx_lab.serve(
        "rowless",
        "(float[batch, 2] x) => (int64[count, 2] y) { places = NonZero(x) y = Transpose(places) }",
    )
    with pytest.raises(InferenceServerException, match=r"output 'y' has shape \[6, 2\] for 3 rows"):
        onnx_lab.ask("rowless", {"x": np.ones((3, 2), np.float32)})


# Loading


def identity(*dims: int | str, element: str = "float") -> str:
    """`same` is `given`, with these dims; names in dims are free sizes."""
    tensor = f"{element}[{', '.join(str(dim) for dim in dims)}]"
    return f"({tensor} given) => ({tensor} same) {{ same = Identity(given) }}"


def config(*, given: str = "given") -> str:
    sides = tensors("input", given, dims=[3]) + tensors("output", "same", dims=[3])
    return f"max_batch_size: 4\n{sides}{ONE_INSTANCE}"


def described(config: dict[str, Any], role: str) -> dict[str, tuple[str, list[str], dict[str, Any] | None]]:
    return {
        tensor["name"]: (tensor["data_type"], [int(dim) for dim in tensor["dims"]], tensor.get("reshape"))
        for tensor in config[role]
    }


def test_a_config_is_completed_from_the_file(onnx_lab: Any) -> None:
    onnx_lab.serve("complete_none", identity("batch", 3, "width"), None)
    served = onnx_lab.client.get_model_config("complete_none")
    assert served["max_batch_size"] == 4
    assert "dynamic_batching" in served
    assert described(served, "input") == {"given": ("TYPE_FP32", [3, -1], None)}
    assert described(served, "output") == {"same": ("TYPE_FP32", [3, -1], None)}


def test_given_fields_of_a_config_are_kept_when_the_rest_is_completed(onnx_lab: Any) -> None:
    onnx_lab.serve(
        "complete_half",
        identity("batch"),
        'max_batch_size: 9\ninput [ { name: "given" data_type: TYPE_FP32 dims: [1] reshape { shape: [] } } ]',
    )
    served = onnx_lab.client.get_model_config("complete_half")
    assert served["max_batch_size"] == 9
    assert described(served, "output") == {"same": ("TYPE_FP32", [1], {"shape": []})}
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


def test_the_file_may_have_another_name_or_lie_in_a_folder_of_its_name(onnx_lab: Any) -> None:
    onnx_lab.put("named", identity("batch", 3), 'default_model_filename: "net.onnx"', file="net.onnx")
    onnx_lab.client.load_model("named")
    served = onnx_lab.client.get_model_config("named")
    assert described(served, "input") == {"given": ("TYPE_FP32", [3], None)}
    onnx_lab.put("folder", identity("batch", 3), config(), file="model.onnx/model.onnx")
    onnx_lab.client.load_model("folder")


def test_a_mismatch_of_file_and_config_is_refused_at_load_with_both_sides(onnx_lab: Any) -> None:
    """The other mismatches are in tests/unit/test_served_models.py."""
    why = r"needs an input 'given', the config names 'image'; .* 'image', the ONNX file has 'given'"
    with pytest.raises(InferenceServerException, match=why):
        onnx_lab.serve("bad_input_name", identity("batch", 3), config(given="image"))


# Manifests


@pytest.fixture
def put(onnx_lab: Any) -> Any:
    """Copies a model of the product into the running Triton's repository under another name."""

    def copy(source: str, name: str) -> Path:
        model = Path(shutil.copytree(DEFAULT_REPOSITORY / source, onnx_lab.repository / name))
        config = model / "config.pbtxt"
        config.write_text(config.read_text().replace(f'name: "{source}"', f'name: "{name}"'))
        return model / "1"

    return copy


@pytest.mark.promise("SECURITY 14")
@pytest.mark.parametrize(
    ("source", "file"), [("food_classifier", "model_int8.onnx"), ("food_classifier_int8", "model.onnx")]
)
def test_one_changed_byte_of_the_weights_is_refused_with_both_hashes(
    onnx_lab: Any, put: Any, source: str, file: str
) -> None:
    name = f"tampered_{source}"
    weights = put(source, name) / file
    deployed = manifest.sha256(weights)
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    why = f"has sha256 {manifest.sha256(weights)}, its manifest says {deployed}"
    with pytest.raises(InferenceServerException, match=why):
        onnx_lab.client.load_model(name)
    assert not onnx_lab.client.is_model_ready(name)
    # Without its manifest it is not served either.
    (weights.parent / manifest.MANIFEST).unlink()
    with pytest.raises(InferenceServerException, match=r"manifest\.json is missing"):
        onnx_lab.client.load_model(name)


def test_the_hash_is_verified_before_the_file_is_read(onnx_lab: Any) -> None:
    """Without tensors in the config they come from the file, which is opened for that even earlier."""
    name = "tampered_and_unnamed"
    onnx_lab.put(name, "(float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }", "")
    says = f'{{"file": "model.onnx", "sha256": "{"0" * 64}"}}'
    (onnx_lab.repository / name / "1" / manifest.MANIFEST).write_text(says)
    with pytest.raises(InferenceServerException, match=f"its manifest says {'0' * 64}"):
        onnx_lab.client.load_model(name)
