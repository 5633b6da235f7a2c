"""What is asked of a Triton, what comes back, and the one method of everything that carries it there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
    "regions",
]
# After so long without a piece of a streamed answer its reader is asked whether it still wants one.
SILENCE_S: Final = 1.0


@dataclass(frozen=True)
class Call:
    """One question; `target` names the model or the shared memory that it is about."""

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

        Closing the iterator cancels what the server still does for it. Raise TritonError.
        """

    def close(self) -> None: ...
