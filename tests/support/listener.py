"""A listener of a few lines that plays servers that are not a Triton, or a bad one, or one of few words."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


def http(body: object, status: str = "200 OK") -> bytes:
    text = json.dumps(body).encode()
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(text), text)


def answered(values: list[float], version: str = "1") -> bytes:
    output = {"name": "PROBABILITIES", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    return http({"model_name": "m", "model_version": version, "outputs": [output]})


def tensor(name: str, datatype: str, *data: object, shape: Sequence[int] = (1, 1)) -> dict[str, object]:
    """Describe a tensor; with `data`, as it stands in an answer."""
    return {"name": name, "datatype": datatype, "shape": list(shape)} | ({"data": data} if data else {})


def serving(
    name: str, inputs: object, outputs: object, infer: bytes = b"", max_batch_size: int = 0, **parameters: str
) -> dict[str, bytes]:
    """Return the answers of a Triton about a model; with `parameters` in its config."""
    texts = {key: {"string_value": value} for key, value in parameters.items()}
    return {
        f"/{name}/infer": infer or http({"model_version": "1", "outputs": outputs}),
        f"/{name}/config": http({"max_batch_size": max_batch_size, "parameters": texts}),
        f"/{name}/ready": http({}),
        f"/models/{name}": http({"name": name, "versions": ["1"], "inputs": inputs, "outputs": outputs}),
    }


def ready(*names: str) -> dict[str, bytes]:
    """Return the answers of a Triton that has these models and no other."""
    models = [{"name": name, "version": "1"} for name in names]
    return {
        "/stats": http({"model_stats": models}),
        "/index": http({"error": "This API is restricted"}, "403 Forbidden"),
        "": http({"error": "Request for unknown model: it is not found"}, "404 Not Found"),
    }


class _ScriptHandler(BaseHTTPRequestHandler):
    server: Listener
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(self.path)
        self.server.hosts.append(str(self.headers["Host"]))
        self.server.bodies.append(body[:500].decode(errors="replace"))
        answer = next((a for end, a in self.server.script.items() if self.path.endswith(end)), b"")
        self.wfile.write(answer)
        self.close_connection = self.server.ends_each or not answer

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


class Listener(ThreadingHTTPServer):
    """Answers each request by `script`, a table from what its path ends with; closes where told to."""

    def __init__(self, script: dict[str, bytes], *, ends_each: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _ScriptHandler)
        self.script = script
        self.ends_each = ends_each
        self.asked: list[str] = []
        self.bodies: list[str] = []
        self.hosts: list[str] = []
        self.connections = 0
        self._open: list[socket.socket] = []
        self.url = f"127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, args=[0.01], daemon=True)

    def start(self) -> None:
        self._thread.start()

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        self._open.append(connection)
        self.connections += 1
        return connection, address

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is part of the test."""

    @property
    def open_connections(self) -> int:
        return sum(connection.fileno() >= 0 for connection in self._open)

    def hang_up(self) -> None:
        """End all connections, as a restart would."""
        while self._open:
            with contextlib.suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.shutdown()
        self.hang_up()
        self.server_close()


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
