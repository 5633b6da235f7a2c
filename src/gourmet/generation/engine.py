"""The engine computes a source's memory once, and a step of the loop for many rows at a time.

A row attends to its memory: keys and values for every layer of the decoder, of the shape [layers, 2, heads,
positions, size]. A position is a word of a sentence or a patch of a picture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import onnxruntime

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
# Eight-bit products, which give a row the same bits alone and among others. MatMulNBits is in older files.
_EXACT_PRODUCTS: Final = (b"MatMulIntegerToFloat", b"MatMulNBits")
# A limit for graphs that users bring: no more names are looked up.
_MAX_LAYERS: Final = 48
_OUTPUTS: Final = ("tokens", "scores", "added")
# Runs a graph: takes the names of the requested outputs, and the inputs by name.
Run = Callable[[Sequence[str], Mapping[str, Any]], Sequence[Any]]


class Likeliest(NamedTuple):
    """The likeliest next tokens of each row, best first, with their log probabilities."""

    tokens: npt.NDArray[np.int32]
    scores: Floats
    added: Floats  # keys and values of the newest token: [rows, layers, 2, heads, 1, size]


class Engine(ABC):
    """Compute steps with a decoder's graph. A subclass of each system adds how sources are encoded."""

    # The positions of every memory, if all have the same number: a picture's grid has.
    positions: int | None = None
    # At most this many sources are encoded together, since the first one waits for all of them.
    max_sources: int = 64
    # A step computes at least this many rows: in 32 bits a single row would be rounded in another way.
    min_rows: int = 2
    # Layers of a decoder that has separate inputs for the keys and values of each; 0: one input for all.
    layers_apart: int = 0

    def __init__(self, encoder: Run, decoder: Run) -> None:
        self._encoder, self._decoder = encoder, decoder

    @classmethod
    def of_graphs(cls, encoder: bytes, decoder: bytes, threads: int, *more: Any) -> Self:
        """Open both graphs with ONNX Runtime; `more` are the other arguments of a subclass."""
        engine = cls(onnx_graph(encoder, threads), onnx_graph(decoder, threads), *more)
        engine.min_rows, engine.layers_apart = min_rows(decoder), layers_apart(decoder)
        return engine

    def is_brief(self, source: Any) -> bool:
        """Return whether encoding takes no longer than one or two steps: then the loop's thread does it."""
        return False

    @abstractmethod
    def encode(self, sources: Sequence[Any]) -> Sequence[Floats]:
        """Return the memory of each source; raise ValueError for a source that cannot be used."""

    def step(
        self, tokens: Integers, lengths: Integers, cache: Floats, memory: Floats, mask: npt.NDArray[np.int32]
    ) -> Likeliest:
        """Return the likeliest tokens after `tokens`, for rows that have `lengths` tokens in `cache`."""
        inputs = {"token": tokens[:, None], "length": lengths[:, None], "mask": mask}
        for name, array in (("cache", cache), ("memory", memory)):
            inputs |= _by_layer(name, array, self.layers_apart) if self.layers_apart else {name: array}
        return Likeliest(*self._decoder(_OUTPUTS, inputs))


def part_names(of: str, layers: int) -> list[str]:
    """Return the names of a decoder's separate inputs for the keys and values of each layer."""
    return [f"{of}.{layer}.{part}" for layer in range(layers) for part in ("keys", "values")]


def _by_layer(name: str, array: Floats, layers: int) -> dict[str, Floats]:
    layers_first = array.swapaxes(0, 2).swapaxes(0, 1)  # layers, keys and values, rows
    parts = (part for layer in layers_first for part in layer)
    return dict(zip(part_names(name, layers), parts, strict=True))


def min_rows(graph: bytes) -> int:
    return 1 if any(product in graph for product in _EXACT_PRODUCTS) else Engine.min_rows


def layers_apart(graph: bytes) -> int:
    names = part_names("cache", _MAX_LAYERS)[::2]
    return next((layer for layer, name in enumerate(names) if name.encode() not in graph), _MAX_LAYERS)


def onnx_graph(graph: bytes, threads: int) -> Run:
    """Open a graph with ONNX Runtime on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that spin while they wait would take the CPU from other models.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    # The session keeps the file, as large as the network, to try other providers. There are none.
    session._model_bytes = None
    run: Run = session.run
    return run
