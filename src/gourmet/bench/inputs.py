"""Inputs of a measurement: many different real examples for a served model, the same for the same seed."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import numpy as np

from gourmet.contracts import Array, Generation, ModelInfo, Options, System, Tensors, TensorSpec
from gourmet.errors import UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.served.reading import error_summary
from gourmet.systems import registry
from gourmet.systems.parts import SystemParts
from gourmet.triton_client.tensors import dtype_of, raw

# Yields the inputs of each request, is sent its outputs, and returns the answer.
Asking = Generator[Tensors, Tensors, Tensors]


@runtime_checkable
class ClientLoop(Protocol):
    """A system's CLIENT_LOOP, in its client_loop.py."""

    def steps_of(self, example: bytes) -> Asking:
        """Ask about one of the system's examples, a row a request."""


# The files of a folder of examples, by what these are.
_SUFFIXES: Final = {"picture": {".jpg", ".jpeg", ".png", ".webp"}, "text": {".txt"}}


@dataclass(frozen=True)
class DataSource:
    """The rows to send, and the source of the expected answers."""

    count: int = 32
    seed: int = 5
    folder: Path | None = None
    reference: Path | None = None
    options: Options = field(default_factory=dict)  # of each request, where a system has some


@dataclass(frozen=True)
class InputRows:
    """Rows for a model's inputs; `examples` are what clients of its system would send for them."""

    info: ModelInfo
    inputs: tuple[TensorSpec, ...]  # their shapes are of one row; −1 is a dimension of any size
    values: Mapping[str, Sequence[Array]]  # by input, a tensor a row
    about: str
    examples: tuple[bytes, ...] = ()
    system: str = ""  # whose examples they are, where the model names none

    def __len__(self) -> int:
        return len(self.values[self.inputs[0].name])

    @property
    def batched(self) -> bool:
        """Return True if a request may hold several rows."""
        return self.info.max_batch_size > 0

    @property
    def alike(self) -> bool:
        """Return True if all rows have the same shapes, as the rows of one request must."""
        return all(len({row.shape for row in rows}) < 2 for rows in self.values.values())

    @property
    def pictures(self) -> tuple[bytes, ...]:
        """The examples, if they are pictures."""
        system = registry.load(self.info.system) if self.info.system else None
        texts = isinstance(system, Generation) and system.example_kind == "text"
        return self.examples if system and not texts else ()

    def tensor(self, spec: TensorSpec, which: Sequence[int]) -> Array:
        values = self.values[spec.name]
        return np.stack([values[row] for row in which]) if self.batched else values[which[0]]

    def tensors(self, which: Sequence[int]) -> Tensors:
        return {spec.name: self.tensor(spec, which) for spec in self.inputs}


def rows_for(info: ModelInfo, source: DataSource) -> InputRows:
    """Return rows for a model: from files or arrays, else its system's examples, else noise."""
    data, count, seed = source.folder, source.count, source.seed
    declared = _without_rows(info)
    if data is not None and data.suffix == ".npz":
        return _from_arrays(data, info, declared, count)
    if info.system not in registry.names():
        if data is not None:
            raise UsageError(
                f"--data {data} cannot be used: the model names no system that says what its files mean; "
                "give an .npz by inputs"
            )
        return _noise(info, declared, count, seed)
    system = registry.load(info.system)
    examples, about = examples_of(system, source)
    return rows_of(info, system, examples, about, source.options)


def rows_of(
    info: ModelInfo, system: System, examples: Sequence[bytes], about: str, options: Options | None = None
) -> InputRows:
    """Return rows for a model of a system, made of the examples as its clients do."""
    try:
        if isinstance(system, Generation):
            requests = [system.request_inputs(example, info, options or {}) for example in examples]
        else:
            requests = [system.request_inputs(example, info) for example in examples]
    except ValueError as exc:
        raise UsageError(f"{about} cannot be sent: {exc}") from exc
    return _input_rows(info, requests, examples, about)


def _input_rows(
    info: ModelInfo, requests: Sequence[Tensors], examples: Sequence[bytes], about: str, system: str = ""
) -> InputRows:
    """Return the rows of requests, one for each example."""
    inputs = tuple(spec for spec in _without_rows(info) if spec.name in requests[0])
    values = {spec.name: [_one_row(request[spec.name], spec) for request in requests] for spec in inputs}
    return InputRows(info, inputs, values, about, tuple(examples), system)


def examples_of(system: System, source: DataSource) -> tuple[Sequence[bytes], str]:
    """Return what clients of a system would send, and a description of it."""
    count, seed = source.count, source.seed
    if source.folder is not None:
        return _files(source.folder, system, count)
    pictures = isinstance(system, PictureClassifier)
    what = f"drawn pictures of {system.title.lower()}" if pictures else f"examples of {system.title}"
    return system.examples(count, seed), f"{count} {what}, seed {seed}"


