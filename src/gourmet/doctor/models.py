"""The model repositories on disk: configs, files, and whether the two fit together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from gourmet import repository
from gourmet.doctor import gpus
from gourmet.doctor.findings import Examined, Finding, fail, ok, refused, unless_any
from gourmet.errors import GourmetError
from gourmet.runtime import manifest
from gourmet.serving import preflight

Config = dict[str, Any]


def configs(subject: Examined) -> Iterator[Finding]:
    """Every config can be read; whether a model is what its config says, Triton tells when it loads it."""
    served = preflight.check_repositories(subject.repositories)
    yield from unless_any(_unreadable(subject), f"{len(served)} models: {', '.join(served)}")


def _unreadable(subject: Examined) -> Iterator[Finding]:
    for model in models_of(subject):
        try:
            repository.read_config(model)
        except repository.RepositoryError as exc:
            yield refused(exc)


def weights(subject: Examined) -> Iterator[Finding]:
    """The weights of a training run, where some were named, can be opened."""
    if subject.weights is None:
        yield ok("no weights to look at; name some with --weights")
        return
    from gourmet.training.files import load_tensors

    load_tensors(subject.weights)
    yield ok(f"{subject.weights} can be opened")


def manifests(subject: Examined) -> Iterator[Finding]:
    """The files that were deployed are the files that lie there."""
    same: list[str] = []
    without: list[str] = []
    for model, config in _readable(subject):
        for number in repository.versions(model):
            version = model / str(number)
            file = _weights_file(version, config)
            try:
                (same if manifest.check(file, config, version) else without).append(model.name)
            except GourmetError as exc:
                yield refused(exc)
    if without:
        yield ok(f"no manifest, and none asked for: {', '.join(dict.fromkeys(without))}")
    yield ok(f"{', '.join(dict.fromkeys(same)) or 'no model'} as deployed")


def _weights_file(version: Path, config: Config) -> Path:
    """The file that the version's backend hands to the manifest."""
    if config["backend"] == "python":
        found = sorted(version.glob("*.pt"))
        return found[0] if found else version / "model.pt"
    file = version / (config["default_model_filename"] or "model.onnx")
    return file / "model.onnx" if file.is_dir() else file


def devices(subject: Examined) -> Iterator[Finding]:
    """Instances on GPUs that are not there."""
    try:
        count = len(gpus.find())
    except gpus.GpuTrouble:
        count = 0
    groups = (
        (model.name, group) for model, config in _readable(subject) for group in config["instance_group"]
    )
    yield from unless_any(
        (finding for model, group in groups for finding in _missing_gpu(model, group, count)),
        "no instance is bound to a GPU that is missing",
    )


def _missing_gpu(model: str, group: Config, count: int) -> Iterator[Finding]:
    missing = [gpu for gpu in group["gpus"] if gpu >= count]
    if group["kind"] == "KIND_GPU" and (missing or not count):
        yield fail(
            f"{model} wants {f'GPU {missing[0]}' if count else 'a GPU (KIND_GPU)'}, "
            f"and this machine has {count or 'none'}",
            f"`gourmet config {model} --cpu`, or kind: KIND_AUTO in its config.pbtxt, "
            "which takes the CPU where there is no GPU",
        )


def as_triton_sees(model: Path) -> Config:
    """The config of a model with every field that it leaves open, in the form of the server's answers."""
    config: Config = json_format.MessageToDict(
        repository.read_config(model), preserving_proto_field_name=True, including_default_value_fields=True
    )
    return config


def models_of(subject: Examined) -> Iterator[Path]:
    for folder in subject.repositories:
        for name in repository.model_names(folder):
            yield folder / name


def _readable(subject: Examined) -> Iterator[tuple[Path, Config]]:
    """The models whose config can be read; the others have their line elsewhere."""
    for model in models_of(subject):
        try:
            yield model, as_triton_sees(model)
        except repository.RepositoryError:
            continue
