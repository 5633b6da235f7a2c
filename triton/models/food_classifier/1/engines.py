"""Open the network of an instance with ONNX Runtime, or with torch if the config chooses it.

A version has its network as TorchScript, ONNX and eight-bit ONNX. On a CPU, the parameters cpu_engine and
cpu_precision of the config choose one of them. A GPU runs the ONNX file in fp32, since the CUDA provider has
no eight-bit convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from gourmet.errors import GourmetError
from gourmet.served import manifest
from gourmet.served.batches import Run
from gourmet.served.instances import (
    CPU,
    CPU_FILES,
    FP32,
    THREADS_PARAMETER,
    TORCH,
    Device,
    cpu_engine,
    cpu_precision,
    integer_parameter,
    open_or_fall_back,
)
from gourmet.systems.food11.contract import SYSTEM

TORCHSCRIPT_FILE: Final = "model.pt"


@dataclass(frozen=True)
class FoodEngine:
    """A network that one thread at a time may run. `datatype` is Triton's name of the input's type."""

    input: str
    datatype: str
    output: str
    run: Run


def open_engine(
    version: Path, config: Mapping[str, Any], device: Device, warn: Callable[[str], None]
) -> FoodEngine:
    """Open the engine of one instance; raise GourmetError if none can run it."""

    def open_on(device: Device) -> FoodEngine:
        if cpu_engine(config) == TORCH:
            return _torch(version, config, device)
        if device.kind == "cpu":
            return _on_cpu(version, config, warn)
        return _on_gpu(version, config, device, warn)

    return open_or_fall_back(device, open_on, warn, config["name"])


def _on_gpu(
    version: Path, config: Mapping[str, Any], device: Device, warn: Callable[[str], None]
) -> FoodEngine:
    engine = _onnx(version / CPU_FILES[FP32], config, replace(device, required=True), warn)
    blank = np.zeros((1, SYSTEM.input_size, SYSTEM.input_size, 3), np.uint8)
    # The first run takes seconds: do it now.
    engine.run({engine.input: SYSTEM.tensor(blank, engine.datatype)}, [engine.output])
    return engine


def _on_cpu(version: Path, config: Mapping[str, Any], warn: Callable[[str], None]) -> FoodEngine:
    precision = cpu_precision(config)
    path = version / CPU_FILES[precision]
    if not path.exists():
        # Weights that `gourmet train` did not make are deployed without an eight-bit form.
        path = version / CPU_FILES[FP32]
        warn(f"{config['name']} runs in {FP32}: version {version.name} has no {precision}")
    return _onnx(path, config, CPU, warn)


def _onnx(path: Path, config: Mapping[str, Any], device: Device, warn: Callable[[str], None]) -> FoodEngine:
    manifest.check(path, config)
    from gourmet.served.onnx_session import open_engine as open_file

    engine = open_file(path, config, device, warn)
    (image,), (output,) = engine.signature.inputs, engine.signature.outputs
    return FoodEngine(image.name, image.triton_type.removeprefix("TYPE_"), output.name, engine.run)


def _torch(version: Path, config: Mapping[str, Any], device: Device) -> FoodEngine:
    path = version / TORCHSCRIPT_FILE
    manifest.check(path, config)
    from torch_engine import TracedNetwork

    try:
        threads = integer_parameter(config, THREADS_PARAMETER) or 1
        return FoodEngine("input", "FP32", "output", TracedNetwork(path, device, threads).run)
    except RuntimeError as exc:
        raise GourmetError(
            f"cannot run {path.name} on {device}: {exc}. Export it again with `gourmet deploy`, or set the "
            "instance group's kind to KIND_AUTO or KIND_CPU"
        ) from exc
