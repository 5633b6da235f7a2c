"""Asking a Triton of this machine over a plain socket, for tensors that lie in shared memory.

tritonclient's own connection goes through gevent, which takes a third of a millisecond for a request of
300 bytes (docs/performance.md). What is sent, and what the answer means, stays tritonclient's to say.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
_JSON_LENGTH: Final = re.compile(rb"\r\ninference-header-content-length: *(\d+)", re.I)
_CHUNK_BYTES: Final = 65_536


class TooLate(Exception):
    """The answer was not there in time."""


class Direct:
    """One thread's connection, opened when it is first used."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._socket: socket.socket | None = None
        self._answered = False

    def infer(
        self,
        model: str,
        tensors: list[Any],
        left_s: Callable[[], float],
        headers: Mapping[str, str],
        **said: Any,
    ) -> Any:
        """What tritonclient's `infer` returns and raises, or TooLate; after any other error, `close` it."""
        body, _ = InferenceServerClient.generate_request_body(tensors, **said)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = (
            f"POST /v2/models/{quote(model)}/infer HTTP/1.1\r\nHost: {self._url}\r\n{lines}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        try:
            status, json_bytes, answer = self._exchange(head.encode() + body, left_s)
        except TimeoutError as exc:
            raise TooLate from exc
        self._answered = True
        if status != 200:
            raise InferenceServerException(_reason(answer), status=str(status))
        return InferenceServerClient.parse_response_body(answer, header_length=json_bytes)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _exchange(self, request: bytes, left_s: Callable[[], float]) -> tuple[int, int | None, bytes]:
        """The answer's status, the length of the JSON that it begins with, and all of it."""
        if self._socket is None:
            host, _, port = self._url.rpartition(":")
            self._socket = socket.create_connection((host.strip("[]"), int(port)), left_s())
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(left_s())
        self._socket.sendall(request)
        received = b""
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += self._receive(left_s)
        length, json_length = (pattern.search(received, 0, end) for pattern in (_LENGTH, _JSON_LENGTH))
        if length is None:
            raise ValueError("an answer that does not say how long it is")
        begin = end + 4
        while len(received) < begin + int(length[1]):
            received += self._receive(left_s)
        return int(received[9:12]), int(json_length[1]) if json_length else None, received[begin:]

    def _receive(self, left_s: Callable[[], float]) -> bytes:
        assert self._socket
        self._socket.settimeout(left_s())
        data = self._socket.recv(_CHUNK_BYTES)
        if not data:
            # One that was kept is found closed after a restart; one that is new, a request may have ended.
            closed = ConnectionResetError if self._answered else ConnectionAbortedError
            raise closed("the connection ended before the answer did")
        return data


def _reason(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return answer[:200].decode(errors="replace")
