"""What runs the network of an instance: torch on a GPU, and on a CPU the engine that its config names.

The files of a version are one network in several forms: TorchScript, ONNX, and ONNX in eight bits. Which of
them a CPU runs is the config's to say, by the parameters cpu_engine and cpu_precision.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from gourmet.contracts import Tensors
from gourmet.errors import GourmetError
from gourmet.runtime import cpu_engine, manifest
from gourmet.runtime.instances import CPU, Device, cpu_threads
from gourmet.systems.food11.contract import SYSTEM

Pixels = npt.NDArray[np.uint8]
TORCHSCRIPT_FILE: Final = "model.pt"
ONNX_FILES: Final = {cpu_engine.FP32: "model.onnx", cpu_engine.INT8: "model_int8.onnx"}
_ENGINES: Final = (*cpu_engine.ENGINES, cpu_engine.TORCH)


class Engine(Protocol):
    """A network, ready to run."""

    def run(self, rows: Sequence[Pixels]) -> Tensors:
        """The network's output for at least one row: logits, or probabilities, by the names they have."""


class OnnxEngine:
    """An ONNX file of the version, which takes pixels as they are or normalised."""

    def __init__(self, path: Path, config: Mapping[str, Any], warn: Callable[[str], None]) -> None:
        from gourmet.runtime.onnx_session import open_engine

        opened = open_engine(path, config, CPU, warn)
        (given,), (wanted,) = opened.signature.inputs, opened.signature.outputs
        self._datatype = given.triton_type.removeprefix("TYPE_")
        self._input, self._output, self._run = given.name, wanted.name, opened.run
        self._lock = threading.Lock()  # OpenVINO has one request at work

    def run(self, rows: Sequence[Pixels]) -> Tensors:
        given = SYSTEM.tensor(np.stack(rows), self._datatype)
        with self._lock:
            return {self._output: self._run({self._input: given}, [self._output])[0]}


def open_engine(
    version: Path, config: Mapping[str, Any], device: Device, warn: Callable[[str], None]
) -> Engine:
    """The engine of one instance; raises GourmetError where there is none."""
    if device.kind == "cpu":
        return _on_cpu(version, config, warn)
    try:
        return _torch(version, config, device)
    except GourmetError as exc:
        if device.required:
            raise
        warn(f"{config['name']} takes the CPU instead of {device}: {exc}")
        return _on_cpu(version, config, warn)


def _on_cpu(version: Path, config: Mapping[str, Any], warn: Callable[[str], None]) -> Engine:
    name, precision = cpu_engine.engine(config, _ENGINES), cpu_engine.precision(config)
    if name == cpu_engine.TORCH:
        return _torch(version, config, CPU)
    path = version / ONNX_FILES[precision]
    if not path.exists():
        # Weights that `gourmet train` did not make are deployed without a form in eight bits.
        path = version / ONNX_FILES[cpu_engine.FP32]
        warn(f"{config['name']} runs in {cpu_engine.FP32}: version {version.name} has no {precision}")
    manifest.check(path, config)
    return OnnxEngine(path, config, warn)


def _torch(version: Path, config: Mapping[str, Any], device: Device) -> Engine:
    path = version / TORCHSCRIPT_FILE
    manifest.check(path, config)
    from torch_engine import TorchEngine

    try:
        return TorchEngine(path, device, cpu_threads(config))
    except RuntimeError as exc:
        raise GourmetError(
            f"cannot run {path.name} on {device}: {exc}. Export it again with `gourmet deploy`, or choose a "
            "device that is there: KIND_AUTO or KIND_CPU"
        ) from exc
