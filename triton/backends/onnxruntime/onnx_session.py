"""A session over an ONNX file, with the options and the device that the model's config asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from gourmet.runtime.instances import (
    CPU,
    Device,
    available_cpus,
    cpu_threads,
    instance_count,
    integer_parameter,
    parameter,
    switch,
)
from gourmet.runtime.openvino_network import ENGINE_PARAMETER

__all__ = [
    "InvalidArgument",
    "SessionError",
    "has_cuda",
    "open_session",
    "peek",
    "refuse_accelerators",
    "run_options",
]

CUDA: Final = "CUDAExecutionProvider"
# Everything that goes wrong is raised and answered; the log need not say it a second time.
FATAL_ONLY: Final = 4

# `optimization { graph { level } }` of the config: -1, 0 (everything, the default), 1, 2.
_GRAPH_LEVELS: Final = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


class SessionError(Exception):
    """The model cannot be opened as its config asks; says what is missing and where."""


def peek(path: Path) -> ort.InferenceSession:
    """A session to read names, types and shapes from, opened as cheaply as may be."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = FATAL_ONLY
    return _open(path, options, ["CPUExecutionProvider"])


def has_cuda() -> bool:
    """Whether the installed ONNX Runtime was built with its CUDA provider."""
    return CUDA in ort.get_available_providers()


def open_session(
    path: Path, config: Mapping[str, Any], device: Device, warn: Callable[[str], None]
) -> ort.InferenceSession:
    """The session of one instance; where the device is not required and cannot be had, on the CPU."""
    try:
        return _open_on(device, path, config)
    except SessionError as exc:
        if device.required:
            raise
        warn(f"{config['name']} runs on the CPU instead of {device}: {exc}")
        return _open_on(CPU, path, config)


def _open_on(device: Device, path: Path, config: Mapping[str, Any]) -> ort.InferenceSession:
    options = session_options(config)
    if device.kind == "cpu":
        refuse_accelerators(config, "cpu_execution_accelerator", known=frozenset())
        return _open(path, options, ["CPUExecutionProvider"])
    refuse_accelerators(config, "gpu_execution_accelerator", known=frozenset({"cuda"}))
    if not has_cuda():
        raise SessionError(
            f"KIND_GPU needs ONNX Runtime's {CUDA}, this one has {', '.join(ort.get_available_providers())}; "
            "install onnxruntime-gpu, or set the instance group's kind to KIND_CPU"
        )
    provider = (CUDA, {**_cuda_options(config), "device_id": str(device.index)})
    session = _open(path, options, [provider, "CPUExecutionProvider"])
    if CUDA not in session.get_providers():
        # ONNX Runtime takes the CPU silently where CUDA's libraries cannot be loaded.
        raise SessionError(f"ONNX Runtime could not start its {CUDA} on GPU {device.index}; its log says why")
    return session


def _open(path: Path, options: ort.SessionOptions, providers: list[Any]) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(str(path), options, providers=providers)
    except Exception as exc:
        raise SessionError(f"{path} cannot be opened as an ONNX model: {exc}") from exc


def session_options(config: Mapping[str, Any]) -> ort.SessionOptions:
    """Threads, graph optimisation and memory, by the names NVIDIA's backend gives them."""
    options = ort.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    options.graph_optimization_level = _graph_level(config)
    threads = cpu_threads(config)
    options.intra_op_num_threads = threads
    if integer_parameter(config, "execution_mode"):
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = integer_parameter(config, "inter_op_thread_count") or threads
    options.enable_cpu_mem_arena = switch(config, "enable_mem_arena", default=True)
    options.enable_mem_pattern = switch(config, "enable_mem_pattern", default=True)
    if threads * instance_count(config) >= available_cpus():
        # Threads that spin while they wait take the CPU from Triton's own, which bring the next request.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def run_options(config: Mapping[str, Any]) -> ort.RunOptions:
    """The options of every run of an instance."""
    options = ort.RunOptions()
    options.log_severity_level = FATAL_ONLY
    shrinkage = parameter(config, "memory.enable_memory_arena_shrinkage")
    if shrinkage:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", shrinkage)
    return options


def _graph_level(config: Mapping[str, Any]) -> Any:
    level = int(config.get("optimization", {}).get("graph", {}).get("level", 0))
    if level not in _GRAPH_LEVELS:
        raise SessionError(f"optimization.graph.level is {level}; it must be one of -1, 0, 1, 2")
    return _GRAPH_LEVELS[level]


def _accelerators(config: Mapping[str, Any], role: str) -> list[Mapping[str, Any]]:
    chosen: list[Mapping[str, Any]] = (
        config.get("optimization", {}).get("execution_accelerators", {}).get(role, [])
    )
    return chosen


def refuse_accelerators(config: Mapping[str, Any], role: str, known: frozenset[str]) -> None:
    """Raise SessionError if the config asks for one in this role that is not known."""
    for accelerator in _accelerators(config, role):
        if accelerator["name"] not in known:
            raise SessionError(
                f"{role} {accelerator['name']!r} is not supported here; "
                f"supported: {', '.join(sorted(known)) or 'none'}"
                + (
                    f' (for OpenVINO set the parameter "{ENGINE_PARAMETER}")'
                    if role.startswith("cpu")
                    else ""
                )
            )


def _cuda_options(config: Mapping[str, Any]) -> dict[str, str]:
    options: dict[str, str] = {}
    for accelerator in _accelerators(config, "gpu_execution_accelerator"):
        options.update(accelerator.get("parameters", {}))
    return options
