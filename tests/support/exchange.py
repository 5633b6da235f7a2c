"""HTTP for a client that loses nothing: whatever came back before a connection ended is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Unanswered(Exception):
    """A request that got no whole answer; the message says how it ended."""


class LosslessConnection(asyncio.Protocol):
    """One connection; `exchange` sends a request and waits for its answer, also while it still sends."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[HttpAnswer] | None = None
        self.open = False

    async def exchange(self, message: bytes) -> HttpAnswer:
        assert self._transport
        self._received.clear()
        self._answer = asyncio.get_running_loop().create_future()
        if not self.open:
            raise Unanswered("the connection was closed before the request was sent")
        self._transport.write(message)
        return await self._answer

    def close(self) -> None:
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.open = True

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._answer and not self._answer.done() and (answer := whole(bytes(self._received))):
            self.open = self.open and answer.headers.get("connection", "").lower() != "close"
            self._answer.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._answer and not self._answer.done():
            how = "was reset" if exc else "was closed"
            after = "in the middle of an answer" if self._received else "without an answer"
            self._answer.set_exception(Unanswered(f"the connection {how} {after}"))


async def connect(host: str, port: int) -> LosslessConnection:
    try:
        _, connection = await asyncio.get_running_loop().create_connection(LosslessConnection, host, port)
    except OSError as exc:
        raise Unanswered(f"no connection: {exc.strerror or exc}") from exc
    return connection


def whole(received: bytes) -> HttpAnswer | None:
    """The answer, once all of it is there; the app always says how long it is."""
    head, separator, body = received.partition(b"\r\n\r\n")
    if not separator:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    length = int(headers.get("content-length", 0))
    return HttpAnswer(int(first.split()[1]), headers, body[:length]) if len(body) >= length else None