def _without_rows(info: ModelInfo) -> tuple[TensorSpec, ...]:
    """Return a model's inputs with the shapes of one row."""
    if not info.max_batch_size:
        return info.inputs
    return tuple(replace(spec, shape=spec.shape[1:]) for spec in info.inputs)


def _one_row(tensor: Array, spec: TensorSpec) -> Array:
    """Return a value without the dimension of rows that a system puts in front."""
    known = -1 not in spec.shape
    return tensor.reshape(spec.shape if known else tensor.shape[-len(spec.shape) :])


def client_loop(system: str) -> ClientLoop:
    """Return the loop of a system whose models compute one step at a time."""
    return SystemParts(system).client_loop


def first_steps(info: ModelInfo, system: str, source: DataSource) -> InputRows:
    """Return the rows that such a client sends first. Every step costs the same."""
    loop = client_loop(system)
    examples, about = examples_of(registry.load(system), source)
    return _input_rows(info, [next(loop.steps_of(example)) for example in examples], examples, about, system)


def _files(folder: Path, system: System, count: int) -> tuple[Sequence[bytes], str]:
    suffixes = _SUFFIXES[system.example_kind if isinstance(system, Generation) else "picture"]
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes)
    if not files:
        raise UsageError(f"--data {folder} cannot be used: it has no files of {', '.join(sorted(suffixes))}")
    # Spread over the folder, which is often sorted by class.
    chosen = files[:: max(1, len(files) // count)][:count]
    try:
        return [path.read_bytes() for path in chosen], f"{len(chosen)} files of {folder.name}"
    except OSError as exc:
        raise UsageError(f"--data {folder} cannot be used: {error_summary(exc)}") from exc


def _from_arrays(path: Path, info: ModelInfo, inputs: tuple[TensorSpec, ...], count: int) -> InputRows:
    arrays = _arrays(path, count)
    for spec in inputs:
        array, expected = arrays.get(spec.name), dtype_of(spec.datatype)
        if array is None or array.dtype != expected or not _fits(array.shape[1:], spec.shape):
            actual = "missing" if array is None else f"{array.dtype} {list(array.shape)}"
            raise UsageError(
                f"{path}: {spec.name} is {actual}, "
                f"and must be {spec.datatype} [rows, {', '.join(map(str, spec.shape))}]"
            )
    rows = {spec.name: list(arrays[spec.name]) for spec in inputs}
    return InputRows(info, inputs, rows, f"{len(rows[inputs[0].name])} rows of {path.name}")


def _arrays(path: Path, count: int) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held}
        if others := [
            name for name, array in arrays.items() if not isinstance(array, np.ndarray) or not array.ndim
        ]:
            raise ValueError(f"{others[0]!r} is not an array of rows")
        return {name: array[:count] for name, array in arrays.items()}
    except Exception as exc:  # of numpy, of zipfile, and what headers bring about
        raise UsageError(f"--data {path} cannot be read as an .npz: {error_summary(exc)}") from exc


def _fits(shape: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    return len(shape) == len(declared) and all(
        want in (-1, dim) for dim, want in zip(shape, declared, strict=True)
    )


def _noise(info: ModelInfo, inputs: tuple[TensorSpec, ...], count: int, seed: int) -> InputRows:
    for spec in inputs:
        if -1 in spec.shape:
            raise UsageError(
                f"input {spec.name} of {info.name} has the open shape {list(spec.shape)}: "
                "give its rows as an .npz with --data"
            )
    random = np.random.default_rng(seed)
    values = {spec.name: [_random(spec, random) for _ in range(count)] for spec in inputs}
    return InputRows(info, inputs, values, f"{count} rows of noise, seed {seed}")


def _random(spec: TensorSpec, random: np.random.Generator) -> Array:
    if spec.datatype == "BYTES":
        texts = np.array([random.bytes(8).hex().encode() for _ in range(math.prod(spec.shape))], np.object_)
        return texts.reshape(spec.shape)
    kind = dtype_of(spec.datatype)
    if kind.kind == "f":
        return random.standard_normal(spec.shape).astype(kind)
    limit = 2 if kind.kind == "b" else min(256, int(np.iinfo(kind).max) + 1)
    return random.integers(0, limit, spec.shape).astype(kind)


def for_perf_analyzer(rows: InputRows, path: Path) -> Path:
    """Return the rows as a file for perf_analyzer's --input-data."""
    data = [
        {
            name: {"b64": base64.b64encode(raw(row)).decode(), "shape": list(row.shape)}
            for name, row in zip(rows.values, row_values, strict=True)
        }
        for row_values in zip(*rows.values.values(), strict=True)
    ]
    path.write_text(json.dumps({"data": data}))
    return path
