"""The model repositories on disk: configs, files, and whether the two fit together."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf import json_format

from gourmet import repository
from gourmet.doctor import gpus
from gourmet.doctor.findings import Finding, Subject, fail, ok, refused, warn
from gourmet.errors import GourmetError
from gourmet.serving import preflight, wheel
from gourmet.systems import manifest

Config = dict[str, Any]

_KIND_GPU = "KIND_GPU"


def configs(subject: Subject) -> Iterator[Finding]:
    """Every config can be read and stands beside what it names."""
    served = preflight.check_repositories(subject.repositories)
    problems = 0
    for model in _models(subject):
        for finding in _about(model):
            problems += 1
            yield finding
    if not problems:
        yield ok(f"{len(served)} models: {', '.join(served)}")


def _about(model: Path) -> Iterator[Finding]:
    try:
        config = as_triton_sees(model)
    except repository.RepositoryError as exc:
        yield refused(exc)
        return
    path = model / "config.pbtxt"
    if config["name"] not in ("", model.name):
        yield fail(
            f"{path} calls the model {config['name']!r}, its folder {model.name!r}",
            "Triton wants them alike: rename one",
        )
    if not repository.versions(model):
        yield fail(f"{model} has no version", "deploy one (`gourmet deploy`), or make a folder 1/ with it")
    for output in config["output"]:
        labels = output["label_filename"]
        if labels and not (model / labels).is_file():
            yield fail(
                f"{path} names the labels {labels!r} of {output['name']!r}, and {model} has none",
                "put the file there, a class a line",
            )
    if config["backend"] == "python":
        for number in repository.versions(model):
            yield from _code(model / str(number) / (config["default_model_filename"] or "model.py"))


def _code(file: Path) -> Iterator[Finding]:
    try:
        compile(file.read_text(encoding="utf-8"), str(file), "exec")
    except FileNotFoundError:
        yield fail(f"there is no {file}", "a Python model is a model.py in its version folder")
    except (SyntaxError, ValueError) as exc:
        yield fail(f"{file} is no Python: {exc}", "correct it")


def onnx_files(subject: Subject) -> Iterator[Finding]:
    """What our ONNX Runtime backend would say to each file at load: names, types, dims, the file itself."""
    sessions, signatures = _backend_module("onnx_session"), _backend_module("onnx_signature")
    fitting = []
    for model, config in _readable(subject):
        if config["backend"] != "onnxruntime":
            continue
        # Whether the config asks for a manifest is looked at there too; here, whether file and config fit.
        unmanifested = {**config, "parameters": {}}
        for number in repository.versions(model):
            try:
                path = sessions.model_path(model / str(number), unmanifested)
                found = signatures.Signature.of(sessions.peek(path))
                if signatures.is_complete(config):
                    signatures.check(config, found)
            except (sessions.SessionError, signatures.SignatureError) as exc:
                yield fail(f"{model.name}, version {number}: {exc}", "export it again, or correct its config")
            except manifest.ManifestError:
                continue  # another file than the deployed one has its line under manifests
            else:
                fitting.append(model.name)
    yield ok(f"{', '.join(dict.fromkeys(fitting)) or 'no ONNX model'} fit their configs")


def weights(subject: Subject) -> Iterator[Finding]:
    """TorchScript files and, where one was named, a training run's weights can be opened."""
    whole = []
    for model in _models(subject):
        for file in sorted(model.glob("[0-9]*/*.pt")):
            if zipfile.is_zipfile(file):
                whole.append(file.parent.parent.name)
            else:
                yield fail(
                    f"{file} is no TorchScript file (cut short?)", "deploy it again with `gourmet deploy`"
                )
    if subject.weights:
        from gourmet.training.files import read_about

        read_about(subject.weights)
        whole.append(str(subject.weights))
    yield ok(f"{', '.join(whole) or 'none of torch'} can be opened")


def manifests(subject: Subject) -> Iterator[Finding]:
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


def devices(subject: Subject) -> Iterator[Finding]:
    """Instances on GPUs that are not there."""
    try:
        count = len(gpus.find())
    except gpus.GpuTrouble:
        count = 0
    wrong = False
    for model, config in _readable(subject):
        for group in config["instance_group"]:
            if group["kind"] != _KIND_GPU:
                continue
            missing = [gpu for gpu in group["gpus"] if gpu >= count]
            if not count or missing:
                wrong = True
                which = f"GPU {missing[0]}" if count else "a GPU (KIND_GPU)"
                yield fail(
                    f"{model.name} wants {which}, and this machine has {count or 'none'}",
                    f"`gourmet config {model.name} --cpu`, or kind: KIND_AUTO in its config.pbtxt, "
                    "which takes the CPU where there is no GPU",
                )
    if not wrong:
        yield ok("no instance is bound to a GPU that is not there")


def chosen(subject: Subject) -> Iterator[Finding]:
    """The models that the environment chose for the pages are served."""
    served = preflight.check_repositories(subject.repositories)
    found = preflight.configured_models(subject.environment, served)
    if found:
        yield ok(f"answered by {', '.join(model.name for model in found)}")
    else:
        yield warn("no model of a system with a page is here", "give the folder with --model-repository")


def as_triton_sees(model: Path) -> Config:
    """The config of a model with every field that it leaves open, in the form of the server's answers."""
    config: Config = json_format.MessageToDict(
        repository.read_config(model), preserving_proto_field_name=True, including_default_value_fields=True
    )
    return config


def _models(subject: Subject) -> Iterator[Path]:
    for folder in subject.repositories:
        for name in repository.model_names(folder):
            yield folder / name


def _readable(subject: Subject) -> Iterator[tuple[Path, Config]]:
    """The models whose config can be read; the others have their line elsewhere."""
    for model in _models(subject):
        try:
            yield model, as_triton_sees(model)
        except repository.RepositoryError:
            continue


def _backend_module(name: str) -> ModuleType:
    """A module of our ONNX Runtime backend, which lies on no path but Triton's."""
    registered = f"gourmet_doctor_{name}"
    if registered not in sys.modules:
        path = wheel.own_backends() / "onnxruntime" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(registered, path)
        assert spec
        assert spec.loader
        sys.modules[registered] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[registered])
    return sys.modules[registered]
