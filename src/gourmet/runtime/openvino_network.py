"""An ONNX file run on the CPU by OpenVINO instead of ONNX Runtime, where a model's config asks for it.

It answers like an ONNX Runtime session's `run`. The ONNX Runtime backend uses it inside Triton, and
`gourmet bench peers` to know what the answers must be.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gourmet.errors import GourmetError
from gourmet.runtime.cpu_engine import ENGINE_PARAMETER

Array = npt.NDArray[Any]


def new_core() -> Any:
    """openvino.Core(), without the tools for converting models that openvino imports.

    They report that over the network; without them it imports in two thirds of the time, and says nothing to
    anybody.
    """
    sys.modules.setdefault("openvino.tools.ovc", None)  # type: ignore[arg-type]
    import openvino

    return openvino.Core()


class OpenVinoNetwork:
    """The file, compiled for so many threads.

    Of a batched model with rows of a fixed shape the network for a single row is what is compiled,
    which rows then go through one by one: on a CPU a batch gains nothing, and a network of known
    shapes is faster than one of any (docs/performance.md).
    """

    def __init__(self, path: Path, threads: int, *, batched: bool) -> None:
        core = new_core()
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            # Processors with bfloat16 would round to it, and answer otherwise than all the others.
            "INFERENCE_PRECISION_HINT": "f32",
            # Every instance is a process that would pin its threads to the same first cores.
            "ENABLE_CPU_PINNING": False,
        }
        try:
            model = core.read_model(path)
            self._row_by_row = batched and _for_one_row(model)
            compiled = core.compile_model(model, "CPU", options)
        except RuntimeError as exc:
            raise GourmetError(
                # Before the last line OpenVINO's message names its own source files.
                f"OpenVINO cannot run {path.name}: {str(exc).strip().splitlines()[-1]}; "
                f'ONNX Runtime does where the parameter "{ENGINE_PARAMETER}" is left out'
            ) from exc
        self._outputs = {name: port for port in compiled.outputs for name in port.get_names()}
        self._request = compiled.create_infer_request()

    def run(self, requested: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The wanted outputs in their order (None: all, in the file's), as arrays of their own."""
        names = list(self._outputs) if requested is None else requested
        rows = len(next(iter(feeds.values()))) if self._row_by_row else 1
        if rows == 1:
            return self._infer(names, feeds)
        each = [
            self._infer(names, {name: array[row : row + 1] for name, array in feeds.items()})
            for row in range(rows)
        ]
        return [np.concatenate(parts) for parts in zip(*each, strict=True)]

    def _infer(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        answer = self._request.infer(dict(feeds), share_inputs=True)
        return [answer[self._outputs[name]] for name in names]


def _for_one_row(model: Any) -> bool:
    """Give every input the first dimension 1; false, and nothing done, where more than that one is free."""
    shapes = {port: port.get_partial_shape() for port in (*model.inputs, *model.outputs)}
    for shape in shapes.values():
        free = [dim.is_dynamic for dim in shape] if shape.rank.is_static else []
        if not free or not free[0] or any(free[1:]):
            return False
    model.reshape({port: [1, *(dim.get_length() for dim in list(shapes[port])[1:])] for port in model.inputs})
    return True
