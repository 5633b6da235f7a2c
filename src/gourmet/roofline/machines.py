"""What a machine can compute and move: measured here and now, or published for a GPU."""

from __future__ import annotations

import timeit
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx.parser

from gourmet.runtime.instances import available_cpus

# Large enough that a product is not about its memory, small enough to be repeated in a second or two.
_EDGE: Final = 1024
_COPY_MB: Final = 256
_RUNS: Final = 30


@dataclass(frozen=True)
class Machine:
    """Operations and bytes a second, at best."""

    name: str
    fp32: float
    int8: float
    bandwidth: float
    source: str

    def peak(self, quantized: bool) -> float:
        return self.int8 if quantized else self.fp32

    def ridge(self, quantized: bool = False) -> float:
        """Operations a byte from which on the computing, not the memory, is the limit."""
        return self.peak(quantized) / self.bandwidth


_SHEETS: Final = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text())
GPUS: Final = {name: Machine(**sheet) for name, sheet in _SHEETS.items()}


def measure() -> Machine:
    """This machine: products of matrices in ONNX Runtime, which serves here, and a copy by all CPUs."""
    cpus, work = available_cpus(), 2 * _EDGE**3
    return Machine(
        f"this machine, {cpus} CPU{'s' if cpus > 1 else ''}",
        work / _best(_product("MatMul", ("float", "float", "float"), cpus)),
        work / _best(_product("MatMulInteger", ("uint8", "int8", "int32"), cpus)),
        _copy(cpus),
        f"measured: best product of {_EDGE}×{_EDGE} matrices in ONNX Runtime, best copy of {_COPY_MB} MB",
    )


def _product(op: str, types: tuple[str, str, str], threads: int) -> Callable[[], Any]:
    """A run of a product of two matrices; `types` are ONNX's of both and of the result."""
    import onnxruntime as ort

    a, b, c = (f"{kind}[{_EDGE}, {_EDGE}]" for kind in types)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> product ({a} a, {b} b) => ({c} c) {{ c = {op}(a, b) }}'
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = np.random.default_rng(0).integers(0, 100, (_EDGE, _EDGE))
    types_of = {"float": np.float32, "int8": np.int8, "uint8": np.uint8}
    feeds = {name: values.astype(types_of[kind]) for name, kind in zip("ab", types, strict=False)}
    return lambda: session.run(None, feeds)


def _copy(cpus: int) -> float:
    """Bytes read and written a second; each CPU copies a part of its own."""
    source = np.ones(_COPY_MB << 20, np.uint8)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(target, cpus), np.array_split(source, cpus), strict=True))
    with ThreadPoolExecutor(cpus) as pool:
        best = _best(lambda: list(pool.map(lambda part: np.copyto(*part), parts)))
    return 2 * source.nbytes / best


def _best(run: Callable[[], Any]) -> float:
    """The seconds of the fastest run: others had to share the machine."""
    return min(timeit.repeat(run, number=1, repeat=_RUNS))
