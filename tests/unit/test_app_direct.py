"""The connection for what lies in shared memory, against servers that answer it in every way they can."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.http import InferInput
from tritonclient.utils import InferenceServerException

from app.direct import Direct, TooLate

SAID = {"request_id": "r", "timeout": 1000}


def answer(body: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def floats(*values: float) -> str:
    outputs = [{"name": "o", "datatype": "FP32", "shape": [1, len(values)], "data": values}]
    return json.dumps({"model_version": "3", "outputs": outputs})


@contextlib.contextmanager
def server(*connections: list[list[bytes]]) -> Iterator[tuple[Direct, list[bytes]]]:
    """Answers each request on each connection with its pieces, and closes after the last of them."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answers in connections:
                with contextlib.suppress(OSError), listener.accept()[0] as kept:
                    for pieces in answers:
                        asked.append(kept.recv(65_536))
                        for piece in pieces:
                            kept.sendall(piece)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        direct = Direct(f"127.0.0.1:{listener.getsockname()[1]}")
        try:
            yield direct, asked
        finally:
            direct.close()
            thread.join(5)


def ask(direct: Direct, left_s: float = 10.0) -> Any:
    tensor = InferInput("i", [1, 3], "UINT8")
    tensor.set_shared_memory("region", 3)
    return direct.infer("a model", [tensor], lambda: left_s, {"traceparent": "00-1-2-01"}, **SAID)


def test_the_request_says_where_the_tensor_lies_and_the_answer_is_read_however_it_comes() -> None:
    whole = answer(floats(0.25, 0.75))
    pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    with server([[whole], pieces]) as (direct, asked):
        for _ in range(2):
            found = ask(direct)
            assert found.get_response()["model_version"] == "3"
            np.testing.assert_array_equal(found.as_numpy("o"), np.array([[0.25, 0.75]], np.float32))
    head, _, body = asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/models/a%20model/infer HTTP/1.1\r\n")
    assert b"\r\ntraceparent: 00-1-2-01" in head
    (given,) = json.loads(body)["inputs"]
    assert given["parameters"] == {"shared_memory_region": "region", "shared_memory_byte_size": 3}


def test_a_refusal_has_tritons_reason_and_status_and_leaves_the_connection() -> None:
    refused = answer('{"error": "no such region"}', "400 Bad Request")
    odd = answer("what", "500 Internal Server Error")
    with server([[refused], [odd], [answer(floats(1.0))]]) as (direct, _):
        for reason, status in (("no such region", "400"), ("what", "500")):
            with pytest.raises(InferenceServerException) as caught:
                ask(direct)
            assert (caught.value.message(), caught.value.status()) == (reason, status)
        assert ask(direct).as_numpy("o").tolist() == [[1.0]]


def test_a_kept_connection_that_ended_is_told_from_one_that_a_request_ended() -> None:
    with server([[answer(floats(1.0))]]) as (direct, _):
        ask(direct)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            ask(direct)
    with server([[b"HTTP/1.1 200 OK\r\n"]]) as (direct, _), pytest.raises(ConnectionAbortedError):
        ask(direct)


def test_what_takes_too_long_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        direct = Direct(f"127.0.0.1:{silent.getsockname()[1]}")
        with contextlib.closing(direct), pytest.raises(TooLate):
            ask(direct, left_s=0.1)


def test_what_is_no_triton_is_not_believed() -> None:
    with (
        server([[b"HTTP/1.1 200 OK\r\n\r\nhello"]]) as (direct, _),
        pytest.raises(ValueError, match="how long"),
    ):
        ask(direct)
