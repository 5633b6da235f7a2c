"""Triton over gRPC, by tritonclient's generated stubs; the twin of http.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from typing import Any, Final, Literal

import grpc.aio  # type: ignore[import-untyped]
from google.protobuf import json_format
from tritonclient.grpc import MAX_GRPC_MESSAGE_SIZE, service_pb2, service_pb2_grpc

from gourmet.client.address import Address, tls_files
from gourmet.client.deadline import SILENCE_S, Deadline
from gourmet.client.errors import (
    ModelFailed,
    NoAnswerInTime,
    NotTriton,
    TritonError,
    TritonUnreachable,
    refusal,
)
from gourmet.client.tensors import SharedTensor, datatype_of, from_raw, raw
from gourmet.client.transport import Call, Operation, Reply
from gourmet.contracts import CLIENT_PARAMETER, Array

# What each is called here, and which of its request's fields names the target.
_METHODS: Final[dict[Operation, tuple[str, str]]] = {
    "live": ("ServerLive", ""),
    "server": ("ServerMetadata", ""),
    "ready": ("ModelReady", "name"),
    "metadata": ("ModelMetadata", "name"),
    "config": ("ModelConfig", "name"),
    "statistics": ("ModelStatistics", "name"),
    "index": ("RepositoryIndex", ""),
    "load": ("RepositoryModelLoad", "model_name"),
    "unload": ("RepositoryModelUnload", "model_name"),
    "register": ("SystemSharedMemoryRegister", "name"),
    "unregister": ("SystemSharedMemoryUnregister", "name"),
}
# Where HTTP answers what is in here, and not all of it.
_ANSWERS: Final[dict[Operation, str]] = {"config": "config", "index": "models"}
_KEY_PREFIX: Final = "triton-grpc-protocol-"
_STATUS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}
# The same status as of a model that is not ready; these are gRPC's own words, and others a server's.
_NO_CONNECTION: Final = ("failed to connect", "Socket closed", "Connection reset", "recvmsg", "GOAWAY")
_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_SIZE),
    ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_SIZE),
    ("grpc.primary_user_agent", "gourmet"),
    # A server that was away is tried again within a second, and not within two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class GrpcTransport:
    """A server at `address`, as http.py's; it tells silences of a whole answer, none of a streamed one."""

    protocol: Literal["http", "grpc"] = "grpc"

    def __init__(self, address: str, connect_timeout_s: float) -> None:
        at = Address.of(address)
        self.address = str(at).removeprefix("grpc://")
        self._connect_timeout_s = connect_timeout_s
        self._headers = at.authorization()
        self._channel = _channel(grpc, at)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._is_connected = False

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        self._connect(deadline)
        keys = {_KEY_PREFIX + name: key for name, key in call.keys.items()}
        metadata = tuple({**self._headers, **call.headers, **keys}.items())
        named: dict[str, Any] = {"timeout": deadline.left_s(), "metadata": metadata}
        try:
            if call.operation == "infer":
                yield from self._whole(self._stub.ModelInfer.future(infer_request(call, deadline), **named))
            elif call.operation == "stream":
                yield from self._stream(
                    self._stub.ModelStreamInfer(iter([infer_request(call, deadline)]), **named), call
                )
            else:
                yield self._control(call, named)
        except grpc.RpcError as exc:
            raise self._explained(exc, deadline) from exc

    def close(self) -> None:
        self._channel.close()

    def _connect(self, deadline: Deadline) -> None:
        """The first time, tell a server that is away from one that refuses."""
        if self._is_connected:
            return
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(timeout=min(self._connect_timeout_s, deadline.left_s()))
        except grpc.FutureTimeoutError:
            ready.cancel()
            raise TritonUnreachable.at(self.address, "over gRPC") from None
        self._is_connected = True

    def _control(self, call: Call, named: dict[str, Any]) -> Reply:
        method, target = _METHODS[call.operation]
        model, _, version = call.target.partition("/")
        named_by = {target: model} | ({"version": version} if version else {}) if target else {}
        fields = {**call.fields, **named_by}
        request = json_format.ParseDict(_parameters(fields), getattr(service_pb2, f"{method}Request")())
        answer = json_format.MessageToDict(
            getattr(self._stub, method)(request, **named), preserving_proto_field_name=True
        )
        if call.operation in ("live", "ready") and not answer.get(call.operation):
            raise refusal(self.address, HTTPStatus.BAD_REQUEST, f"{call.target or 'the server'} is not ready")
        if name := _ANSWERS.get(call.operation):
            return Reply(answer.get(name, {} if name == "config" else []))
        return Reply(answer)

    def _whole(self, answer: Any) -> Iterator[Reply | None]:
        try:
            while True:
                try:
                    yield answer_of(answer.result(SILENCE_S))
                    return
                except grpc.FutureTimeoutError:
                    yield None
        finally:
            answer.cancel()

    def _stream(self, responses: Any, call: Call) -> Iterator[Reply]:
        try:
            for response in responses:
                if reason := response.error_message:
                    raise ModelFailed(reason, HTTPStatus.OK, f"{call.target} could not answer: {reason}")
                if response.infer_response.outputs:
                    yield answer_of(response.infer_response)
        finally:
            responses.cancel()

    def _explained(self, exc: Any, deadline: Deadline) -> Exception:
        code, reason = exc.code(), exc.details() or ""
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return NoAnswerInTime(deadline.seconds)
        if code == grpc.StatusCode.UNAVAILABLE and reason.startswith(_NO_CONNECTION):
            return TritonUnreachable.at(self.address, reason)
        return refusal(self.address, _STATUS.get(code, HTTPStatus.INTERNAL_SERVER_ERROR), reason)


