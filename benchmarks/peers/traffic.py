"""A closed loop of threads on blocking sockets, for servers that take a photo as a form.

Asynchronous streams copy what does not fit the socket at once, and a phone's photo does not; a blocking
`sendall` outside the interpreter's lock copies nothing. Whatever comes back is kept as it is and read
once the clock has stopped, so that the client takes little of the cores that it shares with the servers.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from peers import processes
from peers.processes import CpuUsed

BOUNDARY: Final = b"----gourmet-bench-peers"
_TIMEOUT_S: Final = 60.0
_LONGEST_WARM_UP_S: Final = 20.0
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSES: Final = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


@dataclass(frozen=True)
class Endpoint:
    """Where to send photos, and the processes behind it by what they are called in the report."""

    port: int
    path: str
    groups: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ClosedLoop:
    """So many requests under way at any time, for so long."""

    concurrency: int
    warm_up_s: float
    window_s: float


@dataclass(frozen=True)
class Seen:
    """One answer; times are seconds of one clock."""

    photo: int
    sent: float
    done: float
    status: int
    body: bytes


@dataclass
class Recording:
    """All that came back, what failed, and what was used while the window was open."""

    began: float = 0.0
    ended: float = 0.0
    seen: list[Seen] = field(default_factory=list)
    failures: list[tuple[float, str]] = field(default_factory=list)
    before: CpuUsed | None = None
    after: CpuUsed | None = None
    client_cpu_s: float = 0.0
    memory_mib: dict[str, float] = field(default_factory=dict)


def message(endpoint: Endpoint, photo: bytes) -> bytes:
    """The whole request for one photo."""
    head = b'Content-Disposition: form-data; name="file"; filename="photo.jpg"\r\nContent-Type: image/jpeg'
    body = b"--%b\r\n%b\r\n\r\n%b\r\n--%b--\r\n" % (BOUNDARY, head, photo, BOUNDARY)
    return (
        b"POST %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: application/json\r\n"
        b"Content-Type: multipart/form-data; boundary=%b\r\nContent-Length: %d\r\n\r\n%b"
        % (endpoint.path.encode(), endpoint.port, BOUNDARY, len(body), body)
    )


def ask(endpoint: Endpoint, photo: bytes) -> Any:
    """One photo's answer; raise OSError or ValueError where there is none."""
    with _Connection(endpoint.port) as connection:
        status, body = connection.exchange(message(endpoint, photo))
    if status != 200:
        raise ValueError(f"HTTP {status}: {body[:300].decode(errors='replace')}")
    return json.loads(body)


def drive(endpoint: Endpoint, photos: Sequence[bytes], load: ClosedLoop, bench: int) -> Recording:
    """Put `load` on `endpoint`; `bench` is the process that everything on this machine should be under."""
    messages = [message(endpoint, photo) for photo in photos]
    traffic, stop = Recording(), threading.Event()
    askers = [_Asker(endpoint.port, messages, at, traffic, stop) for at in range(load.concurrency)]
    started = time.perf_counter()
    for asker in askers:
        asker.start()
    try:
        time.sleep(load.warm_up_s)
        # Not before each connection was answered once: a queue that still fills up is not a steady state.
        while not all(asker.answered for asker in askers):
            if time.perf_counter() - started > _LONGEST_WARM_UP_S:
                break
            time.sleep(0.01)
        traffic.before, cpu = processes.spent(endpoint.groups, bench), time.process_time()
        traffic.began = time.perf_counter()
        time.sleep(load.window_s)
        traffic.ended = time.perf_counter()
        traffic.client_cpu_s = time.process_time() - cpu
        traffic.after = processes.spent(endpoint.groups, bench)
        traffic.memory_mib = processes.memory_mib(endpoint.groups)
    finally:
        stop.set()
        for asker in askers:
            asker.join(_TIMEOUT_S)
    return traffic


class _Asker(threading.Thread):
    """Sends one photo after another, each as soon as the one before was answered."""

    def __init__(
        self, port: int, messages: list[bytes], first: int, traffic: Recording, stop: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self._port, self._messages, self._at = port, messages, first
        self._traffic, self._stop_asking = traffic, stop
        self.answered = False

    def run(self) -> None:
        connection = _Connection(self._port)
        while not self._stop_asking.is_set():
            photo = self._at % len(self._messages)
            # A stride of its own for each keeps the askers from sending the same photos in step.
            self._at += 1
            sent = time.perf_counter()
            try:
                status, body = connection.exchange(self._messages[photo])
            except (OSError, ValueError) as exc:
                connection.close()
                self._traffic.failures.append((time.perf_counter(), f"{type(exc).__name__}: {exc}"))
                time.sleep(0.02)  # a server that is gone is not to be asked a million times
                continue
            self._traffic.seen.append(Seen(photo, sent, time.perf_counter(), status, body))
            self.answered = True
        connection.close()


class _Connection:
    """HTTP/1.1, kept open as long as the server does."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Send a request, read its answer; raise OSError or ValueError where there is none."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=_TIMEOUT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(request)
        received = b""
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += self._receive()
        head, length = received[:end], _LENGTH.search(received[:end])
        if length is None:
            raise ValueError(f"an answer without a length: {head[:200].decode(errors='replace')}")
        whole = end + 4 + int(length[1])
        while len(received) < whole:
            received += self._receive()
        if _CLOSES.search(head):
            self.close()
        return int(head.split(None, 2)[1]), received[end + 4 :]

    def _receive(self) -> bytes:
        assert self._socket is not None
        data = self._socket.recv(65_536)
        if not data:
            raise ConnectionResetError("closed before the answer was whole")
        return data

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
