"""Requests made ready to send, and what comes back: Triton by HTTP and gRPC, whole or streamed; the app.

A body for HTTP is put together before the clock runs, so that the client costs the machine little while
it measures; inputs in shared memory are written there once.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
import grpc  # type: ignore[import-untyped]
import numpy as np
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from gourmet.contracts import Array, Tensors
from gourmet.measure import client_loop
from gourmet.measure.client_loop import ClientLoop
from gourmet.measure.inputs import InputRows, raw
from gourmet.runtime import generate
from gourmet.serving.client import triton
from gourmet.serving.waiting import wait_until

Answer = dict[str, Array]

_TIMEOUT_S: Final = 60.0
_REGION: Final = f"gourmet_bench_{os.getpid()}"
_BOUNDARY: Final = b"----gourmet-bench"
_ERROR: Final = b'data: {"error"'


class RequestFailed(Exception):
    """One request got an error instead of an answer; its message is the reason."""


@dataclass(frozen=True)
class Request:
    """Which rows it holds, and what is sent of them."""

    rows: tuple[int, ...]
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RawReply:
    """What came back, unread: reading waits until the clock was looked at."""

    head: Mapping[str, str]
    body: Any
    # When each piece of a streamed answer came, in seconds of time.perf_counter.
    pieces: tuple[float, ...] = ()
    # How many requests Triton was sent for it, and how many bytes went there and came back, less HTTP's own.
    requests: int = 1
    transferred: int = 0


class Wire(Protocol):
    """One way to ask; it is used within one event loop."""

    def request(self, which: tuple[int, ...]) -> Request: ...
    async def send(self, request: Request) -> RawReply: ...
    def read(self, reply: RawReply) -> Answer: ...
    async def close(self) -> None: ...


Regions = Mapping[tuple[str, int], tuple[int, int]]  # (input, row) -> offset and size


class _Asked:
    """A server at `address` (host:port), and what is sent to it."""

    def __init__(self, address: str, model: str, rows: InputRows, regions: Regions | None) -> None:
        self._address, self._model, self._rows, self._regions = address, model, rows, regions


class _Http(_Asked):
    """HTTP with connections kept open, as many as requests are under way."""

    path = "/v2/models/{model}/infer"

    @cached_property
    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(_TIMEOUT_S),
            # Triton would spend time on compressing its answers.
            headers={"Accept-Encoding": "identity"},
            read_bufsize=1 << 20,
        )

    async def send(self, request: Request) -> RawReply:
        url = f"http://{self._address}{self.path.format(model=self._model)}"
        try:
            async with self._session.post(url, data=request.body, headers=request.headers) as reply:
                body, pieces = await self._received(reply)
        except TimeoutError as exc:
            raise RequestFailed(f"no answer within {_TIMEOUT_S:.0f} s") from exc
        except (OSError, ValueError, aiohttp.ClientError) as exc:
            raise RequestFailed(f"connection: {exc}") from exc
        if reply.status != 200:
            raise RequestFailed(f"HTTP {reply.status}: {body[:200].decode(errors='replace')}")
        return RawReply(reply.headers, body, pieces, transferred=len(request.body) + len(body))

    async def _received(self, reply: aiohttp.ClientResponse) -> tuple[bytes, tuple[float, ...]]:
        return await reply.read(), ()

    async def close(self) -> None:
        await self._session.close()


class TritonHttp(_Http):
    """Triton's HTTP with binary tensors."""

    def request(self, which: tuple[int, ...]) -> Request:
        return Request(which, *_body(_tensors(triton_http.InferInput, self._rows, which, self._regions)))

    def read(self, reply: RawReply) -> Answer:
        length = reply.head.get("Inference-Header-Content-Length")
        result = triton_http.InferenceServerClient.parse_response_body(
            reply.body, header_length=int(length) if length else None
        )
        return {each["name"]: result.as_numpy(each["name"]) for each in result.get_response()["outputs"]}


