"""A loop that the client turns: a request for each word, until the answer is whole.

A system whose models compute one step at a time says in its `client_loop.py`, by a CLIENT_LOOP, how that
is done.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, Protocol, runtime_checkable

from gourmet.contracts import ModelInfo, Tensors
from gourmet.measure.inputs import DataSource, InputRows, examples_of, one_row, without_rows
from gourmet.systems import registry

# Yields the inputs of each request, is sent its outputs, and returns the answer.
Asking = Generator[Tensors, Tensors, Tensors]

_MODULE: Final = "client_loop"


@runtime_checkable
class ClientLoop(Protocol):
    """A system's CLIENT_LOOP, in its client_loop.py."""

    def ask(self, example: bytes) -> Asking:
        """Ask about one of the system's examples, a row a request."""


def of(system: str) -> ClientLoop:
    return registry.piece(system, _MODULE, "CLIENT_LOOP", ClientLoop)  # type: ignore[type-abstract]


def first_steps(info: ModelInfo, system: str, source: DataSource) -> InputRows:
    """Return the rows that such a client sends first. Every step costs the same."""
    loop = of(system)
    examples, about = examples_of(registry.load(system), source)
    requests = [next(loop.ask(example)) for example in examples]
    inputs = without_rows(info)
    values = {spec.name: [one_row(request[spec.name], spec) for request in requests] for spec in inputs}
    return InputRows(info, inputs, values, about, tuple(examples), system)
