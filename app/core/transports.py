"""What the app lays around the way to a Triton: the trace of a request, and how long each server takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from app.core import tracing
from gourmet.client.deadline import Deadline
from gourmet.client.errors import NoAnswerInTime, TritonUnreachable
from gourmet.client.transport import Call, Reply, Transport


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


class ObservedTransport:
    """Tells how long a server took to begin its answers, by its configured address."""

    def __init__(self, below: Transport, server: str, observe: Callable[[str, float | None], object]) -> None:
        self.protocol, self.address = below.protocol, below.address
        self._below, self._server, self._observe = below, server, observe
        self.close = below.close

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        if call.operation not in ("infer", "stream"):
            yield from self._below.send(call, deadline)
            return
        began: float | None = time.monotonic()
        try:
            with contextlib.closing(self._below.send(call, deadline)) as replies:  # type: ignore[type-var]
                for reply in replies:
                    if reply is not None and began is not None:
                        self._observe(self._server, time.monotonic() - began)
                        began = None
                    yield reply
        except (TritonUnreachable, NoAnswerInTime):
            self._observe(self._server, None)
            raise