class AsyncGrpc:
    """The same for a load generator, within one event loop; `infer_request` makes its requests before."""

    def __init__(self, address: str) -> None:
        at = Address.of(address)
        self._metadata = tuple(at.authorization().items())
        self._channel = _channel(grpc.aio, at)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def infer(self, request: Any, timeout_s: float) -> Any:
        """The answer as it came, for `answer_of`; raise TritonError."""
        try:
            return await self._stub.ModelInfer(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as exc:
            raise TritonError(f"gRPC {exc.code().name}: {exc.details()}") from exc

    async def stream(self, request: Any, timeout_s: float) -> AsyncIterator[Any]:
        """Each piece of an answer that has outputs."""
        try:
            named: dict[str, Any] = {"timeout": timeout_s, "metadata": self._metadata}
            async for response in self._stub.ModelStreamInfer(iter([request]), **named):
                if response.error_message:
                    raise TritonError(f"the answer broke off: {response.error_message}")
                if response.infer_response.outputs:
                    yield response.infer_response
        except grpc.RpcError as exc:
            raise TritonError(f"gRPC {exc.code().name}: {exc.details()}") from exc

    async def close(self) -> None:
        await self._channel.close()


def _channel(kind: Any, at: Address) -> Any:
    """Of `grpc` or of `grpc.aio`."""
    if not at.tls():  # which raises where its files cannot be used
        return kind.insecure_channel(at.place, options=_OPTIONS)
    ca, certificate, key = (each.read_bytes() if each else None for each in tls_files())
    with_tls = grpc.ssl_channel_credentials(ca, certificate and (key or certificate), certificate)
    return kind.secure_channel(at.place, with_tls, options=_OPTIONS)


def infer_request(call: Call, deadline: Deadline | None = None) -> Any:
    """The message that asks a model, with its tensors."""
    name, _, version = call.target.partition("/")
    request = service_pb2.ModelInferRequest(model_name=name, model_version=version, id=call.request_id)
    if call.operation == "stream":
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    if deadline:
        request.parameters["timeout"].int64_param = int(deadline.left_s() * 1_000_000)
        if deadline.client:
            request.parameters[CLIENT_PARAMETER].string_param = deadline.client
    for name, values in call.inputs.items():
        tensor = request.inputs.add(name=name, shape=values.shape)
        if isinstance(values, SharedTensor):
            tensor.datatype = values.datatype
            tensor.parameters["shared_memory_region"].string_param = values.region
            tensor.parameters["shared_memory_offset"].int64_param = values.offset
            tensor.parameters["shared_memory_byte_size"].int64_param = values.nbytes
        else:
            tensor.datatype = datatype_of(values)
            request.raw_input_contents.append(raw(values))
    return request


def answer_of(response: Any) -> Reply:
    """The outputs of an answer, and the fields that HTTP would have beside them."""
    outputs: dict[str, Array] = {}
    try:
        for each, data in zip(response.outputs, response.raw_output_contents, strict=True):
            outputs[each.name] = from_raw(data, each.datatype, tuple(each.shape))
    except (TypeError, ValueError) as exc:
        raise NotTriton(f"the answer of {response.model_name} cannot be read: {exc!r}") from exc
    return Reply({"model_version": response.model_version}, outputs)


def _parameters(fields: dict[str, Any]) -> dict[str, Any]:
    """Strings among a request's parameters say here that they are strings, and files that they are bytes."""
    given = {
        name: {"bytes_param" if name.startswith("file:") else "string_param": value}
        for name, value in fields.get("parameters", {}).items()
    }
    return {**fields, "parameters": given} if given else fields
