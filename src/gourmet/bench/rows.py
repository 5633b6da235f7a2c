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

from gourmet.errors import UsageError
from gourmet.systems import registry
from gourmet.systems.instances import parameter

Array = npt.NDArray[Any]

_PICTURE_SUFFIXES: Final = {".jpg", ".jpeg", ".png", ".webp"}


@dataclass(frozen=True)
class Input:
    """An input of a model: Triton's datatype and the shape of one row."""

    name: str
    datatype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """Rows for a model's inputs; `batched` tells whether a request may hold several."""

    inputs: tuple[Input, ...]
    values: Mapping[str, Array]  # [rows, *dims]
    batched: bool
    about: str
    pictures: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return len(self.values[self.inputs[0].name])

    def tensor(self, given: Input, which: Sequence[int]) -> Array:
        """These rows as one request's tensor."""
        picked = self.values[given.name][list(which)]
        return picked if self.batched else np.asarray(picked[0])


def raw(values: Array) -> bytes:
    """A tensor as Triton takes it over the wire."""
    if values.dtype == np.object_:
        return bytes(serialize_byte_tensor(values).item()) if values.size else b""
    return np.ascontiguousarray(values).tobytes()


def inputs_of(config: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> tuple[Input, ...]:
    """The inputs that a model's config declares; `shapes` fills in dimensions that it leaves open."""
    found = []
    for declared in config["input"]:
        name = declared["name"]
        datatype = declared["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES")
        dims = tuple(int(dim) for dim in shapes.get(name, declared["dims"]))
        if min(dims, default=1) < 1:
            raise UsageError(
                f"input {name} of {config['name']} has the open shape {list(dims)}: "
                f"say that of one row, as in --shape {name}:{','.join(str(abs(dim)) for dim in dims)}"
            )
        found.append(Input(name, datatype, dims))
    return tuple(found)


def rows_for(
    config: Mapping[str, Any],
    *,
    count: int,
    seed: int,
    data: Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    size: tuple[int, int] = (400, 300),
) -> Rows:
    """`count` rows for a model: out of `data`, else drawn photos where its system has them, else noise."""
    inputs = inputs_of(config, shapes or {})
    batched = int(config.get("max_batch_size", 0)) > 0
    if data is not None and data.suffix == ".npz":
        return _from_arrays(data, inputs, batched, count)
    pictures, about = _pictures(parameter(config, "system"), data, count, seed, size)
    if pictures and len(inputs) == 1:
        contract = registry.room(parameter(config, "system"), "contract")
        encoded = [contract.encode(picture, inputs[0].datatype)[0] for picture in pictures]
        values = np.stack([row.reshape(inputs[0].dims) for row in encoded])
        return Rows(inputs, {inputs[0].name: values}, batched, about, tuple(pictures))
    random = np.random.default_rng(seed)
    noise = {given.name: np.stack([_noise(given, random) for _ in range(count)]) for given in inputs}
    return Rows(inputs, noise, batched, f"{count} rows of noise, seed {seed}")


def _pictures(
    system: str, data: Path | None, count: int, seed: int, size: tuple[int, int]
) -> tuple[list[bytes], str]:
    if data is None:
        return _drawn(system, count, seed, size)
    files = sorted(path for path in data.rglob("*") if path.suffix.lower() in _PICTURE_SUFFIXES)
    if not system or not files:
        why = "it has no pictures" if system else "the model names no system whose pictures it takes"
        raise UsageError(
            f"--data {data} cannot be used: {why}; give a folder of photos, or an .npz by inputs"
        )
    # Spread over the folder, which is often sorted by class.
    chosen = files[:: max(1, len(files) // count)][:count]
    return [path.read_bytes() for path in chosen], f"{len(chosen)} pictures of {data.name}"


def _drawn(system: str, count: int, seed: int, size: tuple[int, int]) -> tuple[list[bytes], str]:
    """Pictures of a system that can draw its own."""
    rooms = {path.stem for path in (Path(registry.__file__).parent / system).glob("drawn_*.py")}
    if system and "drawn_photos" in rooms:
        width, height = size
        photos = registry.room(system, "drawn_photos").photos(count, width=width, height=height, seed=seed)
        return photos, f"{count} drawn photos of {width}×{height}, seed {seed}"
    if system and "drawn_digits" in rooms:
        draw, random = registry.room(system, "drawn_digits").png, np.random.default_rng(seed)
        digits = [
            draw(at % 10, brush=random.uniform(0.05, 0.12), scale=random.uniform(0.6, 1.0))
            for at in range(count)
        ]
        return digits, f"{count} drawn digits, seed {seed}"
    return [], ""


def _from_arrays(path: Path, inputs: tuple[Input, ...], batched: bool, count: int) -> Rows:
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
    return Rows(inputs, values, batched, f"{len(values[inputs[0].name])} rows of {path.name}")


def _noise(given: Input, random: np.random.Generator) -> Array:
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


def for_perf_analyzer(rows: Rows, path: Path) -> Path:
    """The rows as the file that perf_analyzer takes with --input-data."""
    data = [
        {
            given.name: {
                "b64": base64.b64encode(raw(rows.values[given.name][row])).decode(),
                "shape": list(given.dims),
            }
            for given in rows.inputs
        }
        for row in range(len(rows))
    ]
    path.write_text(json.dumps({"data": data}))
    return path
