"""Triton over HTTP: kept connections on plain sockets, each used by one thread at a time, with one deadline.

tritonclient's own connection goes through gevent, whose switches and timeouts cost more than everything else
that is done to ask (docs/measuring.md).
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Literal
from urllib.parse import quote

from gourmet.client.address import CA_ENV, Address
from gourmet.client.deadline import SILENCE_S, Deadline, with_silences
from gourmet.client.errors import ModelFailed, NoAnswerInTime, NotTriton, TritonUnreachable, refusal
from gourmet.client.tensors import events, generate_body, read_answer, request_body
from gourmet.client.transport import Call, Operation, Reply

_PATHS: Final[dict[Operation, tuple[str, str]]] = {
    "live": ("GET", "/v2/health/live"),
    "server": ("GET", "/v2"),
    "ready": ("GET", "/v2/models/{}/ready"),
    "metadata": ("GET", "/v2/models/{}"),
    "config": ("GET", "/v2/models/{}/config"),
    "statistics": ("GET", "/v2/models/{}/stats"),
    "infer": ("POST", "/v2/models/{}/infer"),
    "stream": ("POST", "/v2/models/{}/generate_stream"),
    "index": ("POST", "/v2/repository/index"),
    "load": ("POST", "/v2/repository/models/{}/load"),
    "unload": ("POST", "/v2/repository/models/{}/unload"),
    "register": ("POST", "/v2/systemsharedmemory/region/{}/register"),
    "unregister": ("POST", "/v2/systemsharedmemory/region/{}/unregister"),
}
JSON_LENGTH: Final = "Inference-Header-Content-Length"
_HTTP: Final = b"HTTP/1."
_RECEIVED_BYTES: Final = 262_144
_SHOWN: Final = 200
# Of a whole answer, or of a piece; more comes from no Triton, and would fill the memory until the deadline.
_MOST_BYTES: Final = 1 << 30
# Of that as JSON, which as Python's objects takes thirty times as much.
_MOST_JSON: Final = 32 << 20
# Behind an address that balances connections, servers that came since get their share after so long.
_LIFE_S: Final = 60.0
# How long a name with known addresses waits for new ones.
_LOOKUP_S: Final = 0.5


def path_of(call: Call) -> tuple[str, str]:
    """Method and path."""
    method, path = _PATHS[call.operation]
    target = quote(call.target.replace("/", "/versions/"))
    return method, path.format(target).replace("//", "/")  # all models' statistics have no name


def body_of(call: Call, deadline: Deadline | None = None) -> tuple[list[bytes], dict[str, str]]:
    """What is sent, in parts, and its headers.

    A model with a queue policy drops what still waits when its deadline has passed.
    """
    if call.operation == "infer":
        parts = request_body(call.inputs, call.request_id, deadline)
        return parts, {JSON_LENGTH: str(len(parts[0]))}
    if call.operation == "stream":
        return [generate_body(call.inputs, call.request_id, deadline.client if deadline else "")], {
            "Content-Type": "application/json"
        }
    return [json.dumps(call.fields).encode()] if call.fields else [], {}


class HttpTransport:
    """A server at `address` (host:port, or https://host:port)."""

    protocol: Literal["http", "grpc"] = "http"

    def __init__(self, address: str, connect_timeout_s: float) -> None:
        self._at = Address.of(address)
        self.address = str(self._at)
        self._tls = self._at.tls()
        self._headers = self._at.authorization()
        self._name = _Name(self._at.host.strip("[]"))
        self._connect_timeout_s = connect_timeout_s
        # The one that was used last is used next, so that there are no more than are used at a time.
        self._idle: list[_Connection] = []

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        try:
            if call.operation == "stream":
                yield from self._stream(call, deadline)
            else:
                yield self._whole(call, deadline)
        except OSError as exc:
            if isinstance(exc, TimeoutError) and deadline.passed:
                raise NoAnswerInTime(deadline.seconds) from None
            why = exc
            if isinstance(exc, ssl.SSLCertVerificationError):
                why = OSError(f"its certificate is refused, {exc.verify_message}; {CA_ENV} can name its CA")
            raise TritonUnreachable.at(self.address, why) from exc
        except _NotHttp as exc:
            raise NotTriton.at(self.address, exc) from exc

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _whole(self, call: Call, deadline: Deadline) -> Reply:
        """Ask again, once and on a new connection, where a kept one turns out to have ended.

        That is what a restart of Triton leaves behind, and nothing that is asked does harm twice.
        """
        message = self._message(call, deadline)
        # With no kept one it is an IndexError.
        with contextlib.suppress(IndexError, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
            return self._exchange(self._idle.pop(), call, message, deadline)
        return self._exchange(self._connect(deadline), call, message, deadline)

    def _exchange(self, connection: _Connection, call: Call, message: bytes, deadline: Deadline) -> Reply:
        try:
            connection.send(message, deadline)
            head = connection.head(deadline)
            body = connection.body(head, deadline)
        except BaseException:
            connection.close()  # what is left of this exchange may still come
            raise
        if head.is_last or time.monotonic() > connection.expires_at:
            connection.close()
        else:
            self._idle.append(connection)
        self._check(head, body)
        try:
            said = head.headers.get(JSON_LENGTH.lower()) if call.operation == "infer" else None
            _refuse_more(int(said or len(body)), _MOST_JSON)
            if call.operation != "infer":
                return Reply(json.loads(body) if body else None)
            return Reply(*read_answer(body, int(said) if said else None))
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as exc:
            raise NotTriton.at(self.address, f"its answer cannot be read: {exc!r}") from exc

    def _stream(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        """A connection serves one answer: closing it is what has Triton cancel the request."""
        with contextlib.closing(self._connect(deadline)) as connection:
            connection.send(self._message(call, deadline), deadline)
            head = yield from with_silences(lambda: connection.head(deadline, SILENCE_S), deadline)
            if head.status != HTTPStatus.OK or not head.is_chunked:
                self._check(head, connection.body(head, deadline))
                raise NotTriton.at(self.address, "its answer is not a stream")
            rest = b""
            while part := (yield from with_silences(lambda: connection.chunk(deadline, SILENCE_S), deadline)):
                _refuse_more(len(rest) + len(part), _MOST_JSON)
                *lines, rest = (rest + part).split(b"\n")
                try:
                    for found in events(lines, call.datatypes):
                        if isinstance(found, str):
                            raise ModelFailed(found, head.status, f"{call.target} could not answer: {found}")
                        yield Reply(None, found)
                except (RecursionError, TypeError, ValueError) as exc:
                    message = f"a piece of the answer of {call.target} cannot be read: {exc!r}"
                    raise NotTriton(message) from exc

    def _check(self, head: _Head, body: bytes) -> None:
        if head.status == HTTPStatus.OK:
            return
        try:
            reason = str(json.loads(body[:_MOST_JSON])["error"])
        except (ValueError, KeyError, RecursionError, TypeError):
            reason = body[:_SHOWN].decode(errors="replace")
        raise refusal(self.address, head.status, reason or f"it answers with status {head.status} alone")

    def _message(self, call: Call, deadline: Deadline) -> bytes:
        method, path = path_of(call)
        parts, headers = body_of(call, deadline)
        lines = "".join(
            f"{name}: {value}\r\n"
            for name, value in (headers | {**self._headers, **call.headers, **call.keys}).items()
        )
        length = sum(map(len, parts))
        lines = f"Host: {self._at.place}\r\n{lines}Content-Length: {length}\r\n\r\n"
        return b"".join([f"{method} {path} HTTP/1.1\r\n{lines}".encode(), *parts])

    def _connect(self, deadline: Deadline) -> _Connection:
        ends_at = time.monotonic() + min(self._connect_timeout_s, deadline.left_s())
        failure: OSError = TimeoutError(f"{self._name.host} has no address")
        for address in self._name.addresses(ends_at - time.monotonic()):
            try:
                left_s = max(0.001, ends_at - time.monotonic())
                connected = socket.create_connection((address, self._at.port), left_s)
                break
            except OSError as exc:
                failure = exc
        else:
            raise failure
        if self._tls:
            connected = self._tls.wrap_socket(connected, server_hostname=self._name.host)
        return _Connection(connected)


class _Name:
    """The addresses of a host name, looked up in another thread, since the look-up itself has no deadline.

    The last addresses that were found are used while DNS does not answer.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self._known: list[str] = []
        self._lookup: Future[list[str]] | None = None
        self._lock = threading.Lock()

    def addresses(self, within_s: float) -> list[str]:
        """Raise OSError or TimeoutError where none was found in time, and none is known from before."""
        with self._lock:
            if self._lookup is None or self._lookup.done():
                self._lookup = Future()
                threading.Thread(target=self._look_up, args=(self._lookup,), daemon=True).start()
            lookup = self._lookup
        try:
            self._known = lookup.result(min(within_s, _LOOKUP_S) if self._known else within_s)
        except OSError:  # TimeoutError is one
            if not self._known:
                raise
        return self._known

    def _look_up(self, lookup: Future[list[str]]) -> None:
        try:
            found = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
            lookup.set_result([str(entry[4][0]) for entry in found])
        except (OSError, UnicodeError) as exc:
            lookup.set_exception(OSError(f"the name {self.host} cannot be looked up: {exc}"))


class _NotHttp(Exception):
    """What came back is not HTTP, or not all of it."""


@dataclass(frozen=True)
class _Head:
    status: int
    headers: Mapping[str, str]

    @property
    def is_chunked(self) -> bool:
        return self.headers.get("transfer-encoding", "").lower() == "chunked"

    @property
    def is_last(self) -> bool:
        """Whether the server closes the connection after this reply."""
        return self.headers.get("connection", "").lower() == "close"


class _Connection:
    """What was received and not used yet stays here: after a timeout, each part may be asked for again."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self.expires_at = time.monotonic() + random.uniform(0.75, 1.25) * _LIFE_S  # noqa: S311
        self.close = weakref.finalize(self, connected.close)

    def send(self, message: bytes, deadline: Deadline) -> None:
        self._socket.settimeout(deadline.left_s())
        self._socket.sendall(message)

    def head(self, deadline: Deadline, within_s: float = math.inf) -> _Head:
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            self._receive(deadline, within_s)
            if not self._received.startswith(_HTTP[: len(self._received)]):
                raise _NotHttp(f"it begins with {bytes(self._received[:20])!r}")
        status, *lines = self._taken(end, 4).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in lines)
        try:
            return _Head(int(status.split()[1]), {name.lower(): value.strip() for name, _, value in fields})
        except (IndexError, ValueError):
            raise _NotHttp(f"it begins with {status!r}") from None

    def body(self, head: _Head, deadline: Deadline) -> bytes:
        if head.is_chunked:
            whole = bytearray()
            while part := self.chunk(deadline):
                whole += part
                _refuse_more(len(whole), _MOST_BYTES)
            return bytes(whole)
        length = _number(head.headers.get("content-length", "0"), 10)
        while len(self._received) < length:
            self._receive(deadline, has_begun=True)
        return self._taken(length)

    def chunk(self, deadline: Deadline, within_s: float = math.inf) -> bytes:
        """The next of a body that comes in chunks; empty at its end."""
        while True:
            begin = self._received.find(b"\r\n") + 2
            if begin > 1:
                size = _number(self._received[: begin - 2].partition(b";")[0].decode("latin-1"), 16)
                if len(self._received) >= begin + size + 2:
                    return self._taken(begin + size, 2)[begin:]
            self._receive(deadline, within_s)

    def _taken(self, size: int, besides: int = 0) -> bytes:
        taken = bytes(memoryview(self._received)[:size])
        del self._received[: size + besides]
        return taken

    def _receive(self, deadline: Deadline, within_s: float = math.inf, *, has_begun: bool = False) -> None:
        """Wait for what comes next; raise TimeoutError, or ConnectionResetError where that is nothing."""
        if deadline.passed:  # whatever still comes, and however fast
            raise TimeoutError
        self._socket.settimeout(min(within_s, deadline.left_s()))
        received = self._socket.recv(_RECEIVED_BYTES)
        if not received and (has_begun or self._received):
            raise _NotHttp("it ended too early")
        if not received:
            raise ConnectionResetError("it hung up")
        self._received += received
        _refuse_more(len(self._received), _MOST_BYTES)


def _refuse_more(received: int, max_bytes: int) -> None:
    if received > max_bytes:
        raise _NotHttp(f"it is longer than {max_bytes >> 20} MB")


def _number(text: str, base: int) -> int:
    with contextlib.suppress(ValueError):
        if (found := int(text, base)) >= 0:
            return found
    raise _NotHttp(f"{text[:20]!r} is not a length")
