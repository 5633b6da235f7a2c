"""Triton over gRPC, by NVIDIA's tritonclient; http.py has the same interface."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from http import HTTPStatus
from queue import Empty, SimpleQueue
from typing import Any, Final

from tritonclient.grpc import (
    MAX_GRPC_MESSAGE_SIZE,
    InferenceServerClient,
    InferenceServerException,
    InferInput,
    InferResult,
    aio,
)

from gourmet.contracts import CLIENT_PARAMETER, Array, ModelInfo
from gourmet.triton_client.address import Address, tls_files
from gourmet.triton_client.deadline import SILENCE_S, Deadline
from gourmet.triton_client.errors import (
    NoAnswerInTime,
    NobodyWaits,
    NotTriton,
    TritonError,
    TritonUnreachable,
    refusal,
)
from gourmet.triton_client.tensors import Fields, Headers, Inputs, Outputs, Pieces, datatype_of

# Fields whose content is HTTP's whole answer.
_ANSWERS: Final[dict[str, tuple[str, Any]]] = {
    "get_model_config": ("config", {}),
    "get_model_repository_index": ("models", []),
}
_KEY_PREFIX: Final = "triton-grpc-protocol-"
_STATUS: Final = {
    "StatusCode.INVALID_ARGUMENT": HTTPStatus.BAD_REQUEST,
    "StatusCode.NOT_FOUND": HTTPStatus.NOT_FOUND,
    "StatusCode.UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
}
# gRPC's own messages: a model that is not ready has the status UNAVAILABLE too, with other words.
_NO_CONNECTION: Final = (
    "failed to connect",
    "errors resolv",
    "Socket closed",
    "Connection reset",
    "recvmsg",
    "GOAWAY",
)


class Grpc:
    """The gRPC connection to one server."""

    def __init__(self, at: Address, connect_timeout_s: float, headers: Callable[[], Headers]) -> None:
        self.address = str(at).removeprefix("grpc://")
        self._at, self._connect_timeout_s = at, connect_timeout_s
        self._token, self._headers = at.authorization(), headers
        self._client = self._new_client()

    def _new_client(self) -> Any:
        return _client(InferenceServerClient, self._at, self._connect_timeout_s)

    def call(self, operation: str, target: str, deadline: Deadline, keys: Headers, fields: Fields) -> Any:
        names = target.split("/") if target else []
        as_json = {"as_json": True} if operation.startswith("get_") else {}
        headers = self._token | {_KEY_PREFIX + name: key for name, key in keys.items()}
        try:
            answer = getattr(self._client, operation)(
                *names, **fields, **as_json, headers=headers, client_timeout=deadline.left_s()
            )
        except InferenceServerException as exc:
            raise self._specific_error(exc, deadline) from exc
        if answer is False:  # neither live nor ready
            raise refusal(self.address, HTTPStatus.BAD_REQUEST, f"{target or 'the server'} is not ready")
        return answer.get(*_ANSWERS[operation]) if operation in _ANSWERS else answer

    def infer(self, model: str, inputs: Inputs, deadline: Deadline, request_id: str) -> tuple[str, Outputs]:
        """Ask a model once; cancel the request if the client disconnects."""
        answer = Future[Any]()

        def done(result: Any, error: InferenceServerException | None) -> None:
            answer.set_exception(error) if error else answer.set_result(result)

        call = self._client.async_infer(
            **request_of(model, inputs, deadline, request_id),
            callback=done,
            headers=self._token | {**self._headers()},
            client_timeout=deadline.left_s(),
        )
        try:
            while True:
                try:
                    result = answer.result(SILENCE_S)
                    return result.get_response().model_version, outputs_of(result)
                except TimeoutError:
                    if deadline.is_cancelled():
                        raise NobodyWaits(f"request to {model} cancelled: the client disconnected") from None
        except InferenceServerException as exc:
            raise self._specific_error(exc, deadline) from exc
        finally:
            call.cancel()

    def stream(self, model: ModelInfo, inputs: Inputs, deadline: Deadline, request_id: str) -> Pieces:
        """Yield the pieces of an answer. tritonclient has one stream per client; all share a connection."""
        client, pieces = self._new_client(), SimpleQueue[Any]()
        client.start_stream(
            lambda result, error: pieces.put(error or result),
            stream_timeout=deadline.left_s(),
            headers=self._token | {**self._headers()},
        )
        try:
            with contextlib.suppress(InferenceServerException):  # if the stream failed already, it says why
                client.async_stream_infer(
                    **request_of(model.target, inputs, deadline, request_id), enable_empty_final_response=True
                )
            is_last = False
            while not is_last:
                try:
                    piece = pieces.get(timeout=SILENCE_S)
                except Empty:
                    yield None
                    continue
                if isinstance(piece, InferenceServerException):
                    raise self._specific_error(piece, deadline)
                if piece.get_response().outputs:
                    yield outputs_of(piece)
                is_last = piece.get_response().parameters["triton_final_response"].bool_param
        finally:
            client.stop_stream(cancel_requests=True)
            client.close()

    def close(self) -> None:
        self._client.close()

    def _specific_error(self, exc: InferenceServerException, deadline: Deadline) -> TritonError:
        status, reason = exc.status(), exc.message() or ""  # a failed piece of a stream has no status
        if status == "StatusCode.DEADLINE_EXCEEDED":
            return NoAnswerInTime(deadline.seconds)
        if status == "StatusCode.UNAVAILABLE" and reason.startswith(_NO_CONNECTION):
            return TritonUnreachable.at(self.address, reason)
        return refusal(self.address, _STATUS.get(status, HTTPStatus.INTERNAL_SERVER_ERROR), reason)


class AsyncGrpc:
    """The gRPC client of a load generator, within one event loop; `request_of` makes its requests."""

    def __init__(self, address: str, timeout_s: float) -> None:
        at = Address.of(address)
        self._client = _client(aio.InferenceServerClient, at)
        self._token, self._timeout_s = at.authorization(), timeout_s

    async def replies_to(self, request: dict[str, Any], *, streams: bool) -> AsyncIterator[InferResult]:
        """Yield the answer, or each piece of it that has outputs, for `outputs_of`; raise TritonError."""

        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield request

        try:
            if not streams:
                yield await self._client.infer(**request, headers=self._token, client_timeout=self._timeout_s)
                return
            async for result, error in self._client.stream_infer(
                requests(), stream_timeout=self._timeout_s, headers=self._token
            ):
                if error:
                    raise error
                if result.get_response().outputs:
                    yield result
        except InferenceServerException as exc:
            raise TritonError(f"gRPC {exc}") from exc

    async def close(self) -> None:
        await self._client.close()


def _client(kind: Any, at: Address, connect_timeout_s: float = 20.0) -> Any:
    """Return a client of tritonclient, plain or for event loops."""
    security: dict[str, Any] = {}
    if at.tls():  # raises if its files cannot be used
        ca, certificate, key = tls_files()
        security = {"ssl": True, "root_certificates": ca, "certificate_chain": certificate}
        security["private_key"] = certificate and (key or certificate)
    options = (
        ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_SIZE),
        ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_SIZE),
        ("grpc.primary_user_agent", "gourmet"),
        # How long it tries to connect, as gRPC names it.
        ("grpc.min_reconnect_backoff_ms", int(connect_timeout_s * 1000)),
        # A server that was away is tried again within a second, and not within two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    )
    return kind(at.netloc, channel_args=options, **security)


def request_of(
    model: str, inputs: Inputs, deadline: Deadline | None = None, request_id: str = ""
) -> dict[str, Any]:
    """Return the arguments for tritonclient, tensors included."""
    model_name, _, version = model.partition("/")
    request: dict[str, Any] = {"model_name": model_name, "model_version": version, "request_id": request_id}
    if deadline:
        request["timeout"] = int(deadline.left_s() * 1_000_000)
        request["parameters"] = {CLIENT_PARAMETER: deadline.client} if deadline.client else {}
    request["inputs"] = [_input(name, values) for name, values in inputs.items()]
    return request


def _input(name: str, values: Array) -> InferInput:
    tensor = InferInput(name, values.shape, datatype_of(values))
    tensor.set_data_from_numpy(values)
    return tensor


def outputs_of(result: InferResult) -> Outputs:
    response = result.get_response()
    try:
        return {output.name: result.as_numpy(output.name) for output in response.outputs}
    except (TypeError, ValueError) as exc:
        raise NotTriton(f"the answer of {response.model_name} cannot be read: {exc!r}") from exc
