"""A model's own file, asked in this process as the model in Triton asks it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from threading import Semaphore
from typing import Any

from gourmet.bulk.photos import AskModel
from gourmet.client.errors import InvalidRequest
from gourmet.client.model_config import as_json
from gourmet.contracts import Array, ModelInfo, Tensors
from gourmet.errors import GourmetError, UsageError
from gourmet.repository import read_config, versions
from gourmet.runtime import cpu_engine, manifest
from gourmet.runtime.instances import CPU, THREADS_PARAMETER, available_cpus
from gourmet.runtime.onnx_signature import OnnxTensor


def folder_of(model: str, repositories: Iterable[Path]) -> Path:
    """The folder of a served model's version: the newest of NAME, or NAME/VERSION."""
    name, _, version = model.partition("/")
    for repository in repositories:
        if (repository / name / "config.pbtxt").is_file() and (there := versions(repository / name)):
            folder = repository / name / (version or str(there[-1]))
            if not folder.is_dir():
                raise UsageError(f"{repository / name} has no version {version}: newest is {there[-1]}")
            return folder.resolve()
    looked = ", ".join(map(str, repositories)) or "no folder"
    raise UsageError(f"no file of {name!r} found in {looked}: name its folder by --model-repository")


def opened(version: Path) -> tuple[ModelInfo, AskModel]:
    """What a version's file takes and gives, and how it is asked, by any number of threads."""
    from gourmet.runtime.onnx_session import InvalidArgument, open_engine

    config = {"max_batch_size": 0, **as_json(read_config(version.parent)), "name": version.parent.name}
    # A thread for each run: as many of them are at work as there are processors.
    config["parameters"] = {**config.get("parameters", {}), THREADS_PARAMETER: {"string_value": "1"}}
    engine = open_engine(_file(version, config), config, CPU, logging.getLogger(__name__).warning)
    signature = engine.signature
    answered_by = [each.name for each in signature.outputs]
    turns = Semaphore(1 if engine.name == "OpenVINO" else available_cpus())

    def ask(rows: Array) -> tuple[Tensors, str]:
        try:
            with turns:
                outputs = engine.run({signature.inputs[0].name: rows}, answered_by)
        except InvalidArgument as exc:
            raise InvalidRequest(str(exc), 400) from exc
        return dict(zip(answered_by, outputs, strict=True)), version.name

    def told(tensors: Iterable[OnnxTensor]) -> list[dict[str, Any]]:
        return [
            {"name": each.name, "datatype": each.triton_type.removeprefix("TYPE_"), "shape": each.dims}
            for each in tensors
        ]

    metadata = {
        "name": version.parent.name,
        "versions": [version.name],
        "inputs": told(signature.inputs),
        "outputs": told(signature.outputs),
    }
    return ModelInfo.from_triton(metadata, config), ask


def _file(version: Path, config: dict[str, Any]) -> Path:
    """That which the model itself would open on a CPU, checked against its manifest."""
    if config.get("backend") == "onnxruntime":
        return manifest.deployed_file(version, config, "model.onnx")
    if config.get("parameters", {}).get(cpu_engine.PRECISION_PARAMETER):
        wanted, usual = (version / cpu_engine.FILES[each] for each in (cpu_engine.precision(config), "fp32"))
        path = wanted if wanted.exists() else usual
        manifest.check(path, config)
        return path
    raise GourmetError(f"{config['name']} is a program of its own, not a file: ask it with --via triton")
