"""A kept HTTP connection to Triton over a plain socket, with one deadline for all of an exchange.

tritonclient's own connection goes through gevent, whose switches and timeouts cost more than everything else
that is done to ask (docs/performance.md). What is sent, and what an answer means, stays tritonclient's to
say; answers are taken apart by the parser in C that it brings.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from geventhttpclient.response import HTTPParseError, HTTPResponse

from app.triton.shared_memory import SharedInput

_TIMEVAL: Final = struct.Struct("@ll")
_CHUNK_BYTES: Final = 262_144
# Less is left of a deadline that is over: see `Deadline.left_s`.
_NOTHING_S: Final = 0.001


class TooLate(Exception):
    """The answer was not there in time."""


class BadReply(Exception):
    """What came back is not HTTP, or not all of it."""


@dataclass(frozen=True)
class Reply:
    """`json_bytes` is the length of the JSON that `body` begins with, where tensors follow it."""

    status: int
    body: bytes
    json_bytes: int | None


class Connection:
    """For one thread at a time; opened when it is first used, and after any error but Triton's own."""

    def __init__(self, url: str, connect_timeout_s: float) -> None:
        host, _, port = url.rpartition(":")
        self._url = url
        self._address = (host.strip("[]"), int(port))
        self._connect_timeout_s = connect_timeout_s
        self._socket: socket.socket | None = None
        self.shared: SharedInput | None = None  # for the tensors that are asked about over it

    def exchange(
        self,
        method: str,
        path: str,
        left_s: Callable[[], float],
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """The reply to one request; raises TooLate, BadReply or OSError.

        A kept connection that turns out to have ended is what a restart of Triton leaves behind. Nothing that
        is asked here does harm twice, so that is asked again: once, on a new connection.
        """
        message = self._message(method, path, body, headers)
        if self._socket is not None:
            try:
                return self._exchange(self._socket, method, message, left_s)
            except (ConnectionResetError, BrokenPipeError):
                pass
        self._socket = self._connect(left_s)
        return self._exchange(self._socket, method, message, left_s)

    def stream(
        self,
        path: str,
        left_s: Callable[[], float],
        body: bytes,
        headers: Mapping[str, str],
        silence_s: float,
    ) -> Iterator[tuple[int, bytes] | None]:
        """The status of one reply with each part of its body as it comes, or None after each silence.

        What is not a 200 comes whole. The connection is of no use afterwards.
        """
        reply = HTTPResponse("POST")
        connection = self._socket = self._connect(left_s)
        _send(connection, self._message("POST", path, body, headers), left_s)
        while not reply.message_complete:
            if left_s() <= _NOTHING_S:
                raise TooLate
            try:
                ended = not _feed(reply, connection, min(silence_s, left_s()))
            except TooLate:
                if left_s() > _NOTHING_S:
                    yield None
                continue
            if ended:
                raise ConnectionResetError("it hung up")
            is_error = reply.status_code != HTTPStatus.OK
            if (reply._body_buffer and not is_error) or (reply.message_complete and is_error):
                yield reply.status_code, bytes(reply._body_buffer)
                reply._body_buffer.clear()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __del__(self) -> None:
        self.close()

    def _message(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None) -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._url}\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def _exchange(
        self, connection: socket.socket, method: str, message: bytes, left_s: Callable[[], float]
    ) -> Reply:
        reply = HTTPResponse(method)
        try:
            _send(connection, message, left_s)
            while not reply.message_complete:
                if not _feed(reply, connection, left_s()):
                    if reply.message_begun:
                        raise BadReply("it ended too early")
                    raise ConnectionResetError("it hung up")
        except BaseException:
            self.close()  # what is left of this exchange may still come
            raise
        if reply.should_close():
            self.close()
        json_bytes = reply.get("inference-header-content-length")
        return Reply(reply.status_code, bytes(reply._body_buffer), int(json_bytes) if json_bytes else None)

    def _connect(self, left_s: Callable[[], float]) -> socket.socket:
        try:
            connection = socket.create_connection(self._address, min(self._connect_timeout_s, left_s()))
        except TimeoutError as exc:
            if left_s() > _NOTHING_S:
                raise
            raise TooLate from exc
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(True)
        return connection


def _send(connection: socket.socket, message: bytes, left_s: Callable[[], float]) -> None:
    unsent = memoryview(message)
    while unsent:
        with _in_time(connection, socket.SO_SNDTIMEO, left_s()):
            unsent = unsent[connection.send(unsent) :]


def _feed(reply: HTTPResponse, connection: socket.socket, seconds: float) -> bool:
    """Have `reply` take in what comes next; whether anything did, and the connection has not ended."""
    with _in_time(connection, socket.SO_RCVTIMEO, seconds):
        received = connection.recv(_CHUNK_BYTES)
    try:
        if received:
            reply.feed(received)
    except HTTPParseError as exc:
        raise BadReply(str(exc)) from exc
    return bool(received)


@contextlib.contextmanager
def _in_time(connection: socket.socket, option: int, seconds: float) -> Iterator[None]:
    """Around one call, which the kernel ends: Python's own timeouts take two more system calls for each."""
    connection.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6)))
    try:
        yield
    except BlockingIOError as exc:
        raise TooLate from exc
