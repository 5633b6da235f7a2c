"""What computes: a source's memory once, and a step of the loop for many rows at a time.

A memory is what a row attends to: keys and values for every layer of the decoder, [layers, 2, heads, places,
size]. A place is a word of a sentence or a patch of a picture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import onnxruntime

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
# Products of eight bits, of which a row has the same bits alone as among others; the latter in older files.
_ROWS_APART: Final = (b"MatMulIntegerToFloat", b"MatMulNBits")
# Of what somebody brought, no more names are looked for.
_MOST_LAYERS: Final = 48
_OUTPUTS: Final = ("tokens", "scores", "added")
# Runs a graph: the names of the outputs that are needed, and its inputs by name.
Run = Callable[[Sequence[str], Mapping[str, Any]], Sequence[Any]]


class Likeliest(NamedTuple):
    """Of each row, the likeliest next tokens, best first, with the logarithm of their probability."""

    tokens: npt.NDArray[np.int32]
    scores: Floats
    added: Floats  # keys and values of the newest token: [rows, layers, 2, heads, 1, size]


class Engine(ABC):
    """Steps by a decoder's graph, whatever runs it; a system adds how it encodes."""

    # Of every memory, where all have the same, as those of a picture's grid do.
    places: int | None = None
    # Sources that are encoded together, at most: where it gains nothing, the first waits for all others.
    max_sources: int = 64
    # Of a step: in 32 bits the products of a row alone round otherwise, and an empty row goes with it.
    fewest_rows: int = 2
    # Of a decoder whose keys and values are inputs of their own; each of those lies together in memory then.
    layers_apart: int = 0

    def __init__(self, decoder: Run) -> None:
        self._decoder = decoder

    def fit(self, graph: bytes) -> None:
        """What a step is given depends on how the decoder's graph was made."""
        self.fewest_rows, self.layers_apart = fewest_rows(graph), layers_apart(graph)

    def is_brief(self, source: Any) -> bool:
        """Whether encoding it takes no longer than a step or two: then the loop does it itself."""
        return False

    @abstractmethod
    def encode(self, sources: Sequence[Any]) -> Sequence[Floats]:
        """The memory of each source; ValueError for a source that cannot be used."""

    def step(
        self, tokens: Integers, lengths: Integers, cache: Floats, memory: Floats, mask: npt.NDArray[np.int32]
    ) -> Likeliest:
        """What may follow `tokens`, in rows that have `lengths` tokens in `cache` already."""
        inputs = {"token": tokens[:, None], "length": lengths[:, None], "mask": mask}
        for name, of_all in (("cache", cache), ("memory", memory)):
            inputs |= _parts(name, of_all, self.layers_apart) if self.layers_apart else {name: of_all}
        return Likeliest(*self._decoder(_OUTPUTS, inputs))


def part_names(of: str, layers: int) -> list[str]:
    """How a decoder calls the keys and values of its layers where they are inputs of their own."""
    return [f"{of}.{layer}.{part}" for layer in range(layers) for part in ("keys", "values")]


def _parts(name: str, of_all: Floats, layers: int) -> dict[str, Floats]:
    both = of_all.swapaxes(0, 2).swapaxes(0, 1)  # layers, two, rows
    return dict(zip(part_names(name, layers), (each for layer in both for each in layer), strict=True))


def fewest_rows(graph: bytes) -> int:
    return 1 if any(product in graph for product in _ROWS_APART) else Engine.fewest_rows


def layers_apart(graph: bytes) -> int:
    names = part_names("cache", _MOST_LAYERS)[::2]
    return next((layer for layer, name in enumerate(names) if name.encode() not in graph), _MOST_LAYERS)


def onnx_graph(graph: bytes, threads: int) -> Run:
    """ONNX Runtime on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that wait by computing would take the processor from those of other models.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    # It keeps the file, as large as the network itself, to try other providers with, of which there are none.
    session._model_bytes = None
    run: Run = session.run
    return run
