"""The headers with which Triton lets somebody do what changes it; gourmet.serving.api_keys makes the keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, Literal

from gourmet.client.deadline import Deadline
from gourmet.client.transport import Call, Operation, Reply, Transport

ADMIN_HEADER: Final = "gourmet-admin-key"
MEMORY_HEADER: Final = "gourmet-memory-key"
ADMIN_ENV: Final = "TRITON_ADMIN_KEY"
MEMORY_ENV: Final = "TRITON_MEMORY_KEY"
_LOCKED: Final[frozenset[Operation]] = frozenset({"index", "load", "unload", "register", "unregister"})


def memory_key(env: Mapping[str, str]) -> dict[str, str]:
    """The header that opens a Triton's locked shared memory, if the environment has the key."""
    return {MEMORY_HEADER: env[MEMORY_ENV]} if env.get(MEMORY_ENV) else {}


class KeyedTransport:
    """Sends the keys of one server with what is locked there, and with nothing else."""

    def __init__(self, below: Transport, keys: Mapping[str, str]) -> None:
        self.protocol: Literal["http", "grpc"] = below.protocol
        self.address = below.address
        self._below = below
        self._keys = keys
        self.close = below.close

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        if call.operation in _LOCKED:
            call = replace(call, keys=self._keys)
        yield from self._below.send(call, deadline)
