"""The client against servers that answer in every way they can; tests/served/ has a real Triton."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from support.eventually import eventually
from support.listener import Listen, answered
from support.listener import http as answer_of
from tritonclient.grpc.service_pb2 import ModelReadyResponse

from gourmet.contracts import ModelInfo, Tensors, TensorSpec
from gourmet.triton_client import errors, http
from gourmet.triton_client.deadline import SILENCE_S, Deadline
from gourmet.triton_client.grpc import request_of
from gourmet.triton_client.tensors import generate_body, infer_body, joined, raw_bytes, read_answer
from gourmet.triton_client.triton import Triton

BODY = b'{"name":"t","version":"9"}'
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 26\r\n\r\n" + BODY
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = CHUNKS + b"2\r\n%b\r\n18;x=y\r\n%b\r\n0\r\n\r\n" % (BODY[:2], BODY[2:])
MODEL = ModelInfo(
    "m",
    (TensorSpec("text", "BYTES", (1,)),),
    (TensorSpec("answer", "BYTES", (1,)), TensorSpec("tokens", "INT32", (1,))),
    decoupled=True,
)
INPUTS = {"text": np.array([b"one \xd1\x82\xd1\x80\xd0\xb8"], np.object_)}


@contextlib.contextmanager
def server(
    *connections: list[list[bytes]], pause_s: float = 0.0, seconds: float = 5.0
) -> Iterator[tuple[Triton, list[bytes]]]:
    """Answers each request on each connection with its pieces, and closes after the last of them."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answers in connections:
                with contextlib.suppress(OSError), listener.accept()[0] as kept:
                    for pieces in answers:
                        requests.append(kept.recv(65_536))
                        for piece in pieces:
                            kept.sendall(piece)
                            time.sleep(pause_s)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        options: Any = {"keys": {"key": "secret"}, "headers": lambda: {"traceparent": "00-1-2-01"}}
        with Triton(address, seconds, 1.0, **options) as triton:
            yield triton, requests
        listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        thread.join(5)


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def stream(url: str, deadline_s: float = 3.0) -> Iterator[Tensors | None]:
    return Triton(url).stream(MODEL, INPUTS, Deadline(deadline_s), "mine")


def test_a_reply_is_read_however_it_comes_and_the_connection_kept() -> None:
    pieces = [WHOLE[at : at + 7] for at in range(0, len(WHOLE), 7)]
    drops = [CHUNKED[at : at + 3] for at in range(0, len(CHUNKED), 3)]
    with server([[WHOLE], pieces, [CHUNKED], drops]) as (triton, requests):
        assert [triton.version() for _ in range(4)] == ["t 9"] * 4
    assert requests[0].startswith(b"GET /v2 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"secret" not in requests[0]


def test_a_change_is_sent_the_key_and_a_question_to_a_model_the_trace() -> None:
    with server([[WHOLE], [answered([1.0])]]) as (triton, requests):
        triton.load("m", {"a": 1}, {"1/model.py": b"code"})
        triton.infer("m/2", {"x": np.zeros(1, np.float32)})
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/repository/models/m/load HTTP/1.1\r\n")
    assert head.endswith(b"\r\nkey: secret\r\nContent-Length: %d" % len(body))
    assert json.loads(body) == {"parameters": {"config": '{"a": 1}', "file:1/model.py": "Y29kZQ=="}}
    assert requests[1].startswith(b"POST /v2/models/m/versions/2/infer HTTP/1.1\r\n")
    assert b"\r\ntraceparent: 00-1-2-01\r\n" in requests[1]
    assert b"secret" not in requests[1]


def test_a_kept_connection_that_ended_is_opened_again() -> None:
    with server([[WHOLE]], [[WHOLE]]) as (triton, requests):
        assert [triton.version(), triton.version()] == ["t 9", "t 9"]
    assert len(requests) == 2


def test_a_connection_that_is_said_to_close_is_not_used_again() -> None:
    last = WHOLE.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
    with server([[last], [WHOLE.replace(b"9", b"8")]], [[WHOLE]]) as (triton, _):
        assert [triton.version(), triton.version()] == ["t 9", "t 9"]


def test_a_request_that_ends_two_connections_is_not_sent_a_third_time() -> None:
    with server([[WHOLE], []], [[]], [[WHOLE]]) as (triton, requests):
        triton.version()
        with pytest.raises(errors.TritonUnreachable):
            triton.version()
    assert len(requests) == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n[",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[[",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000,
        CHUNKS + b"x\r\n",
    ],
)
def test_an_incomplete_reply_is_refused(answer: bytes) -> None:
    with server([[answer]]) as (triton, _), pytest.raises(errors.NotTriton, match="is not Triton"):
        triton.version()


