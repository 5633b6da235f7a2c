"""Which engine runs a model on the CPU, and in which precision. Standard library only.

These are our own parameters: other Tritons pass over parameters that they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.runtime.instances import parameter

ENGINE_PARAMETER: Final = "cpu_engine"
ONNX_RUNTIME: Final = "onnxruntime"
TORCH: Final = "torch"
ENGINES: Final = (ONNX_RUNTIME, TORCH)
PRECISION_PARAMETER: Final = "cpu_precision"
FP32: Final = "fp32"
INT8: Final = "int8"
PRECISIONS: Final = (FP32, INT8)
# Of a version that has its network in several.
FILES: Final = {FP32: "model.onnx", INT8: "model_int8.onnx"}


def engine(config: Mapping[str, Any], among: Sequence[str] = ENGINES) -> str:
    """What runs the model on the CPU; ONNX Runtime unless the config names another."""
    return _one_of(config, ENGINE_PARAMETER, among)


def precision(config: Mapping[str, Any]) -> str:
    """In which precision a model that has several runs on the CPU; fp32 unless the config names another."""
    return _one_of(config, PRECISION_PARAMETER, PRECISIONS)


def _one_of(config: Mapping[str, Any], name: str, among: Sequence[str]) -> str:
    value = parameter(config, name) or among[0]
    if value not in among:
        raise GourmetError(f'parameter "{name}" is {value!r}; it must be one of {", ".join(among)}')
    return value
