"""A process that opens one ONNX file from outside, and answers rows as the network does.

python -m gourmet.measure.onnx_process LIMITS        # see gourmet.runtime.sandbox
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from gourmet.contracts import Array, Tensors
from gourmet.runtime import sandbox
from gourmet.runtime.bounded_reading import read_bytes
from gourmet.runtime.sandbox import Facts, Limits, Refused, Sandbox

# For opening a file, and for each row that it is asked about.
OPENING_S: Final = 60.0
_OPENING_BYTES: Final = 2 << 30


def answers(path: Path, feeds: Iterator[Tensors]) -> Iterator[dict[str, Array]]:
    """What the network answers each of them, by another process within limits; raise Refused or Ended."""
    limits = Limits(OPENING_S, OPENING_S, _OPENING_BYTES + 4 * path.stat().st_size)
    with Sandbox("gourmet.measure.onnx_process", limits) as process:
        process.ask({"path": str(path.resolve())})
        for each in feeds:
            yield _unpacked(*process.ask(*_packed(each)))


def _packed(tensors: Tensors) -> tuple[Facts, bytes]:
    if any(each.dtype == np.object_ for each in tensors.values()):  # which would be read back by a pickle
        raise Refused("", "it takes or gives texts, and numbers alone are compared")
    buffer = io.BytesIO()
    np.savez(buffer, *tensors.values())
    return {"names": list(tensors)}, buffer.getvalue()


def _unpacked(facts: Facts, data: bytes) -> dict[str, Array]:
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        return {name: held[f"arr_{place}"] for place, name in enumerate(facts["names"])}


class _ReferenceFile:
    """The file of the first question, and then answers to rows."""

    def __init__(self) -> None:
        self._session: Any = None

    def answer(self, facts: Facts, data: bytes) -> tuple[Facts, bytes]:
        import onnxruntime

        from gourmet.tasks.classification.onnx_process import in_one_file

        if self._session is None:
            in_one_file(content := read_bytes(Path(facts["path"]), _OPENING_BYTES))
            self._session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
            return {}, b""
        names = [output.name for output in self._session.get_outputs()]
        found = self._session.run(None, _unpacked(facts, data))
        return _packed(dict(zip(names, found, strict=True)))


if __name__ == "__main__":
    sandbox.serve(sandbox.in_a_sentence(_ReferenceFile().answer))
