"""Send prepared requests and read replies: Triton over HTTP and gRPC, whole or streamed, and the web app.

HTTP bodies are built before the clock runs, so that the client needs little CPU while it measures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import aiohttp
import numpy as np

from gourmet.bench.inputs import ClientLoop, InputRows, client_loop
from gourmet.contracts import Array
from gourmet.triton_client.address import Address
from gourmet.triton_client.errors import TritonError
from gourmet.triton_client.grpc import AsyncGrpc, outputs_of, request_of
from gourmet.triton_client.http import path_of
from gourmet.triton_client.tensors import (
    JSON_LENGTH,
    events,
    generate_body,
    infer_body,
    joined,
    read_answer,
)

Answer = dict[str, Array]

_TIMEOUT_S: Final = 60.0
_BOUNDARY: Final = b"----gourmet-bench"
_ERROR: Final = b'data: {"error"'


class RequestFailed(Exception):
    """One request got an error instead of an answer; its message is the reason."""


@dataclass(frozen=True)
class Request:
    """The rows of a request, and the bytes that are sent."""

    rows: tuple[int, ...]
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RawReply:
    """A reply before it is parsed, so that parsing is not timed."""

    head: Mapping[str, str]
    body: Any
    # The times of the pieces of a streamed answer, in seconds of time.perf_counter.
    pieces: tuple[float, ...] = ()
    # Requests sent to Triton for this reply, and bytes in both directions, without HTTP's headers.
    requests: int = 1
    transferred: int = 0


class Wire(Protocol):
    """A way to send requests; it is used within one event loop."""

    async def send(self, request: Request) -> RawReply:
        """Send a request; raise RequestFailed if there is no answer."""

    async def close(self) -> None: ...


class ModelWire(Wire, Protocol):
    """A way to ask a model about rows."""

    def request(self, which: tuple[int, ...]) -> Request: ...

    def read_reply(self, reply: RawReply) -> Answer: ...


class Http:
    """Requests to one path of the server at `address` (host:port), over kept connections.

    There are as many connections as requests in flight. If the server `streams`, the time of each event
    is kept.
    """

    def __init__(
        self,
        address: str,
        path: str,
        *,
        streams: bool = False,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._address, self._path, self._streams = Address.of(address), path, streams
        self._method, self._headers = method, headers or {}

    @cached_property
    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._address.tls() or True),
            timeout=aiohttp.ClientTimeout(_TIMEOUT_S),
            # Triton would spend time on compressing its answers.
            headers={"Accept-Encoding": "identity", **self._headers},
            read_bufsize=1 << 20,
        )

    async def send(self, request: Request) -> RawReply:
        scheme, pieces = "https" if self._address.is_tls else "http", list[float]()
        sent = self._session.request(
            self._method,
            f"{scheme}://{self._address.netloc}{self._path}",
            data=request.body,
            headers=request.headers,
        )
        try:
            async with sent as reply:
                if self._streams:
                    lines = []
                    async for line in reply.content:
                        lines.append(line)
                        if line.startswith(b"data:"):
                            pieces.append(time.perf_counter())
                    body = b"".join(lines)
                else:
                    body = await reply.read()
        except TimeoutError as exc:
            raise RequestFailed(f"no answer within {_TIMEOUT_S:.0f} s") from exc
        except (OSError, ValueError, aiohttp.ClientError) as exc:
            raise RequestFailed(f"connection: {exc}") from exc
        if reply.status != 200:
            raise RequestFailed(f"HTTP {reply.status}: {body[:200].decode(errors='replace')}")
        if self._streams and (not pieces or _ERROR in body):
            raise RequestFailed(f"the answer broke off: {body[-200:].decode(errors='replace').strip()}")
        return RawReply(reply.headers, body, tuple(pieces), transferred=len(request.body) + len(body))

    async def close(self) -> None:
        await self._session.close()


class TritonHttp(Http):
    """Triton's HTTP with binary tensors, or generate_stream if the model is decoupled."""

    def __init__(self, address: str, model: str, rows: InputRows) -> None:
        streams = rows.info.decoupled
        path = path_of("stream" if streams else "infer", model).split()[1]
        super().__init__(address, path, streams=streams, headers=Address.of(address).authorization())
        self._rows = rows

    def request(self, which: tuple[int, ...]) -> Request:
        make_body = generate_body if self._streams else infer_body
        parts, headers = make_body(self._rows.tensors(which))
        return Request(which, b"".join(parts), headers)

    def read_reply(self, reply: RawReply) -> Answer:
        if self._streams:
            datatypes = {spec.name: spec.datatype for spec in self._rows.info.outputs}
            pieces = events(reply.body.splitlines(), datatypes)
            return joined(piece for piece in pieces if not isinstance(piece, str))
        return read_answer(reply.body, reply.head.get(JSON_LENGTH))[1]