class StreamedHttp(_Http):
    """Triton's generate_stream: one row a request, and an answer in server-sent events."""

    path = "/v2/models/{model}/generate_stream"

    def request(self, which: tuple[int, ...]) -> Request:
        values = {given.name: self._rows.tensor(given, which) for given in self._rows.inputs}
        return Request(which, generate.request_body(values), {"Content-Type": "application/json"})

    async def send(self, request: Request) -> RawReply:
        reply = await super().send(request)
        if not reply.pieces or _ERROR in reply.body:
            raise RequestFailed(f"the answer broke off: {reply.body[-200:].decode(errors='replace').strip()}")
        return reply

    async def _received(self, reply: aiohttp.ClientResponse) -> tuple[bytes, tuple[float, ...]]:
        lines, pieces = [], list[float]()
        async for line in reply.content:
            lines.append(line)
            if line.startswith(b"data:"):
                pieces.append(time.perf_counter())
        return b"".join(lines), tuple(pieces)

    def read(self, reply: RawReply) -> Answer:
        return generate.joined(list(generate.pieces(reply.body.splitlines(), self._rows.info)))


class LoopedHttp(TritonHttp):
    """A loop that the client turns: what is asked is an example, and each of its words a request."""

    @cached_property
    def _loop(self) -> ClientLoop:
        return client_loop.of(self._rows.system)

    def request(self, which: tuple[int, ...]) -> Request:
        return Request(which, self._rows.examples[which[0]])

    async def send(self, request: Request) -> RawReply:
        asking, asked, transferred = self._loop.ask(request.body), 0, 0
        inputs = next(asking)
        while True:
            step = await super().send(Request((), *_body(_given(triton_http.InferInput, inputs))))
            asked, transferred = asked + 1, transferred + step.transferred
            try:
                inputs = asking.send(super().read(step))
            except StopIteration as done:
                return RawReply({}, done.value, requests=asked, transferred=transferred)

    def read(self, reply: RawReply) -> Answer:
        return dict(reply.body)


class App(_Http):
    """The web app's `POST /predict` with a photo, answered in JSON."""

    path = "/predict"

    def request(self, which: tuple[int, ...]) -> Request:
        head = (
            b'Content-Disposition: form-data; name="file"; filename="photo.jpg"\r\nContent-Type: image/jpeg'
        )
        photo = self._rows.pictures[which[0]]
        body = b"--%b\r\n%b\r\n\r\n%b\r\n--%b--\r\n" % (_BOUNDARY, head, photo, _BOUNDARY)
        kind = f"multipart/form-data; boundary={_BOUNDARY.decode()}"
        return Request(which, body, {"Accept": "application/json", "Content-Type": kind})

    def read(self, reply: RawReply) -> Answer:
        said = json.loads(reply.body)
        return {
            "label": np.array([[said["label"].encode()]], dtype=np.object_),
            "probability": np.array([[said["probability"]]], dtype=np.float32),
            "model": np.array([[said["model"]["name"].encode()]], dtype=np.object_),
        }


class TritonGrpc(_Asked):
    """Triton's gRPC with raw tensors."""

    @cached_property
    def _client(self) -> Any:
        return triton_grpc.InferenceServerClient(self._address)

    def request(self, which: tuple[int, ...]) -> Request:
        return Request(which, _tensors(triton_grpc.InferInput, self._rows, which, self._regions))

    async def send(self, request: Request) -> RawReply:
        try:
            return RawReply(
                {}, await self._client.infer(self._model, request.body, client_timeout=_TIMEOUT_S)
            )
        except InferenceServerException as exc:
            raise RequestFailed(f"gRPC {exc}") from exc

    def read(self, reply: RawReply) -> Answer:
        return {each.name: reply.body.as_numpy(each.name) for each in reply.body.get_response().outputs}

    async def close(self) -> None:
        await self._client.close()


