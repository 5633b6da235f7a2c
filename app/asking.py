"""Triton as the app asks it: its errors are those of the app, and its calls are spans of a trace."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from dataclasses import replace

from app.core import tracing
from app.core.errors import as_serving_errors
from gourmet.client.deadline import Deadline
from gourmet.client.keys import memory_key
from gourmet.client.shared_memory import SharedMemory
from gourmet.client.statistics import ModelStatistics
from gourmet.client.tensors import Inputs
from gourmet.client.transport import Call, Reply, Transport
from gourmet.client.triton import Answer, Triton, transports
from gourmet.contracts import ModelInfo, Tensors


class TracedTransport:
    """Has a server go on with the trace of a request."""

    def __init__(self, below: Transport) -> None:
        self.protocol, self.address = below.protocol, below.address
        self._below = below
        self.close = below.close

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        if call.operation not in ("infer", "stream"):
            yield from self._below.send(call, deadline)
            return
        with tracing.span("triton", model=call.target):
            yield from self._below.send(replace(call, headers=tracing.headers()), deadline)


class AppTriton(Triton):
    """The servers at `addresses`, with which memory is shared where they prove to share it."""

    def __init__(self, addresses: str, connect_timeout_s: float = 2.0) -> None:
        keys = memory_key(os.environ)
        super().__init__(
            TracedTransport(SharedMemory(each, keys)) for each in transports(addresses, connect_timeout_s)
        )

    def describe(self, model: str, deadline: Deadline | None = None) -> ModelInfo:
        with as_serving_errors():
            return super().describe(model, deadline)

    def statistics(self, model: str = "", deadline: Deadline | None = None) -> list[ModelStatistics]:
        with as_serving_errors():
            return super().statistics(model, deadline)

    def infer(
        self, model: str, inputs: Inputs, deadline: Deadline | None = None, request_id: str = ""
    ) -> Answer:
        with as_serving_errors():
            return super().infer(model, inputs, deadline, request_id)

    def stream(
        self, model: ModelInfo, inputs: Tensors, deadline: Deadline | None = None, request_id: str = ""
    ) -> Generator[Tensors | None, None, None]:
        with as_serving_errors():
            yield from super().stream(model, inputs, deadline, request_id)
