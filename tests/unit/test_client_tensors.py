"""Tensors as they go to Triton and come back; tests/served/test_client.py asks a real one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gourmet.client.deadline import Deadline
from gourmet.client.tensors import (
    SharedTensor,
    events,
    generate_body,
    joined,
    raw_bytes,
    read_answer,
    request_body,
)

DATATYPES = {"answer": "BYTES", "tokens": "INT32", "p": "FP32"}
EVENTS = [
    b'data: {"model_name":"teller","answer":"\xd1\x87\xd0\xb0\xd0\xb9","tokens":1,"p":[0.25,0.75]}\n',
    b"\n",
    b'data: {"model_name":"teller","answer":" please","tokens":2,"p":[0.5,0.5]}\n',
]


def texts(*words: str) -> Any:
    return np.array([word.encode() for word in words], np.object_)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.array([[True, False]]),
        np.array([1, 2], np.uint8),
        np.array([0.5], np.float16),
        texts("чай", "", "tea").reshape(3, 1),
        np.empty((0, 2), np.int64),
    ],
)
def test_a_tensor_comes_back_as_it_was_sent(values: Any) -> None:
    head, data = request_body({"x": values})
    (sent,) = json.loads(head)["inputs"]
    assert len(data) == raw_bytes(values) == sent["parameters"]["binary_data_size"]
    about = json.dumps({"outputs": [sent]}).encode()
    answer, outputs = read_answer(about + data, len(about))
    assert answer["outputs"] == [sent]
    assert outputs["x"].tolist() == values.tolist()
    assert outputs["x"].dtype == values.dtype


def test_a_request_has_its_number_its_time_and_what_lies_in_shared_memory() -> None:
    deadline = Deadline(5, client="somebody")
    (head,) = request_body({"x": SharedTensor("region", "FP32", (1, 2), 8, 16)}, "mine", deadline)
    request = json.loads(head)
    assert (request["id"], request["parameters"]["client"]) == ("mine", "somebody")
    assert 4_000_000 < request["parameters"]["timeout"] <= 5_000_000
    assert request["inputs"][0]["parameters"] == {
        "shared_memory_region": "region",
        "shared_memory_offset": 16,
        "shared_memory_byte_size": 8,
    }


def test_outputs_in_json_are_read_too() -> None:
    outputs = [
        {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["чай"]},
        {"name": "p", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 0.5]},
    ]
    _, found = read_answer(json.dumps({"outputs": outputs}).encode(), None)
    assert found["text"].tolist() == [["чай".encode()]]
    assert found["p"].dtype == np.float32


@pytest.mark.parametrize("answer", [{}, {"outputs": [{}]}, [1]])
def test_an_answer_of_another_kind_is_an_error(answer: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_answer(json.dumps(answer).encode(), None)


def test_the_pieces_of_an_answer_have_the_types_of_the_outputs() -> None:
    first, second = events(EVENTS, DATATYPES)
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert first["answer"].tolist() == ["чай".encode()]
    assert (first["tokens"].dtype, first["p"].dtype) == (np.int32, np.float32)
    assert second["p"].tolist() == [0.5, 0.5]


def test_joined_the_texts_follow_each_other_and_of_the_rest_the_last_stands() -> None:
    whole = joined(piece for piece in events(EVENTS, DATATYPES) if isinstance(piece, dict))
    assert whole["answer"].tolist() == ["чай please".encode()]
    assert whole["tokens"].tolist() == [2]
    assert joined([]) == {}


def test_an_error_among_the_pieces_is_its_reason() -> None:
    assert list(events([b'data: {"error":"out of tea"}\n'], DATATYPES)) == ["out of tea"]


def test_a_request_to_generate_is_json_of_the_inputs() -> None:
    inputs = {"text": texts("чай"), "max_tokens": np.array([3], np.int32)}
    assert json.loads(generate_body(inputs, "mine")) == {"id": "mine", "text": ["чай"], "max_tokens": [3]}
