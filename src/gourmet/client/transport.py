"""What is asked of a Triton, what comes back, and the one method of everything that carries it there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

from gourmet.client.deadline import Deadline
from gourmet.client.tensors import Inputs
from gourmet.contracts import Tensors

Operation = Literal[
    "live",
    "server",
    "ready",
    "metadata",
    "config",
    "statistics",
    "infer",
    "stream",
    # What may be locked, and then needs a key.
    "index",
    "load",
    "unload",
    "register",
    "unregister",
]
# What changes a server may be locked, and then needs a key.
_LOCKED: Final[frozenset[Operation]] = frozenset({"index", "load", "unload", "register", "unregister"})


@dataclass(frozen=True)
class Call:
    """One question; `target` names the model, as NAME or NAME/VERSION, or the shared memory it is about."""

    operation: Operation
    target: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=dict)
    request_id: str = ""
    # Of a streamed answer, which over HTTP does not say the types of its outputs.
    datatypes: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """`fields` are the JSON that HTTP answers, whatever the protocol."""

    fields: Any
    outputs: Tensors = field(default_factory=dict)


class Transport(Protocol):
    """A way to a server; a balancer, a tracer or a double for tests is one too, with others below it.

    Any number of threads may use it at a time.
    """

    protocol: Literal["http", "grpc"]
    address: str

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        """One reply, or those of a streamed answer as they come; None after each `SILENCE_S` without one.

        Closing the iterator cancels what the server still does for it: over HTTP, whose whole answers tell no
        silences either, that is streamed answers alone. Raise TritonError.
        """

    def close(self) -> None: ...


class WholeAnswersOver:
    """Asks for whole answers at `whole`, and for everything else `below`.

    That is a way for those who may leave: only gRPC tells Triton that nobody waits for a whole answer.
    """

    def __init__(self, whole: Transport, below: Transport) -> None:
        self.protocol: Literal["http", "grpc"] = below.protocol
        self.address = below.address
        self._whole, self._below = whole, below

    def send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        return (self._whole if call.operation == "infer" else self._below).send(call, deadline)

    def close(self) -> None:
        self._whole.close()
        self._below.close()


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
