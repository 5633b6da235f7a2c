"""Versions of a served model: built aside, through the gate, into place, and back to the one before."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from gourmet.deploying.target import Check, Deployment, table
from gourmet.errors import GourmetError
from gourmet.repository import RepositoryError, read_config, versions
from gourmet.runtime.files import write_whole
from gourmet.runtime.manifest import MANIFEST, sha256
from gourmet.serving.client import ModelUnavailable, triton

_BUILT_BY: Final = ("torch", "torchvision", "onnx", "onnxruntime", "numpy")
_LOADS_WITHIN_S: Final = 180.0


def deploy(
    deployment: Deployment,
    form: str,
    repository: Path,
    number: int | None = None,
    served: Callable[[Path], None] = lambda _version: None,
) -> tuple[Path, Sequence[Check]]:
    """Put a model of the format `form` into `repository`, or raise and leave everything as it was.

    Returns the new version's folder and the checks that it passed. `served` is called with it in place, and
    may still refuse it.
    """
    target = deployment.targets[form]
    model = repository / target.model
    with contextlib.ExitStack() as undo:
        new = target.new_folder and not model.exists()
        if new:
            _make_folder(model, undo)
            _write_files(model, target.new_folder, undo)
        read_config(model)  # a model that Triton could not load is better refused before the work
        with staged(model, target.file, number, alone=target.replaces, served=served) as (aside, final):
            file = aside / target.file
            form_facts = target.build(file)
            checks = target.verify(file)
            if not all(check.passed for check in checks):
                raise GourmetError(
                    f"{target.model} is not deployed; what is served stays as it is\n{table(checks)}"
                )
            manifest = {
                "model": target.model,
                "file": target.file,
                "sha256": sha256(file),
                "bytes": file.stat().st_size,
                **form_facts,
                "built_by": {
                    "python": platform.python_version(),
                    **{name: version(name) for name in _BUILT_BY},
                },
                **deployment.facts,
                "calibration": dict(deployment.calibration),
                "dims": {name: list(dims) for name, dims in target.dims.items()},
                "gate": [vars(check) for check in checks],
            }
            (aside / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
            file.chmod(0o644)
            if target.replaces and not new:
                # Not before: a server that polls would serve the version before with this config.
                _write_files(model, target.new_folder, undo)
        write_config(model, int(final.name))
        undo.pop_all()
    return final, checks


def _make_folder(model: Path, undo: contextlib.ExitStack) -> None:
    for folder in reversed([model, *(each for each in model.parents if not each.exists())]):
        folder.mkdir()
        undo.callback(shutil.rmtree, folder, ignore_errors=True)


def _write_files(model: Path, files: Mapping[str, str], undo: contextlib.ExitStack) -> None:
    """Write each, and have `undo` put back what was there."""
    for name, text in files.items():
        path = model / name
        if path.exists():
            undo.callback(write_whole, path, path.read_text(encoding="utf-8"))
        else:
            undo.callback(path.unlink, missing_ok=True)
        write_whole(path, text)


@contextlib.contextmanager
def staged(
    model: Path,
    exported: str,
    number: int | None = None,
    *,
    alone: bool = False,
    served: Callable[[Path], None] = lambda _version: None,
) -> Iterator[tuple[Path, Path]]:
    """Yield a folder to build a version of `model` in and the place that it takes if nothing failed.

    Without a `number` it is the version after the latest. It is built in the model's own folder, so
    that it takes its place by a rename; Triton looks only at folders that are numbers. Unless it is to
    stand `alone`, all files of the latest version but the `exported` one are taken over: a Python model's
    code belongs to no export. Where `served` raises, the version that it took the place of is back.
    """
    before = versions(model)
    final = model / str(number or (before[-1] + 1 if before else 1))
    aside, replaced = model / f".next.{os.getpid()}", model / f".old.{os.getpid()}"
    aside.mkdir()
    try:
        if before and not alone:
            skipped = shutil.ignore_patterns(exported, MANIFEST, "__pycache__")
            shutil.copytree(model / str(before[-1]), aside, ignore=skipped, dirs_exist_ok=True)
        yield aside, final
        if final.exists():
            final.rename(replaced)
        try:
            aside.rename(final)
            served(final)
        except BaseException:
            if final.exists():
                final.rename(aside)
            if replaced.exists():
                replaced.rename(final)
            raise
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def rollback(model: Path) -> tuple[int, int]:
    """Withdraw the latest version of `model`; return its number and that of the one before.

    The withdrawn folder stays beside the others under a name that Triton does not look at.
    """
    numbers = versions(model)
    if len(numbers) < 2:
        raise RepositoryError(f"{model} has no version before {numbers[-1] if numbers else 'the first'}")
    before, latest = numbers[-2:]
    withdrawn = model / f".withdrawn-{latest}"
    shutil.rmtree(withdrawn, ignore_errors=True)
    (model / str(latest)).rename(withdrawn)
    write_config(model, before)
    return latest, before


def write_config(model: Path, number: int) -> None:
    """Put what the manifest of version `number` has for the model's config, if anything, into it."""
    manifest = model / str(number) / MANIFEST
    if manifest.exists():
        about, config = json.loads(manifest.read_text(encoding="utf-8")), model / "config.pbtxt"
        if numbers := about.get("calibration"):
            set_parameters(config, {name: f"{value:.4f}" for name, value in numbers.items()})
        if dims := about.get("dims"):
            set_dims(config, dims)


def set_dims(config: Path, dims: Mapping[str, Sequence[int]]) -> None:
    """Write the shapes of these inputs and outputs into the file `config`; its comments stay."""
    text = config.read_text(encoding="utf-8")
    for name, shape in dims.items():
        entry = rf'(name:\s*"{re.escape(name)}"[^}}]*?dims:\s*)\[[^\]]*\]'
        text, found = re.subn(entry, rf"\g<1>[ {', '.join(map(str, shape))} ]", text)
        if found != 1:
            raise RepositoryError(f"{config} has no input or output {name!r} whose dims could be set")
    write_whole(config, text)


def set_parameters(config: Path, values: Mapping[str, str]) -> None:
    """Write `values` into the parameters of the file `config`; its comments stay."""
    text = config.read_text(encoding="utf-8")
    for key, value in values.items():
        entry = rf'(key:\s*"{re.escape(key)}"\s*,?\s*value:?\s*\{{\s*string_value:\s*)"[^"]*"'
        text, found = re.subn(entry, rf'\g<1>"{value}"', text)
        if not found:
            text += f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
    write_whole(config, text)


def load(url: str, model: str) -> None:
    """Have Triton serve what is on disk; it answers from the old version until the new one is ready."""
    with triton(url, timeout_s=_LOADS_WITHIN_S) as client:
        client.load_model(model)


def load_or_roll_back(url: str, model: Path) -> None:
    """Like `load`; a version that Triton refuses is withdrawn again, so that disk and server agree."""
    try:
        load(url, model.name)
    except ModelUnavailable:
        rollback(model)
        raise
