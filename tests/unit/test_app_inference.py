"""What the app makes of servers that are no Triton, or a bad one. A listener of a few lines plays them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from app.classifier import TritonClassifier
from app.errors import (
    InferenceFailed,
    ModelNotReady,
    ServingError,
    TritonBusy,
    TritonTooSlow,
    TritonUnavailable,
)
from app.inference import Deadline, Refused, Triton
from gourmet.systems.food11 import contract

METADATA = {
    "name": "m",
    "inputs": [{"name": "INPUT_IMAGE", "datatype": "BYTES", "shape": [-1, 1]}],
    "outputs": [{"name": "PROBABILITIES", "datatype": "FP32", "shape": [-1, 11]}],
}
CONFIG = {"parameters": {"threshold": {"string_value": "0.5"}, "temperature": {"string_value": "1.0"}}}


def http(body: object, status: str = "200 OK") -> bytes:
    text = json.dumps(body).encode()
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(text), text)


def answered(values: list[float], version: str = "1") -> bytes:
    output = {"name": "PROBABILITIES", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    return http({"model_name": "m", "model_version": version, "outputs": [output]})


class Listener(threading.Thread):
    """Answers each request by `script`, a table from what its path ends with; closes where told to."""

    def __init__(self, script: dict[str, bytes], *, ends_each: bool = False) -> None:
        super().__init__(daemon=True)
        self.script = script
        self.ends_each = ends_each
        self.asked: list[str] = []
        self.bodies: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while request := self._read(connection):
                self.asked.append(request)
                answer = next((a for end, a in self.script.items() if request.endswith(end)), b"")
                connection.sendall(answer)
                if self.ends_each or not answer:
                    return

    def _read(self, connection: socket.socket) -> str:
        data = b""
        while b"\r\n\r\n" not in data:
            if not (chunk := connection.recv(65536)):
                return ""
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        fields = (line.lower().partition(b":") for line in head.split(b"\r\n"))
        length = next((int(value) for name, _, value in fields if name == b"content-length"), 0)
        while len(body) < length:
            body += connection.recv(65536)
        self.bodies.append(body[:500].decode(errors="replace"))
        return head.split(b" ")[1].decode()

    @property
    def open_connections(self) -> int:
        return sum(connection.fileno() >= 0 for connection in self._open)

    def hang_up(self) -> None:
        """End all connections, as a restart would."""
        while self._open:
            with contextlib.suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        self.join(5)


Listen = Callable[..., Listener]


@pytest.fixture
def listen() -> Iterator[Listen]:
    started: list[Listener] = []

    def start(script: dict[str, bytes] | bytes, **options: bool) -> Listener:
        listener = Listener(script if isinstance(script, dict) else {"": script}, **options)
        listener.start()
        started.append(listener)
        return listener

    yield start
    for listener in started:
        listener.stop()


GOOD = {
    "/ready": http({}),
    "/config": http(CONFIG),
    "/infer": answered([0.0] * 10 + [1.0]),
    "/m": http(METADATA),
}


def classify(url: str, deadline_s: float = 3.0) -> object:
    return TritonClassifier(Triton(url, 1.0), "m", contract).classify(contract.sample(), Deadline(deadline_s))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", TritonUnavailable),
        (b"HTTP/1.1 200 OK\r\nContent-Le", InferenceFailed),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", InferenceFailed),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", InferenceFailed),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[[", InferenceFailed),
        (b"SSH-2.0-OpenSSH_9.2\r\n", InferenceFailed),
        (http({}, "404 Not Found"), InferenceFailed),
    ],
)
def test_an_answer_that_is_none_is_an_error_at_once_and_not_asked_for_again(
    listen: Listen, answer: bytes, error: type[ServingError]
) -> None:
    listener = listen(answer, ends_each=True)
    started = time.monotonic()
    with pytest.raises(error):
        classify(listener.url)
    assert time.monotonic() - started < 2
    assert len(listener.asked) == len(set(listener.asked))


def test_a_good_answer_comes_with_the_threshold_and_the_version(listen: Listen) -> None:
    prediction = TritonClassifier(Triton(listen(GOOD).url), "m", contract).classify(
        contract.sample(), Deadline(5)
    )
    assert (prediction.label, prediction.probability) == ("Vegetable/Fruit", 1.0)
    assert (prediction.threshold, prediction.version) == (0.5, "1")
    assert prediction.timings_ms.keys() == {"decode", "triton"}


@pytest.mark.parametrize(
    "values", [[1.0] * 10, [1.0] * 22, [float("nan")] * 11], ids=["too few", "two rows", "not a number"]
)
def test_probabilities_that_cannot_be_are_an_error(listen: Listen, values: list[float]) -> None:
    listener = listen(GOOD | {"/infer": answered(values).replace(b"NaN", b'"NaN"')})
    with pytest.raises(InferenceFailed):
        classify(listener.url)


def test_a_model_of_another_kind_is_named_with_what_it_takes(listen: Listen) -> None:
    text = {"inputs": [{"name": "TEXT", "datatype": "INT64", "shape": [-1, 7]}], "outputs": []}
    with pytest.raises(InferenceFailed, match=r"TEXT INT64 \[-1, 7\].*FOOD11_MODEL_NAME"):
        classify(listen(GOOD | {"/m": http(text)}).url)


def test_a_config_with_a_threshold_that_is_no_number_is_an_error(listen: Listen) -> None:
    config = {"parameters": {"threshold": {"string_value": "high"}}}
    with pytest.raises(InferenceFailed, match="threshold = 'high'"):
        classify(listen(GOOD | {"/config": http(config)}).url)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("503 Service Unavailable", TritonBusy),
        ("500 Internal", InferenceFailed),
        ("404 Not Found", InferenceFailed),
    ],
)
def test_an_error_of_the_model_says_its_reason(
    listen: Listen, status: str, error: type[ServingError]
) -> None:
    listener = listen(GOOD | {"/infer": http({"error": "the reason"}, status)})
    with pytest.raises(error, match="the reason"):
        classify(listener.url)


def test_a_bad_request_to_a_model_that_decodes_is_a_bad_picture(listen: Listen) -> None:
    listener = listen(GOOD | {"/infer": http({"error": "row 0 is broken"}, "400 Bad Request")})
    with pytest.raises(ServingError, match="row 0 is broken") as caught:
        classify(listener.url)
    assert (caught.value.status, caught.value.code) == (400, "broken_picture")


def test_a_bad_request_to_a_model_that_takes_tensors_is_not_the_picture_s_fault(listen: Listen) -> None:
    tensor = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 3, 224, 224]}], "outputs": []}
    listener = listen(GOOD | {"/m": http(tensor), "/infer": http({"error": "no"}, "400 Bad Request")})
    with pytest.raises(Refused) as caught:
        classify(listener.url)
    assert caught.value.status == 502


def test_a_model_that_was_replaced_is_asked_in_the_new_way(listen: Listen) -> None:
    listener = listen(dict(GOOD))
    classifier = TritonClassifier(Triton(listener.url), "m", contract)
    assert classifier.classify(contract.sample(), Deadline(5)).version == "1"
    pixels = {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [-1, 224, 224, 3]}], "outputs": []}
    listener.script |= {"/m": http(pixels), "/infer": http({"error": "unexpected input"}, "400 Bad Request")}
    listener.asked.clear()
    with pytest.raises(Refused):
        classifier.classify(contract.sample(), Deadline(5))
    assert [path for path in listener.asked if path.endswith("/infer")] == ["/v2/models/m/infer"] * 2


def test_a_new_version_is_looked_at_afresh(listen: Listen) -> None:
    listener = listen(dict(GOOD))
    classifier = TritonClassifier(Triton(listener.url), "m", contract)
    assert classifier.classify(contract.sample(), Deadline(5)).threshold == 0.5
    config = {"parameters": {"threshold": {"string_value": "0.75"}}}
    listener.script |= {"/config": http(config), "/infer": answered([1.0] + [0.0] * 10, "2")}
    prediction = classifier.classify(contract.sample(), Deadline(5))
    assert (prediction.version, prediction.threshold) == ("2", 0.75)


def test_rows_are_of_one_version_and_a_model_that_is_replaced_meanwhile_is_said(listen: Listen) -> None:
    listener = listen(
        GOOD | {"/m": http(METADATA | {"versions": ["1"]}), "/config": http({"max_batch_size": 4})}
    )
    rows = TritonClassifier(Triton(listener.url), "m", contract).rows(Deadline(5))
    assert (rows.model, rows.version, rows.at_once) == ("m", "1", 4)
    picture = np.zeros((1, 224, 224, 3), np.uint8)
    assert rows.ask(picture).argmax() == 10
    listener.script["/infer"] = answered([1.0] + [0.0] * 10, "2")
    with pytest.raises(InferenceFailed, match="replaced"):
        rows.ask(picture)


def test_what_a_model_takes_is_asked_once_and_its_connection_is_kept(listen: Listen) -> None:
    listener = listen(GOOD)
    classifier = TritonClassifier(Triton(listener.url), "m", contract)
    for _ in range(5):
        classifier.classify(contract.sample(), Deadline(5))
    infers = [path for path in listener.asked if path.endswith("/infer")]
    assert len(infers) == 5
    assert len(listener.asked) - len(infers) <= 4
    assert listener.open_connections == 1


def test_a_kept_connection_found_closed_is_renewed_without_an_error(listen: Listen) -> None:
    listener = listen(GOOD)
    triton = Triton(listener.url)
    classifier = TritonClassifier(triton, "m", contract)
    classifier.classify(contract.sample(), Deadline(5))
    listener.hang_up()
    assert classifier.classify(contract.sample(), Deadline(5)).label == "Vegetable/Fruit"


def test_a_request_that_ends_the_server_is_sent_at_most_twice(listen: Listen) -> None:
    listener = listen(dict(GOOD))
    classifier = TritonClassifier(Triton(listener.url), "m", contract)
    classifier.classify(contract.sample(), Deadline(5))
    listener.asked.clear()
    listener.script["/infer"] = b""  # closes the connection instead of answering
    with pytest.raises(TritonUnavailable):
        classifier.classify(contract.sample(), Deadline(5))
    assert [path for path in listener.asked if path.endswith("/infer")] == ["/v2/models/m/infer"] * 2


def test_a_server_that_never_answers_is_left_at_the_deadline_and_can_be_asked_again(listen: Listen) -> None:
    listener = listen(dict(GOOD))
    classifier = TritonClassifier(Triton(listener.url), "m", contract)
    classifier.classify(contract.sample(), Deadline(5))
    listener.script["/infer"] = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
    started = time.monotonic()
    with pytest.raises(TritonTooSlow, match=r"0\.5 s"):
        classifier.classify(contract.sample(), Deadline(0.5))
    assert 0.4 < time.monotonic() - started < 1.5
    listener.script["/infer"] = GOOD["/infer"]
    assert classifier.classify(contract.sample(), Deadline(5)).label == "Vegetable/Fruit"


def test_nobody_at_the_address_is_said_with_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(TritonUnavailable, match=url):
        classify(url)


def test_a_name_that_does_not_resolve_is_unavailable() -> None:
    with pytest.raises((TritonUnavailable, TritonTooSlow)):
        classify("no-such-host.invalid:8000")


def test_an_address_that_swallows_packets_is_given_up_after_the_connect_timeout() -> None:
    # A listener whose queue is full answers no further attempts to connect.
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        host, port = listener.getsockname()
        started = time.monotonic()
        with pytest.raises(TritonUnavailable):
            classify(f"{host}:{port}", 10)
    assert 0.9 < time.monotonic() - started < 3


def test_a_model_that_is_not_ready_is_said_with_those_that_are(listen: Listen) -> None:
    phases = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    asked = {"version": "1", "inference_stats": {phase: {} for phase in phases}}  # of one never asked
    stats = {"model_stats": [{"name": "b", **asked}, {"name": "a", **asked}]}
    locked = http({"error": "This API is restricted"}, "403 Forbidden")
    unknown = http({"error": "unknown model"}, "404 Not Found")
    refused = http({}, "400 Bad Request")
    listener = listen({"/index": locked, "/stats": http(stats), "/ready": refused, "": unknown})
    with pytest.raises(ModelNotReady, match=r"'m'.*served are: a, b"):
        classify(listener.url)


def test_the_request_id_reaches_triton(listen: Listen) -> None:
    listener = listen(GOOD)
    photo = np.array([[b"x"]], np.object_)
    answer = Triton(listener.url).infer("m", {"INPUT_IMAGE": photo}, Deadline(5), "my-id")
    assert '"id":"my-id"' in listener.bodies[-1]
    assert answer.outputs["PROBABILITIES"].shape == (1, 11)


def test_each_thread_has_a_connection_of_its_own_and_closing_ends_them_all(listen: Listen) -> None:
    listener = listen(GOOD)
    triton = Triton(listener.url)
    together = threading.Barrier(4)

    def ask(_: int) -> None:
        together.wait(10)
        triton.describe("m", Deadline(5), afresh=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
        assert listener.open_connections == 4
        triton.close()
        deadline = time.monotonic() + 5
        while listener.open_connections and time.monotonic() < deadline:
            time.sleep(0.02)
        assert listener.open_connections == 0
