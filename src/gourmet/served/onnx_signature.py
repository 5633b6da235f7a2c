"""The inputs and outputs of an ONNX file, compared with the model's config.

`config` is the dictionary that Triton passes to a model. Of a session, only its inputs and outputs are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.served import batches

Dims = tuple[int, ...]

# Element types that Triton's Python backend supports: ONNX Runtime's name and Triton's.
TRITON_TYPES: Final = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}

# NVIDIA's default-max-batch-size. It applies to a config without tensors and batch size.
DEFAULT_MAX_BATCH_SIZE: Final = 4


@dataclass(frozen=True)
class OnnxTensor:
    """One input or output of the ONNX file; a dimension of -1 may have any size.

    ONNX Runtime reports no dims for a scalar, and also for a tensor of unknown rank.
    """

    name: str
    onnx_type: str
    dims: Dims

    @property
    def triton_type(self) -> str:
        if self.onnx_type not in TRITON_TYPES:
            raise GourmetError(
                f"{self.name!r} of the ONNX file is {self.onnx_type}; this backend supports "
                f"{', '.join(TRITON_TYPES)}"
            )
        return TRITON_TYPES[self.onnx_type]


@dataclass(frozen=True)
class OnnxSignature:
    """The tensors of an ONNX file; `optional` are initializers of the graph that a request may override."""

    inputs: tuple[OnnxTensor, ...]
    outputs: tuple[OnnxTensor, ...]
    optional: tuple[OnnxTensor, ...] = ()

    @classmethod
    def of(cls, session: Any) -> OnnxSignature:
        return cls(
            _tensors(session.get_inputs()),
            _tensors(session.get_outputs()),
            _tensors(session.get_overridable_initializers()),
        )


def _tensors(nodes: Iterable[Any]) -> tuple[OnnxTensor, ...]:
    return tuple(
        OnnxTensor(node.name, node.type, tuple(dim if isinstance(dim, int) else -1 for dim in node.shape))
        for node in nodes
    )


def complete(config: dict[str, Any], signature: OnnxSignature) -> None:
    """Add what the config omits, as NVIDIA's backend does.

    If the first dimension of every tensor may have any size, it becomes the batch, with dynamic batching
    unless the config chooses a scheduler.
    """
    can_be_stacked = all(tensor.dims[:1] == (-1,) for tensor in (*signature.inputs, *signature.outputs))
    if config["max_batch_size"] == 0 and can_be_stacked:
        config["max_batch_size"] = DEFAULT_MAX_BATCH_SIZE
    batched = config["max_batch_size"] > 0
    if config["max_batch_size"] > 1 and not {"dynamic_batching", "sequence_batching"} & config.keys():
        config["dynamic_batching"] = {}
    if not config["input"]:
        config["input"] = [_declare(tensor, batched) for tensor in signature.inputs]
    if not config["output"]:
        config["output"] = [_declare(tensor, batched) for tensor in signature.outputs]


def _declare(tensor: OnnxTensor, batched: bool) -> dict[str, Any]:
    dims = list(tensor.dims[1:] if batched else tensor.dims)
    declared: dict[str, Any] = {"name": tensor.name, "data_type": tensor.triton_type, "dims": dims}
    if not dims:
        # Triton requires at least one dimension.
        declared["dims"] = [1]
        if batched:
            declared["reshape"] = {"shape": []}
    return declared


def check_config(config: Mapping[str, Any], signature: OnnxSignature) -> None:
    """Raise GourmetError with all contradictions between the config and the ONNX file."""
    problems = [*_unsupported(config), *_disagreements(config, signature)]
    if problems:
        raise GourmetError("; ".join(problems))


def _unsupported(config: Mapping[str, Any]) -> Iterator[str]:
    yield from batches.unsupported(config)
    sequence = config.get("sequence_batching", {})
    if sequence.get("control_input") or sequence.get("state"):
        yield "sequence_batching with control_input or state is not supported"
    for declared in config["input"]:
        if declared.get("optional") and config["max_batch_size"] > 0:
            yield f"optional input {declared['name']!r} needs max_batch_size: 0"


def _disagreements(config: Mapping[str, Any], signature: OnnxSignature) -> Iterator[str]:
    inputs = {tensor.name: tensor for tensor in signature.inputs}
    optional = {tensor.name: tensor for tensor in signature.optional}
    outputs = {tensor.name: tensor for tensor in signature.outputs}
    declared_inputs = {declared["name"]: declared for declared in config["input"]}
    for name in inputs.keys() - declared_inputs.keys():
        yield f"the ONNX file needs an input {name!r}, the config names {_names(declared_inputs)}"
    for declared in config["input"]:
        known = optional if declared.get("optional") else {**inputs, **optional}
        yield from _disagreement("input", declared, known, config["max_batch_size"])
    for declared in config["output"]:
        yield from _disagreement("output", declared, outputs, config["max_batch_size"])


def _disagreement(
    role: str, declared: Mapping[str, Any], known: Mapping[str, OnnxTensor], max_batch_size: int
) -> Iterator[str]:
    name = declared["name"]
    tensor = known.get(name)
    if tensor is None:
        kind = f"optional {role}" if declared.get("optional") else role
        yield f"the config names an {kind} {name!r}, the ONNX file has {_names(known)}"
        return
    if declared["data_type"] != tensor.triton_type:
        yield (
            f"{role} {name!r} is {declared['data_type']} in the config and "
            f"{tensor.triton_type} in the ONNX file"
        )
    promised = declared["reshape"]["shape"] if "reshape" in declared else declared["dims"]
    dims = ((-1,) if max_batch_size > 0 else ()) + tuple(map(int, promised))
    if max_batch_size > 0 and tensor.dims[:1] != (-1,):
        yield (
            f"{role} {name!r} is {list(tensor.dims)} in the ONNX file, but max_batch_size "
            f"{max_batch_size} needs a first dimension of any size (-1). Set max_batch_size to 0, or export "
            "the model with a dynamic first dimension"
        )
    elif not fits(dims, tensor.dims):
        yield f"{role} {name!r} is {list(dims)} in the config and {list(tensor.dims)} in the ONNX file"


def fits(ours: Dims, theirs: Dims) -> bool:
    """Return whether two shapes can be equal. -1 is any size; a scalar may be written as ones."""
    if not theirs:
        return all(dim in (1, -1) for dim in ours)
    return len(ours) == len(theirs) and all(a == b or -1 in (a, b) for a, b in zip(ours, theirs, strict=True))


def _names(known: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in sorted(known)) or "none"
