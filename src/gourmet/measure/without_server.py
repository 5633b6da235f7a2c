"""What a deployed file does without a server, on all CPUs: the bar that Triton is held to."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from gourmet.contracts import Array, Tensors
from gourmet.errors import GourmetError
from gourmet.measure.task import MeasureOptions
from gourmet.runtime.instances import available_cpus
from gourmet.runtime.openvino_network import OPENVINO, new_core

# The second run is when TorchScript compiles.
_WARM_UP_RUNS: Final = 3

Run = Callable[[], Sequence[Array]]


def runs_per_s(run: Run, effort: MeasureOptions) -> list[float]:
    """By window; each holds whole runs, and one at least."""
    for _ in range(_WARM_UP_RUNS):
        run()
    rates: list[float] = []
    for _ in range(effort.windows):
        runs, started = 0, time.perf_counter()
        while (took := time.perf_counter() - started) < effort.window_s:
            run()
            runs += 1
        rates.append(runs / took)
    return rates


def opened(path: Path, engine: str, feeds: Tensors) -> Run:
    """The file by its engine (an ONNX file's; TorchScript has one), asked for `feeds` again and again."""
    cpus = available_cpus()
    try:
        if path.suffix == ".pt":
            return _torchscript(path, feeds, cpus)
        return (_openvino if engine == OPENVINO else _onnxruntime)(path, feeds, cpus)
    except Exception as exc:  # each engine has its own
        raise GourmetError(f"{path} cannot be run without a server: {exc}") from exc


def _torchscript(path: Path, feeds: Tensors, cpus: int) -> Run:
    """Frozen and fused, as the backend runs it."""
    import torch

    torch.set_num_threads(cpus)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        loaded: Any = torch.jit.load(path)  # type: ignore[no-untyped-call]
        network: Any = torch.jit.optimize_for_inference(torch.jit.freeze(loaded.eval()))
    tensors = [torch.from_numpy(rows) for rows in feeds.values()]

    def run() -> list[Array]:
        with torch.inference_mode():
            return [network(*tensors).numpy()]

    return run


def _onnxruntime(path: Path, feeds: Tensors, cpus: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = cpus
    options.log_severity_level = 4  # what goes wrong is raised
    session: Any = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def _openvino(path: Path, feeds: Tensors, cpus: int) -> Run:
    """Compiled for just these shapes, which is OpenVINO at its fastest."""
    core = new_core()
    model = core.read_model(path)
    model.reshape({name: list(rows.shape) for name, rows in feeds.items()})
    hints = {"INFERENCE_NUM_THREADS": cpus, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", hints).create_infer_request()
    return lambda: list(request.infer(dict(feeds), share_inputs=True).values())