class StreamedGrpc(TritonGrpc):
    """Triton's streamed inference, a stream a request; its last response says that it is the last."""

    async def send(self, request: Request) -> RawReply:
        async def asked() -> AsyncIterator[dict[str, Any]]:
            final = {"triton_enable_empty_final_response": True}
            yield {"model_name": self._model, "inputs": request.body, "parameters": final}

        parts, pieces = [], list[float]()
        try:
            async for part, error in self._client.stream_infer(asked(), stream_timeout=_TIMEOUT_S):
                if error:
                    raise RequestFailed(f"the answer broke off: {error.message()}")
                if part.get_response().outputs:
                    pieces.append(time.perf_counter())
                    parts.append(part)
        except grpc.RpcError as exc:
            raise RequestFailed(f"gRPC {exc.code().name}: {exc.details()}") from exc
        if not pieces:
            raise RequestFailed("the answer ended without any piece of it")
        return RawReply({}, parts, tuple(pieces))

    def read(self, reply: RawReply) -> Answer:
        return generate.joined([super(StreamedGrpc, self).read(RawReply({}, part)) for part in reply.body])


def _tensors(kind: Any, rows: InputRows, which: tuple[int, ...], regions: Regions | None) -> list[Any]:
    """A request's inputs, of the class that HTTP or gRPC wants; in shared memory its rows are neighbours."""
    tensors = []
    for given in rows.inputs:
        values = rows.tensor(given, which)
        tensors.append(kind(given.name, list(values.shape), given.datatype))
        if regions is None:
            tensors[-1].set_data_from_numpy(values)
        else:
            places = [regions[given.name, row] for row in which]
            tensors[-1].set_shared_memory(_REGION, sum(size for _, size in places), places[0][0])
    return tensors


def _given(kind: Any, inputs: Tensors) -> list[Any]:
    tensors = []
    for name, values in inputs.items():
        tensors.append(kind(name, list(values.shape), np_to_triton_dtype(values.dtype)))
        tensors[-1].set_data_from_numpy(values)
    return tensors


def _body(tensors: list[Any]) -> tuple[bytes, dict[str, str]]:
    """A request for HTTP, and its headers."""
    body, length = triton_http.InferenceServerClient.generate_request_body(tensors)
    # Where all inputs are in shared memory, the body is JSON alone.
    return body, {"Inference-Header-Content-Length": str(length or len(body))}


@contextlib.contextmanager
def in_shared_memory(url: str, rows: InputRows, batch: int) -> Iterator[Regions]:
    """The rows in a region that Triton reads; the first rows follow the last once more, for batches."""
    order = [*range(len(rows)), *(at % len(rows) for at in range(batch - 1))]
    places: dict[tuple[str, int], tuple[int, int]] = {}
    held = bytearray()
    for name, at in itertools.product((given.name for given in rows.inputs), order):
        row = raw(rows.values[name][at])
        places.setdefault((name, at), (len(held), len(row)))
        held += row
    # POSIX shared memory is a file here; tritonclient's own module needs a package that no longer exists.
    path = Path("/dev/shm") / _REGION
    try:
        path.write_bytes(held)
        with triton(url) as client:
            client.register_system_shared_memory(_REGION, f"/{_REGION}", len(held))
            try:
                yield places
            finally:
                wait_until(lambda: _unregistered(client), 5, "Triton did not let go of the inputs")
    finally:
        path.unlink(missing_ok=True)


def _unregistered(client: triton_http.InferenceServerClient) -> bool:
    """Whether Triton let go of the region, which it holds for a moment after its last answer."""
    try:
        client.unregister_system_shared_memory(_REGION)
    except InferenceServerException as exc:
        if "in use" not in str(exc):
            raise
        return False
    return True


def requests(wire: Wire, rows: int, batch: int) -> list[Request]:
    """Different requests that hold every row: of neighbours, shuffled."""
    starts = np.arange(0, rows, min(batch, rows))
    np.random.default_rng(1).shuffle(starts)
    return [wire.request(tuple((int(start) + at) % rows for at in range(batch))) for start in starts]
