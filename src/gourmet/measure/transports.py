"""Requests made ready to send, and what comes back: Triton by HTTP and gRPC, whole or streamed; the app.

A request's bytes are put together before the clock runs, so that the client costs the machine little
while it measures; inputs in shared memory are written there once.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import grpc  # type: ignore[import-untyped]
import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor, triton_to_np_dtype

from gourmet.measure.connections import TIMEOUT_S, HttpConnections, RawReply, RequestFailed
from gourmet.measure.inputs import Array, Input, InputRows, raw
from gourmet.runtime import generate
from gourmet.serving.client import triton

Answer = dict[str, Array]

_REGION: Final = f"gourmet_bench_{os.getpid()}"
_BOUNDARY: Final = b"----gourmet-bench"
_ERROR: Final = b'data: {"error"'


@dataclass(frozen=True)
class Request:
    """Which rows it holds, and its bytes."""

    rows: tuple[int, ...]
    message: bytes


class Wire(Protocol):
    """One way to ask."""

    def request(self, which: tuple[int, ...]) -> Request: ...
    async def send(self, request: Request) -> RawReply: ...
    def read(self, reply: RawReply) -> Answer: ...
    async def close(self) -> None: ...


Regions = Mapping[tuple[str, int], tuple[int, int]]  # (input, row) -> offset and size


def _message(address: str, path: str, fields: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {address}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class TritonHttp:
    """Triton's HTTP with binary tensors."""

    def __init__(self, address: str, model: str, rows: InputRows, regions: Regions | None = None) -> None:
        self._address, self._model, self._rows, self._regions = address, model, rows, regions
        self._connections = HttpConnections(address)

    def request(self, which: tuple[int, ...]) -> Request:
        described, blobs = [], []
        for given in self._rows.inputs:
            values = self._rows.tensor(given, which)
            if self._regions is None:
                blobs.append(raw(values))
                where: dict[str, Any] = {"binary_data_size": len(blobs[-1])}
            else:
                where = _placed(self._regions, given, which)
            described.append(
                {"name": given.name, "datatype": given.datatype, "shape": values.shape, "parameters": where}
            )
        said = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
        fields = {"Inference-Header-Content-Length": str(len(said))}
        path = f"/v2/models/{self._model}/infer"
        return Request(which, _message(self._address, path, fields, said + b"".join(blobs)))

    async def send(self, request: Request) -> RawReply:
        return await self._connections.exchange(request.message)

    def read(self, reply: RawReply) -> Answer:
        length = int(reply.head.get("inference-header-content-length", len(reply.body)))
        answer, at = {}, length
        for output in json.loads(reply.body[:length])["outputs"]:
            size = output["parameters"]["binary_data_size"]
            answer[output["name"]] = _array(output["datatype"], output["shape"], reply.body[at : at + size])
            at += size
        return answer

    async def close(self) -> None:
        await self._connections.close()


class TritonGrpc:
    """Triton's gRPC with raw tensors; requests are serialised beforehand."""

    def __init__(self, address: str, model: str, rows: InputRows, regions: Regions | None = None) -> None:
        self._address, self._model, self._rows, self._regions = address, model, rows, regions
        self._channel: Any = None
        self._call: Any = None

    def request(self, which: tuple[int, ...]) -> Request:
        message = service_pb2.ModelInferRequest(model_name=self._model)
        for given in self._rows.inputs:
            values = self._rows.tensor(given, which)
            tensor = message.inputs.add(name=given.name, datatype=given.datatype, shape=values.shape)
            if self._regions is None:
                message.raw_input_contents.append(raw(values))
                continue
            for name, value in _placed(self._regions, given, which).items():
                said = tensor.parameters[name]
                if isinstance(value, str):
                    said.string_param = value
                else:
                    said.int64_param = value
        return Request(which, message.SerializeToString())

    async def send(self, request: Request) -> RawReply:
        call = self._method("unary_unary", "ModelInfer", service_pb2.ModelInferResponse)
        try:
            return RawReply({}, await call(request.message, timeout=TIMEOUT_S))
        except grpc.RpcError as exc:
            raise RequestFailed(f"gRPC {exc.code().name}: {exc.details()}") from exc

    def _method(self, kind: str, name: str, response: Any) -> Any:
        """A method of Triton's service, on a channel that is opened where it is used first."""
        if self._channel is None:
            options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            self._channel = grpc.aio.insecure_channel(self._address, options=options)
            path = f"/inference.GRPCInferenceService/{name}"
            self._call = getattr(self._channel, kind)(path, response_deserializer=response.FromString)
        return self._call

    def read(self, reply: RawReply) -> Answer:
        return {
            output.name: _array(output.datatype, output.shape, blob)
            for output, blob in zip(reply.body.outputs, reply.body.raw_output_contents, strict=True)
        }

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()


