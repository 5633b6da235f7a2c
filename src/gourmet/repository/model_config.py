"""A typed description of a model's config, which checks itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gourmet.client.model_config import Config
from gourmet.errors import UsageError

DATA_TYPES: Final = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BF16", "STRING"),
)
LABELS_FILE: Final = "labels.txt"
_FORMATS: Final = ("", "NCHW", "NHWC")
_KINDS: Final = ("AUTO", "CPU", "GPU")


@dataclass(frozen=True)
class Tensor:
    """An input or an output; its dims are those of one row where the model batches."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    format: str = ""  # of a picture
    label_filename: str = ""

    def __post_init__(self) -> None:
        _check(self.name, "a tensor", self.name != "", "name it")
        _check(self.data_type, f"the data type of {self.name}", self.data_type in DATA_TYPES, DATA_TYPES)
        whole = bool(self.dims) and all(size == -1 or size > 0 for size in self.dims)
        _check(list(self.dims), f"the dims of {self.name}", whole, "use sizes above 0, and -1 for any size")
        _check(self.format, f"the format of {self.name}", self.format in _FORMATS, _FORMATS[1:])
        three = not self.format or len(self.dims) == 3
        _check(list(self.dims), f"the dims of {self.name}", three, "a picture format needs three of them")

    def as_json(self) -> Config:
        return {
            "name": self.name,
            "data_type": f"TYPE_{self.data_type}",
            "dims": list(self.dims),
            **({"format": f"FORMAT_{self.format}"} if self.format else {}),
            **({"label_filename": self.label_filename} if self.label_filename else {}),
        }


@dataclass(frozen=True)
class ModelConfig:
    """How Triton serves a model; `max_batch_size` 0 is a model whose tensors have all their dims."""

    name: str
    backend: str
    max_batch_size: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    platform: str = ""
    kind: str = "AUTO"  # the GPU where Triton has one, and the CPU elsewhere
    instances: int = 1
    delay_us: int | None = None  # None is no dynamic batching
    preferred_batches: tuple[int, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    files_by_capability: Mapping[str, str] = field(default_factory=dict)
    cuda_graphs: bool | None = None

    def __post_init__(self) -> None:
        folder = self.name != "" and "/" not in self.name and not self.name.startswith(".")
        _check(self.name, "the model's name", folder, "use a folder's name, without / and a first .")
        _check(self.backend, "the backend", self.backend != "", "name one of Triton's")
        _check(self.max_batch_size, "max_batch_size", self.max_batch_size >= 0, "use 0 or more")
        _check(self.instances, "the instance count", self.instances >= 1, "use 1 or more")
        _check(self.kind, "the kind of instances", self.kind in _KINDS, _KINDS)
        names = [tensor.name for tensor in (*self.inputs, *self.outputs)]
        both = bool(self.inputs and self.outputs) and len(set(names)) == len(names)
        _check(names, "the tensors", both, "give inputs and outputs, each name once")
        if self.delay_us is not None:
            _check(self.delay_us, "the queue delay", self.delay_us >= 0, "use 0 µs or more")
            batches = self.max_batch_size > 0
            _check(self.max_batch_size, "max_batch_size", batches, "dynamic batching needs at least 1")
        fit = all(0 < size <= self.max_batch_size for size in self.preferred_batches)
        most = f"use sizes from 1 to max_batch_size {self.max_batch_size}"
        _check(list(self.preferred_batches), "the preferred batches", fit, most)

    def as_json(self) -> Config:
        config: Config = {
            "name": self.name,
            "backend": self.backend,
            "platform": self.platform,
            "max_batch_size": self.max_batch_size,
            "input": [tensor.as_json() for tensor in self.inputs],
            "output": [tensor.as_json() for tensor in self.outputs],
            "instance_group": [{"kind": f"KIND_{self.kind}", "count": self.instances}],
            "parameters": {name: {"string_value": value} for name, value in self.parameters.items()},
            "cc_model_filenames": dict(self.files_by_capability),
        }
        if self.delay_us is not None:
            config["dynamic_batching"] = {
                "max_queue_delay_microseconds": self.delay_us,
                "preferred_batch_size": list(self.preferred_batches),
            }
        if self.cuda_graphs is not None:
            config["optimization"] = {"cuda": {"graphs": self.cuda_graphs}}
        return config


def _check(value: object, what: str, is_valid: bool, allowed: str | Iterable[str]) -> None:
    if not is_valid:
        allowed = allowed if isinstance(allowed, str) else f"use {', '.join(allowed)}"
        raise UsageError(f"{what} cannot be {value!r}: {allowed}")
