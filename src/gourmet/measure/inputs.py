"""What is sent: many different real inputs for a served model, the same ones for the same seed."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tritonclient.utils import serialize_byte_tensor, triton_to_np_dtype

from gourmet.contracts import Classification, ModelInfo, System
from gourmet.errors import UsageError
from gourmet.systems import registry

Array = npt.NDArray[Any]

# The files of a folder of examples, by the task of the system that takes them.
_SUFFIXES: Final = {"classification": {".jpg", ".jpeg", ".png", ".webp"}, "generation": {".txt"}}


@dataclass(frozen=True)
class Input:
    """An input of a model: Triton's datatype and the shape of one row; −1 is a dimension of any size."""

    name: str
    datatype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class InputRows:
    """Rows for a model's inputs; `examples` are what clients of its system would send for them."""

    info: ModelInfo
    inputs: tuple[Input, ...]
    values: Mapping[str, Sequence[Array]]  # by input, a tensor a row
    about: str
    examples: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return len(self.values[self.inputs[0].name])

    @property
    def batched(self) -> bool:
        """Whether a request may hold several rows."""
        return self.info.max_batch_size > 0

    @property
    def alike(self) -> bool:
        """Whether all rows have the same shapes, as those of one request must."""
        return all(len({row.shape for row in rows}) < 2 for rows in self.values.values())

    @property
    def pictures(self) -> tuple[bytes, ...]:
        """The examples, where they are pictures."""
        known = self.info.system and isinstance(registry.load(self.info.system), Classification)
        return self.examples if known else ()

    def tensor(self, given: Input, which: Sequence[int]) -> Array:
        values = self.values[given.name]
        return np.stack([values[row] for row in which]) if self.batched else values[which[0]]


def raw(values: Array) -> bytes:
    """A tensor as Triton takes it over the wire."""
    if values.dtype == np.object_:
        return bytes(serialize_byte_tensor(values).item()) if values.size else b""
    return np.ascontiguousarray(values).tobytes()


def rows_for(
    info: ModelInfo,
    *,
    count: int,
    seed: int,
    data: Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    size: tuple[int, int] = (400, 300),
) -> InputRows:
    """`count` rows for a model: out of `data`, else its system's examples, else noise of the right shape."""
    declared = tuple(
        Input(spec.name, spec.datatype, spec.shape[1:] if info.max_batch_size else spec.shape)
        for spec in info.inputs
    )
    if data is not None and data.suffix == ".npz":
        return _from_arrays(data, info, _closed(declared, shapes or {}, info), count)
    system = registry.load(info.system) if info.system in registry.names() else None
    examples: Sequence[bytes]
    if data is not None:
        examples, about = _files(data, system, count)
    elif isinstance(system, Classification):
        examples = system.examples(count, seed, size)
        about = f"{count} drawn pictures of {system.title.lower()}, {size[0]}×{size[1]}, seed {seed}"
    elif system is not None:
        examples, about = system.examples(count, seed), f"{count} examples of {system.title}, seed {seed}"
    else:
        return _noise(info, _closed(declared, shapes or {}, info), count, seed)
    assert system is not None
    asked = [system.request_inputs(example, info) for example in examples]
    inputs = tuple(given for given in declared if given.name in asked[0])
    values = {given.name: [_one_row(each[given.name], given) for each in asked] for given in inputs}
    return InputRows(info, inputs, values, about, tuple(examples))


def _one_row(tensor: Array, given: Input) -> Array:
    """Without the dimension of rows, where a system puts one in front."""
    known = -1 not in given.dims
    return tensor.reshape(given.dims if known else tensor.shape[-len(given.dims) :])


def _closed(
    declared: tuple[Input, ...], shapes: Mapping[str, Sequence[int]], info: ModelInfo
) -> tuple[Input, ...]:
    """The inputs with every dimension known; `shapes` fills in those that the config leaves open."""
    closed = []
    for given in declared:
        dims = tuple(int(dim) for dim in shapes.get(given.name, given.dims))
        if min(dims, default=1) < 1:
            raise UsageError(
                f"input {given.name} of {info.name} has the open shape {list(dims)}: "
                f"say that of one row, as in --shape {given.name}:{','.join(str(abs(dim)) for dim in dims)}"
            )
        closed.append(Input(given.name, given.datatype, dims))
    return tuple(closed)


def _files(folder: Path, system: System | None, count: int) -> tuple[list[bytes], str]:
    suffixes = _SUFFIXES[system.task] if system else set()
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes)
    if not files:
        why = (
            f"it has no files of {', '.join(sorted(suffixes))}"
            if system
            else "the model names no system that says what its files mean"
        )
        raise UsageError(
            f"--data {folder} cannot be used: {why}; give a folder of examples, or an .npz by inputs"
        )
    # Spread over the folder, which is often sorted by class.
    chosen = files[:: max(1, len(files) // count)][:count]
    return [path.read_bytes() for path in chosen], f"{len(chosen)} files of {folder.name}"


def _from_arrays(path: Path, info: ModelInfo, inputs: tuple[Input, ...], count: int) -> InputRows:
    with np.load(path) as held:
        missing = [given.name for given in inputs if given.name not in held]
        if missing:
            raise UsageError(f"{path} has no array {missing[0]!r}; it has {', '.join(held) or 'none'}")
        values = {given.name: held[given.name][:count] for given in inputs}
    for given in inputs:
        wanted = np.dtype(triton_to_np_dtype(given.datatype))
        if values[given.name].shape[1:] != given.dims or values[given.name].dtype != wanted:
            raise UsageError(
                f"{path}: {given.name} is {values[given.name].dtype} {list(values[given.name].shape)}, "
                f"and {given.datatype} [rows, {', '.join(str(dim) for dim in given.dims)}] is wanted"
            )
    rows = {name: list(array) for name, array in values.items()}
    return InputRows(info, inputs, rows, f"{len(rows[inputs[0].name])} rows of {path.name}")


def _noise(info: ModelInfo, inputs: tuple[Input, ...], count: int, seed: int) -> InputRows:
    random = np.random.default_rng(seed)
    values = {given.name: [_random(given, random) for _ in range(count)] for given in inputs}
    return InputRows(info, inputs, values, f"{count} rows of noise, seed {seed}")


def _random(given: Input, random: np.random.Generator) -> Array:
    if given.datatype == "BYTES":
        letters = [
            bytes(random.integers(97, 123, 16, dtype=np.uint8)) for _ in range(int(np.prod(given.dims)))
        ]
        return np.array(letters, dtype=np.object_).reshape(given.dims)
    kind = np.dtype(triton_to_np_dtype(given.datatype))
    if kind.kind == "f":
        return random.standard_normal(given.dims).astype(kind)
    most = 2 if kind.kind == "b" else min(256, int(np.iinfo(kind).max) + 1)
    return random.integers(0, most, given.dims).astype(kind)


def for_perf_analyzer(rows: InputRows, path: Path) -> Path:
    """The rows as the file that perf_analyzer takes with --input-data."""
    data = [
        {
            given.name: {
                "b64": base64.b64encode(raw(rows.values[given.name][row])).decode(),
                "shape": list(rows.values[given.name][row].shape),
            }
            for given in rows.inputs
        }
        for row in range(len(rows))
    ]
    path.write_text(json.dumps({"data": data}))
    return path