@pytest.mark.parametrize("head", ["X: ", "Content-Length: 9999999\r\n\r\n"])
def test_a_reply_without_end_does_not_fill_the_memory(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_MAX_BYTES", 4096)
    answer = f"HTTP/1.1 200 OK\r\n{head}".encode() + b"x" * 5000
    with server([[answer]]) as (triton, _), pytest.raises(errors.NotTriton, match="it is longer than"):
        triton.version()


@pytest.mark.parametrize(
    ("head", "pause_s"), [("X: ", 0.2), ("Content-Length: 9999999\r\n\r\n", 0.0002)], ids=["drips", "flows"]
)
def test_a_reply_that_does_not_end_is_given_up_when_its_time_is_over(head: str, pause_s: float) -> None:
    answer = [f"HTTP/1.1 200 OK\r\n{head}".encode(), *[b"x"] * int(1.5 / pause_s)]
    with (
        server([answer], pause_s=pause_s, seconds=0.5) as (triton, _),
        pytest.raises(errors.NoAnswerInTime, match=r"within 0\.5 s"),
    ):
        triton.version()


def test_a_server_that_does_not_read_is_given_up_in_time() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Triton(f"127.0.0.1:{silent.getsockname()[1]}", 0.5) as triton,
        pytest.raises(errors.NoAnswerInTime),
    ):
        triton.load("m", {"config": "x" * 20_000_000})


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (answer_of({"error": "no such model"}, "400 Bad Request"), errors.TritonRefused, "no such model"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\n\r\nwords", errors.TritonRefused, "words"),
        (answer_of({"error": "This API is restricted"}, "403 No"), errors.ApiRestricted, "TRITON_ADMIN_KEY"),
        (
            b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere\r\n\r\n",
            errors.TritonRefused,
            "status 302 and no reason",
        ),
    ],
)
def test_an_error_is_raised_with_its_reason(
    answer: bytes, error: type[errors.TritonError], message: str
) -> None:
    with server([[answer]]) as (triton, _), pytest.raises(error, match=message):
        triton.version()


