"""Run the network of an instance: by torch on a GPU, and on a CPU by the engine that its config names.

A version has its network in three forms: TorchScript, ONNX, and ONNX in eight bits. The parameters cpu_engine
and cpu_precision of the config choose the form that a CPU runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.runtime import cpu_engine, manifest
from gourmet.runtime.batches import Run
from gourmet.runtime.instances import CPU, Device, cpu_threads, opened_on

TORCHSCRIPT_FILE: Final = "model.pt"


@dataclass(frozen=True)
class FoodEngine:
    """A network ready to run, by one thread at a time; its input has the `datatype`, in Triton's words."""

    input: str
    datatype: str
    output: str
    run: Run


def open_engine(
    version: Path, config: Mapping[str, Any], device: Device, warn: Callable[[str], None]
) -> FoodEngine:
    """The engine of one instance; raises GourmetError where there is none."""

    def open_on(device: Device) -> FoodEngine:
        on_cpu = device.kind == "cpu"
        return _on_cpu(version, config, warn) if on_cpu else _torch(version, config, device)

    return opened_on(device, open_on, warn, config["name"])


def _on_cpu(version: Path, config: Mapping[str, Any], warn: Callable[[str], None]) -> FoodEngine:
    name, precision = cpu_engine.engine(config), cpu_engine.precision(config)
    if name == cpu_engine.TORCH:
        return _torch(version, config, CPU)
    path = version / cpu_engine.FILES[precision]
    if not path.exists():
        # Weights that `gourmet train` did not make are deployed without a form in eight bits.
        path = version / cpu_engine.FILES[cpu_engine.FP32]
        warn(f"{config['name']} runs in {cpu_engine.FP32}: version {version.name} has no {precision}")
    manifest.check(path, config)
    from gourmet.runtime.onnx_session import open_engine as open_file

    opened = open_file(path, config, CPU, warn)
    (given,), (wanted,) = opened.signature.inputs, opened.signature.outputs
    return FoodEngine(given.name, given.triton_type.removeprefix("TYPE_"), wanted.name, opened.run)


def _torch(version: Path, config: Mapping[str, Any], device: Device) -> FoodEngine:
    path = version / TORCHSCRIPT_FILE
    manifest.check(path, config)
    from torch_engine import TracedNetwork

    try:
        return FoodEngine("input", "FP32", "output", TracedNetwork(path, device, cpu_threads(config)).run)
    except RuntimeError as exc:
        raise GourmetError(
            f"cannot run {path.name} on {device}: {exc}. Export it again with `gourmet deploy`, or choose a "
            "device that is there: KIND_AUTO or KIND_CPU"
        ) from exc
