"""Triton over gRPC for a load generator, which sends asynchronously what was made ready before.

Over HTTP such a one sends what http.py's `path_of` and `body_of` say, and has `tensors.read_answer` read it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2_grpc

from gourmet.client.errors import TritonError
from gourmet.client.grpc import OPTIONS


class AsyncGrpc:
    """A server at `address` (host:port), within one event loop; `grpc.infer_request` makes the requests."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def infer(self, request: Any, timeout_s: float) -> Any:
        """The answer as it came, for `grpc.answer_of`; raise TritonError."""
        try:
            return await self._stub.ModelInfer(request, timeout=timeout_s)
        except grpc.RpcError as exc:
            raise TritonError(f"gRPC {exc.code().name}: {exc.details()}") from exc

    async def stream(self, request: Any, timeout_s: float) -> AsyncIterator[Any]:
        """Each piece of an answer that has outputs."""
        try:
            async for response in self._stub.ModelStreamInfer(iter([request]), timeout=timeout_s):
                if response.error_message:
                    raise TritonError(f"the answer broke off: {response.error_message}")
                if response.infer_response.outputs:
                    yield response.infer_response
        except grpc.RpcError as exc:
            raise TritonError(f"gRPC {exc.code().name}: {exc.details()}") from exc

    async def close(self) -> None:
        await self._channel.close()