def test_a_connection_has_a_longest_life(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind an address that balances, one that is kept for ever never reaches a server that came since."""
    listener = listen(answer_of({}))
    for life_s, connections in ((60.0, 1), (0.0, 1 + 5)):
        monkeypatch.setattr(http, "_LIFE_S", life_s)
        with Triton(listener.url) as triton:
            for _ in range(5):
                triton.check_live()
        assert listener.connections == connections


def test_a_name_lookup_that_hangs_ends_with_the_request_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [released.wait(60)][1:])
    with Triton("triton.example:8000", 0.3) as triton, pytest.raises(errors.NoAnswerInTime):
        triton.check_live()
    assert not released.is_set()
    released.set()


@pytest.mark.promise("operating: DNS does not answer")
def test_the_last_address_is_used_while_dns_is_away(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = listen(answer_of({}), ends_each=True)
    resolve = socket.getaddrinfo

    def without_dns(host: str, *rest: Any, **named: Any) -> Any:
        if host == "localhost":
            raise socket.gaierror("no DNS server answers")
        return resolve(host, *rest, **named)

    with Triton(listener.url.replace("127.0.0.1", "localhost")) as triton:
        triton.check_live()
        monkeypatch.setattr(socket, "getaddrinfo", without_dns)
        triton.check_live()
    assert listener.connections == 2


@pytest.mark.parametrize("there", ["nobody", "silence", "web", "no name"])
def test_a_server_without_grpc_is_unreachable(listen: Listen, there: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = {
            "nobody": "127.0.0.1:9",
            "silence": f"127.0.0.1:{silent.getsockname()[1]}",
            "web": listen(answer_of({})).url,
            "no name": "no.such.name.invalid:1",
        }[there]
        with Triton(f"grpc://{address}", 60, 0.3) as triton:
            with pytest.raises(errors.TritonUnreachable, match=address):
                triton.check_live()
            if there == "silence":
                with pytest.raises(errors.TritonUnreachable, match=address):
                    triton.infer("m", INPUTS)
                with pytest.raises(errors.TritonUnreachable, match=address):
                    list(triton.stream(MODEL, INPUTS))


def test_a_model_that_has_too_much_to_do_is_no_server_that_is_away() -> None:
    """gRPC has one status for both."""

    class Busy(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            def answer(_: bytes, context: grpc.ServicerContext) -> bytes:
                if not details.method.endswith("ModelReady"):
                    context.abort(grpc.StatusCode.UNAVAILABLE, "its queue is full")
                return ModelReadyResponse(ready=True).SerializeToString()

            return grpc.unary_unary_rpc_method_handler(answer)

    busy = grpc.server(ThreadPoolExecutor(1), [Busy()])
    port = busy.add_insecure_port("127.0.0.1:0")
    busy.start()
    with Triton(f"grpc://127.0.0.1:{port}") as triton, pytest.raises(errors.ModelBusy, match="queue is full"):
        triton.infer("m", INPUTS)
    busy.stop(None).wait()


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.array([[True, False]]),
        np.array([1, 2], np.uint8),
        np.array([0.5], np.float16),
        np.array([["чай".encode()], [b""], [b"tea"]], np.object_),
        np.empty((0, 2), np.int64),
    ],
)
def test_a_tensor_comes_back_as_it_was_sent(values: Any) -> None:
    head, data = infer_body({"x": values})[0]
    (sent,) = json.loads(head)["inputs"]
    assert len(data) == raw_bytes(values) == sent["parameters"]["binary_data_size"]
    answer = json.dumps({"outputs": [sent], "model_version": "2"}).encode()
    version, outputs = read_answer(answer + data, str(len(answer)))
    assert version == "2"
    assert outputs["x"].tolist() == values.tolist()
    assert outputs["x"].dtype == values.dtype


def test_a_request_names_its_version_its_client_and_its_deadline_in_microseconds() -> None:
    deadline = Deadline(5.0, client="me")
    for target, version in (("m", ""), ("m/12", "12")):
        request = request_of(target, INPUTS, deadline, "mine")
        named = (request["model_name"], request["model_version"], request["request_id"])
        assert named == ("m", version, "mine")
        assert 4_000_000 < request["timeout"] <= 5_000_000
        assert request["parameters"] == {"client": "me"}
    sent = json.loads(infer_body(INPUTS, "mine", deadline)[0][0])
    assert (sent["id"], sent["parameters"]["client"]) == ("mine", "me")
    assert 4_000_000 < sent["parameters"]["timeout"] <= 5_000_000
    assert json.loads(generate_body(INPUTS, "mine", deadline)[0][0])["parameters"] == {"client": "me"}


def test_pieces_of_text_are_joined_and_of_other_tensors_the_last_counts() -> None:
    texts, numbers = (np.array([b"one "], np.object_), np.array([b"two "], np.object_)), np.arange(2)
    pieces = [{"text": text, "tokens": numbers[at : at + 1]} for at, text in enumerate(texts)]
    whole = joined(pieces)
    assert (whole["text"].tolist(), whole["tokens"].tolist()) == ([b"one two "], [1])


def test_a_deadline_that_has_passed_leaves_the_least_time_and_says_so() -> None:
    deadline = Deadline(0.0)
    assert (deadline.left_s(), deadline.passed) == (0.001, True)
    assert not Deadline(60.0).passed


def test_pieces_are_tensors_by_name_however_their_bytes_are_cut(listen: Listen) -> None:
    sent = event(model_name="m", answer="чай", tokens=1) + event(answer="b", tokens=2, other=3)
    whole = CHUNKS + chunks(sent[:9], sent[9:50], sent[50:]) + b"0\r\n\r\n"
    listener = listen({"/generate_stream": whole})
    first, second = filter(None, stream(listener.url, 60.0))  # None is a silence
    assert (first["answer"].tolist(), first["tokens"].tolist()) == (["чай".encode()], [1])
    assert first["tokens"].dtype == np.int32
    assert second.keys() == {"answer", "tokens"}
    assert json.loads(listener.bodies[-1]) == {"id": "mine", "text": ["one три"]}
    assert listener.asked == ["/v2/models/m/generate_stream"]


def test_a_silence_is_reported_and_the_deadline_ends_it(listen: Listen) -> None:
    deadline = Deadline(60.0)
    triton = Triton(listen({"/generate_stream": CHUNKS + chunks(event(answer="a"))}).url)
    pieces = triton.stream(MODEL, INPUTS, deadline)
    assert any(pieces), "until the first that is no silence"
    assert next(pieces) is None
    deadline.seconds = SILENCE_S / 4
    deadline.restart()
    with pytest.raises(errors.NoAnswerInTime):
        next(pieces)


def test_pieces_without_end_are_given_up_when_their_time_is_over() -> None:
    answer = [CHUNKS, *[chunks(event(answer="a") * 20)] * 6000]
    with server([answer], pause_s=0.0002) as (triton, _), pytest.raises(errors.NoAnswerInTime):
        list(triton.stream(MODEL, INPUTS, Deadline(0.3)))


def test_a_piece_that_comes_after_its_time_is_not_read() -> None:
    answer = [CHUNKS + chunks(event(answer="a")), chunks(event(answer="b"))]
    deadline = Deadline(60.0)
    with server([answer], pause_s=0.2) as (triton, _):
        pieces = triton.stream(MODEL, INPUTS, deadline)
        assert next(pieces)
        time.sleep(0.4)  # the second has come; it does not matter if it has not
        deadline.seconds = 0.0
        deadline.restart()
        with pytest.raises(errors.NoAnswerInTime):
            next(pieces)


def test_closing_it_closes_the_connection(listen: Listen) -> None:
    listener = listen({"/generate_stream": CHUNKS + chunks(event(answer="a"))})
    pieces = stream(listener.url, 60.0)
    assert any(pieces), "until the first that is no silence"
    assert listener.open_connections == 1
    pieces.close()  # type: ignore[attr-defined]
    eventually(lambda: not listener.open_connections)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (answer_of({"error": "no such input"}, "400 Bad Request"), errors.InvalidRequest, "no such input"),
        (answer_of({"error": "the reason"}, "500 Internal"), errors.ModelFailed, "the reason"),
        (
            answer_of({"error": "a Request timeout expired"}, "503 -"),
            errors.NoAnswerInTime,
            "m did not answer",
        ),
        (answer_of({"error": "its queue is full"}, "503 -"), errors.ModelBusy, "m has too much to do"),
        (CHUNKS + chunks(event(error="the reason")) + b"0\r\n\r\n", errors.ModelFailed, "the reason"),
        (CHUNKS + chunks(b"data: {\n\n") + b"0\r\n\r\n", errors.NotTriton, "cannot be read"),
        (CHUNKS + chunks(event(tokens="many")) + b"0\r\n\r\n", errors.NotTriton, "cannot be read"),
        (CHUNKS + b"0\r\n\r\n", errors.ModelFailed, "m ended its answer without a piece"),
        (answer_of({}), errors.NotTriton, "its answer is not a stream"),
        (b"", errors.TritonUnreachable, "no Triton answers"),
        (CHUNKS + chunks(event(answer="a")), errors.TritonUnreachable, "no Triton answers"),
    ],
)
def test_a_stream_that_goes_wrong_ends_in_an_error_of_the_tree(
    listen: Listen, answer: bytes, error: type[errors.TritonError], message: str
) -> None:
    listener = listen({"/generate_stream": answer, "/ready": answer_of({})}, ends_each=True)
    with pytest.raises(error, match=message):
        list(stream(listener.url))


def test_a_model_is_ready_if_one_of_its_versions_is(listen: Listen) -> None:
    states = ("UNAVAILABLE", "READY", "UNAVAILABLE")
    rows = [{"name": "m", "version": str(number), "state": state} for number, state in enumerate(states)]
    assert Triton(listen(answer_of(rows)).url).index()["m"]["state"] == "READY"


def test_a_model_that_is_not_ready_is_named(listen: Listen) -> None:
    script = {"/stats": answer_of({"model_stats": []}), "/index": answer_of([])}
    with pytest.raises(errors.ModelUnavailable, match="'m' is not ready"):
        list(stream(listen(script | {"": answer_of({}, "400 Bad Request")}).url))
