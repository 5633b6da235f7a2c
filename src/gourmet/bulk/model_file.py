"""A model's own file, asked in this process as the model in Triton asks it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Semaphore
from typing import Any, Final

from gourmet.bulk.answer_loop import AnswerLoop
from gourmet.bulk.open_model import OpenModel
from gourmet.client.errors import InvalidRequest
from gourmet.client.model_config import as_json
from gourmet.contracts import ModelInfo, Tensors
from gourmet.errors import GourmetError, UsageError
from gourmet.repository import read_config, versions
from gourmet.runtime import cpu_engine, manifest
from gourmet.runtime.decoding import package
from gourmet.runtime.instances import CPU, THREADS_PARAMETER, available_cpus

# Where Triton's metadata has another name for a type than configs.
_DATATYPES: Final = {"STRING": "BYTES"}
# The name, the type as configs have it, and the dimensions.
_Tensor = tuple[str, str, Iterable[Any]]


def folder_of(model: str, repositories: Iterable[Path]) -> Path:
    """The folder of a served model's version: NAME/VERSION, or of NAME the one that Triton answers by."""
    name, _, version = model.partition("/")
    for repository in repositories:
        folder = repository / name
        if (folder / "config.pbtxt").is_file() and (there := versions(folder)):
            version = version or _info(_config(folder), map(str, there)).version
            if not (folder / version).is_dir():
                raise UsageError(f"{folder} has no version {version}: newest is {there[-1]}")
            return (folder / version).resolve()
    looked = ", ".join(map(str, repositories)) or "no folder"
    raise UsageError(f"no file of {name!r} found in {looked}: name its folder by --model-repository")


def opened(version: Path) -> OpenModel:
    """What a version's file takes and gives, and how it is asked; its manifest is checked before."""
    config = _config(version.parent)
    # A thread for each run: as many of them are at work as there are processors.
    config["parameters"] = {**config.get("parameters", {}), THREADS_PARAMETER: {"string_value": "1"}}
    if any((version / each).exists() for each in (package.FILE, package.REFERENCE)):
        return _loop(version, config)
    return _engine(version, config)


def _loop(version: Path, config: Mapping[str, Any]) -> OpenModel:
    """Of a model that answers word by word; it is opened when it is first asked."""
    rows: Iterable[Any] = [-1] if int(config["max_batch_size"]) else []
    inputs, outputs = (
        [(each["name"], each["data_type"], [*rows, *each["dims"]]) for each in config.get(side, ())]
        for side in ("input", "output")
    )
    loop = AnswerLoop(version, config)
    return OpenModel(_info(config, [version.name], inputs, outputs).at(version.name), loop.ask, loop.close)


def _engine(version: Path, config: Mapping[str, Any]) -> OpenModel:
    """Of a model that answers in a single run."""
    from gourmet.runtime.onnx_session import InvalidArgument, open_engine

    engine = open_engine(_file(version, config), config, CPU, logging.getLogger(__name__).warning)
    signature = engine.signature
    turns = Semaphore(available_cpus())
    answered_by = [each.name for each in signature.outputs]

    def ask(inputs: Tensors) -> tuple[Tensors, str]:
        try:
            with turns:
                outputs = engine.run(dict(inputs), answered_by)
        except InvalidArgument as exc:
            raise InvalidRequest(str(exc), 400) from exc
        return dict(zip(answered_by, outputs, strict=True)), version.name

    inputs, outputs = (
        [(each.name, each.triton_type, each.dims) for each in side]
        for side in (signature.inputs, signature.outputs)
    )
    info = _info(config, [version.name], inputs, outputs).at(version.name)
    return OpenModel(info, ask, lambda: None)


def _config(model: Path) -> dict[str, Any]:
    return {"max_batch_size": 0, **as_json(read_config(model)), "name": model.name}


def _info(
    config: Mapping[str, Any],
    versions: Iterable[str],
    inputs: Iterable[_Tensor] = (),
    outputs: Iterable[_Tensor] = (),
) -> ModelInfo:
    """As of the model in a Triton that has these versions."""

    def as_metadata(tensors: Iterable[_Tensor]) -> list[dict[str, Any]]:
        names = [(name, kind.removeprefix("TYPE_"), dims) for name, kind, dims in tensors]
        return [
            {"name": name, "datatype": _DATATYPES.get(kind, kind), "shape": dims}
            for name, kind, dims in names
        ]

    metadata = {"name": config["name"], "versions": list(versions)}
    return ModelInfo.from_triton(
        {**metadata, "inputs": as_metadata(inputs), "outputs": as_metadata(outputs)}, config
    )


def _file(version: Path, config: Mapping[str, Any]) -> Path:
    """That which the model itself would open on a CPU, checked against its manifest."""
    if config.get("backend") == "onnxruntime":
        return manifest.deployed_file(version, config, "model.onnx")
    if config.get("parameters", {}).get(cpu_engine.PRECISION_PARAMETER):
        chosen, usual = (version / cpu_engine.FILES[each] for each in (cpu_engine.precision(config), "fp32"))
        path = chosen if chosen.exists() else usual
        manifest.check(path, config)
        return path
    raise GourmetError(f"{config['name']} is a program of its own, not a file: ask it with --via triton")
