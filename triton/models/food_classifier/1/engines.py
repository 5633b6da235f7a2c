"""Open the network of an instance with ONNX Runtime.

A version has its network in fp32 and in eight bits. On a CPU, the parameter cpu_precision of the config
chooses one of them. A GPU runs it in fp32, since the CUDA provider has no eight-bit convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gourmet.served import manifest
from gourmet.served.batches import Run
from gourmet.served.instances import (
    CPU,
    CPU_FILES,
    FP32,
    Device,
    cpu_precision,
    open_or_fall_back,
)
from gourmet.systems.food11.contract import SYSTEM


@dataclass(frozen=True)
class FoodEngine:
    """A network that one thread at a time may run. `datatype` is Triton's name of the input's type."""

    input: str
    datatype: str
    outputs: Sequence[str]  # the scores, and dishes if the network knows them
    run: Run


def open_engine(
    version: Path, config: Mapping[str, Any], device: Device, warn: Callable[[str], None]
) -> FoodEngine:
    """Open the engine of one instance; raise GourmetError if none can run it."""

    def open_on(device: Device) -> FoodEngine:
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
    engine.run({engine.input: SYSTEM.tensor(blank, engine.datatype)}, engine.outputs)
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
    manifest.check_files(path, config)
    from gourmet.served.onnx_session import open_engine as open_file

    engine = open_file(path, config, device, warn)
    (image,), outputs = engine.signature.inputs, [output.name for output in engine.signature.outputs]
    return FoodEngine(image.name, image.triton_type.removeprefix("TYPE_"), outputs, engine.run)
