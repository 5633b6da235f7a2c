"""What a machine can compute and move: measured here and now, or published for a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
import onnx.parser

from gourmet.runtime.instances import available_cpus

# Large enough that a product is not about its memory, small enough to be repeated a few times a second.
_EDGE: Final = 1024
_COPY_MB: Final = 256
_SECONDS: Final = 1.0


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


def _gpu(name: str, fp32: float, int8: float | None, gigabytes: float, sheet: str) -> Machine:
    """From the units of the data sheets: tera-operations, without sparsity, and GB a second."""
    return Machine(name, fp32 * 1e12, (int8 or fp32) * 1e12, gigabytes * 1e9, sheet)


# Dense figures of NVIDIA's data sheets (named in each row); fp32 is that of the CUDA cores, int8 that of the
# tensor cores where there are any. Without int8 of its own a GPU computes it as fp32.
GPUS: Final[dict[str, Machine]] = {
    "p100": _gpu("P100 PCIe 16 GB", 9.3, None, 732, "NVIDIA Tesla P100 PCIe data sheet, 2016"),
    "v100": _gpu("V100 SXM2", 15.7, 62.8, 900, "NVIDIA Tesla V100 data sheet, 2018; int8 by dp4a"),
    "t4": _gpu("T4", 8.1, 130, 320, "NVIDIA T4 data sheet, 2019"),
    "a10": _gpu("A10", 31.2, 250, 600, "NVIDIA A10 data sheet, 2021"),
    "a100": _gpu("A100 80 GB SXM", 19.5, 624, 2039, "NVIDIA A100 80GB data sheet, 2021"),
    "l4": _gpu("L4", 30.3, 242.5, 300, "NVIDIA L4 data sheet, 2023"),
    "l40s": _gpu("L40S", 91.6, 733, 864, "NVIDIA L40S data sheet, 2023"),
    "h100": _gpu("H100 SXM", 67, 1979, 3350, "NVIDIA H100 data sheet, 2023"),
    "h200": _gpu("H200 SXM", 67, 1979, 4800, "NVIDIA H200 data sheet, 2024"),
    "rtx3090": _gpu("RTX 3090", 35.6, 284, 936, "NVIDIA Ampere GA102 whitepaper, 2021"),
    "rtx4090": _gpu("RTX 4090", 82.6, 660.6, 1008, "NVIDIA Ada GPU architecture whitepaper, 2022"),
}


def measure(tick: Callable[[float, str], None]) -> Machine:
    """This machine: products of matrices in ONNX Runtime, which serves here, and a copy by all CPUs."""
    cpus = available_cpus()
    tick(0.0, "products of float32")
    fp32 = _best(_product("float", "float", "float", cpus))
    tick(0.4, "products of int8")
    int8 = _best(_product("uint8", "int8", "int32", cpus))
    tick(0.8, "a copy through memory")
    bandwidth = _copy(cpus)
    tick(1.0, "")
    work = 2 * _EDGE**3
    return Machine(
        f"this machine, {cpus} CPU{'s' if cpus > 1 else ''}",
        work / fp32,
        work / int8,
        bandwidth,
        f"measured: best product of {_EDGE}×{_EDGE} matrices in ONNX Runtime, best copy of {_COPY_MB} MB",
    )


def _product(left: str, right: str, result: str, threads: int) -> Callable[[], Any]:
    """A run of a product of two matrices of these types, as ONNX writes them."""
    import onnxruntime as ort

    size = f"[{_EDGE}, {_EDGE}]"
    op = "MatMul" if result == "float" else "MatMulInteger"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> product ({left}{size} a, {right}{size} b) '
        f"=> ({result}{size} c) {{ c = {op}(a, b) }}"
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = np.random.default_rng(0).integers(0, 100, (_EDGE, _EDGE))
    types = {"float": np.float32, "int8": np.int8, "uint8": np.uint8}
    feeds = {"a": values.astype(types[left]), "b": values.astype(types[right])}
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
    run()
    best, end = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return best
