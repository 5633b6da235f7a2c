"""Answers in pieces, without a server; tests/web/test_text_system.py asks a real one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gourmet.contracts import ModelInfo, TensorSpec
from gourmet.runtime.generate import GenerateError, joined, pieces, request_body

MODEL = ModelInfo(
    "teller",
    (TensorSpec("text", "BYTES", (1,)),),
    (TensorSpec("answer", "BYTES", (1,)), TensorSpec("tokens", "INT32", (1,)), TensorSpec("p", "FP32", (2,))),
    decoupled=True,
)
EVENTS = [
    b'data: {"model_name":"teller","answer":"\xd1\x87\xd0\xb0\xd0\xb9","tokens":1,"p":[0.25,0.75]}\n',
    b"\n",
    b'data: {"model_name":"teller","answer":" please","tokens":2,"p":[0.5,0.5]}\n',
]


def test_the_pieces_of_an_answer_have_the_types_of_the_outputs() -> None:
    first, second = pieces(EVENTS, MODEL)
    assert first["answer"].tolist() == ["чай".encode()]
    assert (first["tokens"].dtype, first["p"].dtype) == (np.int32, np.float32)
    assert second["p"].tolist() == [0.5, 0.5]


def test_joined_the_texts_follow_each_other_and_of_the_rest_the_last_stands() -> None:
    whole = joined(list(pieces(EVENTS, MODEL)))
    assert whole["answer"].tolist() == ["чай please".encode()]
    assert whole["tokens"].tolist() == [2]
    assert joined([]) == {}


def test_an_error_among_the_pieces_is_raised() -> None:
    with pytest.raises(GenerateError, match="out of tea"):
        list(pieces([EVENTS[0], b'data: {"error":"out of tea"}\n'], MODEL))


def test_a_request_is_json_of_the_inputs() -> None:
    inputs = {"text": np.array(["чай".encode()], np.object_), "max_tokens": np.array([3], np.int32)}
    assert json.loads(request_body(inputs)) == {"text": ["чай"], "max_tokens": [3]}
