"""Run the ONNX file of one instance with ONNX Runtime, as its config asks for.

The ONNX Runtime backend and the food classifier import it inside Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument as InvalidArgument

from gourmet.errors import GourmetError
from gourmet.served import batches
from gourmet.served import onnx_signature as signatures
from gourmet.served.instances import (
    ONNX_RUNTIME,
    Device,
    available_cpus,
    cpu_engine,
    cpu_threads,
    instance_count,
    integer_parameter,
    open_or_fall_back,
    parameter,
    switch,
)

CUDA: Final = "CUDAExecutionProvider"
# Every error is raised and answered; the log need not repeat it.
FATAL_ONLY: Final = 4

# `optimization { graph { level } }` of the config: -1, 0 (everything, the default), 1, 2.
_GRAPH_LEVELS: Final = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


def peek(path: Path) -> ort.InferenceSession:
    """Open a session cheaply, to read names, types and shapes only."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = FATAL_ONLY
    return _open(path, options, ["CPUExecutionProvider"])


def has_cuda() -> bool:
    """Return whether the installed ONNX Runtime was built with its CUDA provider."""
    return CUDA in ort.get_available_providers()


@dataclass(frozen=True)
class FileEngine:
    """An open ONNX file: the name of the provider that runs it, its inputs and outputs, and its run."""

    name: str
    signature: signatures.OnnxSignature
    run: batches.Run


def open_engine(
    path: Path, config: Mapping[str, Any], device: Device, warn: Callable[[str], None]
) -> FileEngine:
    """Open the file for one instance."""
    cpu_engine(config, (ONNX_RUNTIME,))
    session = open_or_fall_back(device, partial(_open_on, path=path, config=config), warn, config["name"])
    options, signature = _run_options(config), signatures.OnnxSignature.of(session)

    def run(feeds: batches.Feeds, requested: Sequence[str]) -> Sequence[batches.Array]:
        outputs: Sequence[batches.Array] = session.run(requested, feeds, options)
        return outputs

    name, rows = session.get_providers()[0], config.get("max_batch_size", 0)
    # The CUDA provider prepares each convolution again, for a second in all, when the number of rows changes
    # (github.com/microsoft/onnxruntime/issues/23006), which dynamic batching does all the time.
    is_numeric = all(tensor.triton_type != "TYPE_STRING" for tensor in signature.inputs)
    if name == CUDA and rows > 1 and "dynamic_batching" in config and is_numeric:
        return FileEngine(name, signature, batches.padded(run, rows))
    return FileEngine(name, signature, run)


def _open_on(device: Device, path: Path, config: Mapping[str, Any]) -> ort.InferenceSession:
    options = session_options(config)
    if device.kind == "cpu":
        accelerator_options(config, "cpu_execution_accelerator", supported="")
        return _open(path, options, ["CPUExecutionProvider"])
    cuda_options = accelerator_options(config, "gpu_execution_accelerator", supported="cuda")
    if not has_cuda():
        raise GourmetError(
            f"KIND_GPU needs ONNX Runtime's {CUDA}; installed: {', '.join(ort.get_available_providers())}; "
            "install onnxruntime-gpu, or set the instance group's kind to KIND_CPU"
        )
    provider = (CUDA, {**cuda_options, "device_id": str(device.index)})
    session = _open(path, options, [provider, "CPUExecutionProvider"])
    if CUDA not in session.get_providers():
        # ONNX Runtime falls back to the CPU silently if CUDA's libraries cannot be loaded.
        raise GourmetError(f"ONNX Runtime could not start its {CUDA} on GPU {device.index}; see its log")
    return session


def _open(path: Path, options: ort.SessionOptions, providers: list[Any]) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(str(path), options, providers=providers)
    except Exception as exc:
        raise GourmetError(f"{path} cannot be opened as an ONNX model: {exc}") from exc


def session_options(config: Mapping[str, Any]) -> ort.SessionOptions:
    """Return the options for threads, graph optimisation and memory, by their names in NVIDIA's backend."""
    options = ort.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    level = int(config.get("optimization", {}).get("graph", {}).get("level", 0))
    if level not in _GRAPH_LEVELS:
        raise GourmetError(f"optimization.graph.level is {level}; it must be one of -1, 0, 1, 2")
    options.graph_optimization_level = _GRAPH_LEVELS[level]
    threads = cpu_threads(config)
    options.intra_op_num_threads = threads
    if integer_parameter(config, "execution_mode"):
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = integer_parameter(config, "inter_op_thread_count") or threads
    options.enable_cpu_mem_arena = switch(config, "enable_mem_arena", default=True)
    options.enable_mem_pattern = switch(config, "enable_mem_pattern", default=True)
    if threads * instance_count(config) >= available_cpus():
        # Threads that spin while they wait take the CPU from Triton's threads, which bring the next request.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _run_options(config: Mapping[str, Any]) -> ort.RunOptions:
    """Return the options of every run of an instance."""
    options = ort.RunOptions()
    options.log_severity_level = FATAL_ONLY
    shrinkage = parameter(config, "memory.enable_memory_arena_shrinkage")
    if shrinkage:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", shrinkage)
    return options


def accelerator_options(config: Mapping[str, Any], role: str, supported: str) -> dict[str, str]:
    """Return the parameters of the accelerators in this role; raise GourmetError for an unsupported one."""
    options: dict[str, str] = {}
    for accelerator in config.get("optimization", {}).get("execution_accelerators", {}).get(role, []):
        if accelerator["name"] != supported:
            raise GourmetError(
                f"{role} {accelerator['name']!r} is not supported here; supported: {supported or 'none'}"
            )
        options.update(accelerator.get("parameters", {}))
    return options
