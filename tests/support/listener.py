"""A listener of a few lines that plays servers that are not a Triton, or a bad one, or one of few words."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest


def http(body: object, status: str = "200 OK") -> bytes:
    text = json.dumps(body).encode()
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(text), text)


def answered(values: list[float], version: str = "1") -> bytes:
    output = {"name": "PROBABILITIES", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    return http({"model_name": "m", "model_version": version, "outputs": [output]})


_NOT_SHARED = http({"error": "no memory is shared here"}, "400 Bad Request")


class Listener(threading.Thread):
    """Answers each request by `script`, a table from what its path ends with; closes where told to.

    It refuses to share memory unless the script says what to answer to that.
    """

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
                if not answer and request.endswith("/register"):
                    answer = _NOT_SHARED
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