class StreamedHttp(TritonHttp):
    """Triton's generate_stream: one row a request, and an answer in server-sent events."""

    def request(self, which: tuple[int, ...]) -> Request:
        values = {given.name: self._rows.tensor(given, which) for given in self._rows.inputs}
        path, fields = f"/v2/models/{self._model}/generate_stream", {"Content-Type": "application/json"}
        return Request(which, _message(self._address, path, fields, generate.request_body(values)))

    async def send(self, request: Request) -> RawReply:
        reply = await super().send(request)
        if not reply.pieces or _ERROR in reply.body:
            raise RequestFailed(f"the answer broke off: {reply.body[-200:].decode(errors='replace').strip()}")
        return reply

    def read(self, reply: RawReply) -> Answer:
        return generate.joined(list(generate.pieces(reply.body.splitlines(), self._rows.info)))


class StreamedGrpc(TritonGrpc):
    """Triton's streamed inference, a stream a request; its last response says that it is the last."""

    def request(self, which: tuple[int, ...]) -> Request:
        message = service_pb2.ModelInferRequest.FromString(super().request(which).message)
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        return Request(which, message.SerializeToString())

    async def send(self, request: Request) -> RawReply:
        call = self._method("stream_stream", "ModelStreamInfer", service_pb2.ModelStreamInferResponse)
        parts, pieces = [], list[float]()
        try:
            async for response in call(iter([request.message]), timeout=TIMEOUT_S):
                if response.error_message:
                    raise RequestFailed(f"the answer broke off: {response.error_message}")
                if response.infer_response.outputs:
                    pieces.append(time.perf_counter())
                    parts.append(response.infer_response)
        except grpc.RpcError as exc:
            raise RequestFailed(f"gRPC {exc.code().name}: {exc.details()}") from exc
        if not pieces:
            raise RequestFailed("the answer ended without any piece of it")
        return RawReply({}, parts, tuple(pieces))

    def read(self, reply: RawReply) -> Answer:
        return generate.joined([super(StreamedGrpc, self).read(RawReply({}, part)) for part in reply.body])


class App:
    """The web app's `POST /predict` with a photo, answered in JSON."""

    def __init__(self, address: str, pictures: tuple[bytes, ...]) -> None:
        self._address, self._pictures = address, pictures
        self._connections = HttpConnections(address)

    def request(self, which: tuple[int, ...]) -> Request:
        head = (
            b'Content-Disposition: form-data; name="file"; filename="photo.jpg"\r\nContent-Type: image/jpeg'
        )
        body = b"--%b\r\n%b\r\n\r\n%b\r\n--%b--\r\n" % (_BOUNDARY, head, self._pictures[which[0]], _BOUNDARY)
        kind = f"multipart/form-data; boundary={_BOUNDARY.decode()}"
        fields = {"Accept": "application/json", "Content-Type": kind}
        return Request(which, _message(self._address, "/predict", fields, body))

    async def send(self, request: Request) -> RawReply:
        return await self._connections.exchange(request.message)

    def read(self, reply: RawReply) -> Answer:
        said = json.loads(reply.body)
        return {
            "label": np.array([[said["label"].encode()]], dtype=np.object_),
            "probability": np.array([[said["probability"]]], dtype=np.float32),
            "model": np.array([[said["model"]["name"].encode()]], dtype=np.object_),
        }

    async def close(self) -> None:
        await self._connections.close()


def _placed(regions: Regions, given: Input, which: tuple[int, ...]) -> dict[str, Any]:
    """Where a request's rows lie in shared memory; rows of a request follow one another there."""
    places = [regions[given.name, row] for row in which]
    return {
        "shared_memory_region": _REGION,
        "shared_memory_offset": places[0][0],
        "shared_memory_byte_size": sum(size for _, size in places),
    }


@contextlib.contextmanager
def in_shared_memory(url: str, rows: InputRows, batch: int) -> Iterator[Regions]:
    """The rows in a region that Triton reads; the first rows follow the last once more, for batches."""
    order = [*range(len(rows)), *(at % len(rows) for at in range(batch - 1))]
    blobs = [(given.name, at, raw(rows.values[given.name][at])) for given in rows.inputs for at in order]
    places: dict[tuple[str, int], tuple[int, int]] = {}
    offset = 0
    for name, at, blob in blobs:
        places.setdefault((name, at), (offset, len(blob)))
        offset += len(blob)
    # POSIX shared memory is a file here; tritonclient's own module needs a package that no longer exists.
    path = Path("/dev/shm") / _REGION
    try:
        path.write_bytes(b"".join(blob for *_, blob in blobs))
        with triton(url) as client:
            client.register_system_shared_memory(_REGION, f"/{_REGION}", offset)
            try:
                yield places
            finally:
                client.unregister_system_shared_memory(_REGION)
    finally:
        path.unlink(missing_ok=True)


def _array(datatype: str, shape: Any, blob: bytes) -> Array:
    if datatype == "BYTES":
        return np.asarray(deserialize_bytes_tensor(blob)).reshape(tuple(shape))
    return np.frombuffer(blob, triton_to_np_dtype(datatype)).reshape(tuple(shape))


def requests(wire: Wire, rows: int, batch: int, seed: int) -> list[Request]:
    """Different requests that hold every row: of neighbours, in an order that the seed draws."""
    starts = np.arange(0, rows, min(batch, rows))
    np.random.default_rng(seed).shuffle(starts)
    return [wire.request(tuple((int(start) + at) % rows for at in range(batch))) for start in starts]
