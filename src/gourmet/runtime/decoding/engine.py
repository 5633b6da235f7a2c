"""What computes: a sentence's memory once, and a step of the loop for many rows at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import onnxruntime

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

ENCODER: Final = "encoder.onnx"
DECODER: Final = "decoder.onnx"


class Shape(NamedTuple):
    """Of keys and values: layers of the decoder, heads, and numbers of each."""

    layers: int
    heads: int
    size: int


class Likeliest(NamedTuple):
    """Of each row, the likeliest next words, best first, with the logarithm of their probability."""

    tokens: npt.NDArray[np.int32]
    scores: Floats
    added: Floats  # keys and values of the newest word: [rows, layers, 2, heads, 1, size]


class Engine(Protocol):
    @property
    def shape(self) -> Shape: ...

    def encode(self, ids: Integers, mask: npt.NDArray[np.int32]) -> Floats:
        """The memory of some sentences: [rows, layers, 2, heads, words, size]."""

    def step(
        self,
        tokens: Integers,
        lengths: Integers,
        cache: Floats,
        memory: Floats,
        mask: npt.NDArray[np.int32],
    ) -> Likeliest:
        """What may follow `tokens`, in rows that have so many words in `cache` already."""


class OnnxEngine:
    """ONNX Runtime; fulfils Engine."""

    def __init__(self, files: Mapping[str, bytes], threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads that wait by computing would take the processor from those of other models.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._encoder, self._decoder = (
            onnxruntime.InferenceSession(files[name], options, providers=["CPUExecutionProvider"])
            for name in (ENCODER, DECODER)
        )
        layers, _, heads, _, size = next(
            each.shape[1:] for each in self._decoder.get_inputs() if each.name == "cache"
        )
        self.shape = Shape(layers, heads, size)

    def encode(self, ids: Integers, mask: npt.NDArray[np.int32]) -> Floats:
        (memory,) = self._encoder.run(["memory"], {"ids": ids, "mask": mask})
        return memory  # type: ignore[no-any-return]

    def step(
        self,
        tokens: Integers,
        lengths: Integers,
        cache: Floats,
        memory: Floats,
        mask: npt.NDArray[np.int32],
    ) -> Likeliest:
        given: Mapping[str, Any] = {
            "token": tokens[:, None],
            "length": lengths[:, None],
            "cache": cache,
            "memory": memory,
            "mask": mask,
        }
        found: Sequence[Any] = self._decoder.run(["tokens", "scores", "added"], given)
        return Likeliest(*found)
