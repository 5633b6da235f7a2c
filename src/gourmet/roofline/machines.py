"""Compute and memory rates of a machine, measured here or published for a GPU."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass
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
        """The operations per byte above which computing is the limit, not memory."""
        return self.peak(quantized) / self.bandwidth


# Dense figures of NVIDIA's data sheets: fp32 of the CUDA cores, int8 of the tensor cores.
GPUS: Final = {
    "t4": Machine("T4", 8.1e12, 130e12, 320e9, "NVIDIA T4 data sheet, 2019"),
    "a100": Machine("A100 80 GB SXM", 19.5e12, 624e12, 2039e9, "NVIDIA A100 80GB data sheet, 2021"),
    "l4": Machine("L4", 30.3e12, 242.5e12, 300e9, "NVIDIA L4 data sheet, 2023"),
    "h100": Machine("H100 SXM", 67e12, 1979e12, 3350e9, "NVIDIA H100 data sheet, 2023"),
}


def measure() -> Machine:
    """Measure this machine by matrix products in ONNX Runtime, and by a copy.

    The best of several runs by one thread's own time, times the CPUs: what else runs takes nothing away.
    """
    cpus, work = available_cpus(), 2 * _EDGE**3
    return Machine(
        f"this machine, {cpus} CPU{'s' if cpus > 1 else ''}",
        cpus * _rate(work, _product("MatMul", ("float", "float", "float"))),
        cpus * _rate(work, _product("MatMulInteger", ("uint8", "int8", "int32"))),
        cpus * _rate(2 * _COPY_MB << 20, _copy()),
        f"measured: best product of {_EDGE}×{_EDGE} matrices on a thread of ONNX Runtime, best copy of "
        f"{_COPY_MB} MB, the best of {_RUNS} runs times {cpus}",
    )


def _product(op: str, types: tuple[str, str, str]) -> Callable[[], Any]:
    """Return a run of a matrix product on one thread; `types` are ONNX types of factors and result."""
    import onnxruntime as ort

    a, b, c = (f"{kind}[{_EDGE}, {_EDGE}]" for kind in types)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> product ({a} a, {b} b) => ({c} c) {{ c = {op}(a, b) }}'
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = np.random.default_rng(0).integers(0, 100, (_EDGE, _EDGE))
    types_of = {"float": np.float32, "int8": np.int8, "uint8": np.uint8}
    feeds = {name: values.astype(types_of[kind]) for name, kind in zip("ab", types, strict=False)}
    return lambda: session.run(None, feeds)


def _copy() -> Callable[[], Any]:
    source = np.ones(_COPY_MB << 20, np.uint8)
    target = np.zeros_like(source)
    return lambda: np.copyto(target, source)


def _rate(amount: float, run: Callable[[], Any]) -> float:
    """Return the best rate of several runs, a second."""
    return amount / min(timeit.repeat(run, timer=time.thread_time, number=1, repeat=_RUNS))