class LoopedHttp(TritonHttp):
    """A loop in the client: an example needs one request for each word of its answer."""

    @cached_property
    def _loop(self) -> ClientLoop:
        return client_loop(self._rows.system)

    def request(self, which: tuple[int, ...]) -> Request:
        return Request(which, self._rows.examples[which[0]])

    async def send(self, request: Request) -> RawReply:
        asking, count, transferred = self._loop.steps_of(request.body), 0, 0
        inputs = next(asking)
        while True:
            parts, headers = infer_body(inputs)
            step = await super().send(Request((), b"".join(parts), headers))
            count, transferred = count + 1, transferred + step.transferred
            try:
                inputs = asking.send(super().read_reply(step))
            except StopIteration as done:
                return RawReply({}, done.value, requests=count, transferred=transferred)

    def read_reply(self, reply: RawReply) -> Answer:
        return dict(reply.body)


def photo_request(which: tuple[int, ...], photo: bytes) -> Request:
    """Return the request by which browsers send a photo: a multipart form."""
    head = b'Content-Disposition: form-data; name="file"; filename="photo.jpg"\r\nContent-Type: image/jpeg'
    body = b"--%b\r\n%b\r\n\r\n%b\r\n--%b--\r\n" % (_BOUNDARY, head, photo, _BOUNDARY)
    kind = f"multipart/form-data; boundary={_BOUNDARY.decode()}"
    return Request(which, body, {"Accept": "application/json", "Content-Type": kind})


class App(Http):
    """The web app's `POST /predict` with a photo for `model`, answered in JSON."""

    def __init__(self, address: str, model: str, rows: InputRows) -> None:
        super().__init__(address, f"/predict?{urlencode({'model': model})}")
        self._rows = rows

    def request(self, which: tuple[int, ...]) -> Request:
        return photo_request(which, self._rows.pictures[which[0]])

    def read_reply(self, reply: RawReply) -> Answer:
        result = json.loads(reply.body)
        return {
            "label": np.array([[result["label"].encode()]], dtype=np.object_),
            "probability": np.array([[result["probability"]]], dtype=np.float32),
            "model": np.array([[result["model"]["name"].encode()]], dtype=np.object_),
        }


class TritonGrpc:
    """Triton's gRPC with raw tensors. A decoupled model has a stream for each request."""

    def __init__(self, address: str, model: str, rows: InputRows) -> None:
        self._address, self._model, self._rows = address, model, rows
        self._streams = rows.info.decoupled

    @cached_property
    def _client(self) -> AsyncGrpc:
        return AsyncGrpc(self._address, _TIMEOUT_S)

    def request(self, which: tuple[int, ...]) -> Request:
        return Request(which, request_of(self._model, self._rows.tensors(which)))

    async def send(self, request: Request) -> RawReply:
        parts, pieces = [], list[float]()
        try:
            async for part in self._client.replies_to(request.body, streams=self._streams):
                pieces.append(time.perf_counter())
                parts.append(part)
        except TritonError as exc:
            raise RequestFailed(str(exc)) from exc
        if not parts:
            raise RequestFailed("the answer ended without any piece of it")
        return RawReply({}, parts, tuple(pieces) if self._streams else ())

    def read_reply(self, reply: RawReply) -> Answer:
        return joined(map(outputs_of, reply.body))

    async def close(self) -> None:
        await self._client.close()


def requests(wire: ModelWire, rows: int, batch: int) -> list[Request]:
    """Return requests of neighbouring rows that together hold every row, in random order."""
    starts = np.arange(0, rows, min(batch, rows))
    np.random.default_rng(1).shuffle(starts)
    return [wire.request(tuple((int(start) + at) % rows for at in range(batch))) for start in starts]
