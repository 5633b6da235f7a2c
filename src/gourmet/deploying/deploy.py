"""Versions of a served model: built aside, through the gate, into place, and back to the one before."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
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
    deployment: Deployment, form: str, repository: Path, number: int | None = None
) -> tuple[Path, Sequence[Check]]:
    """Put a model of the format `form` into `repository`, or raise and leave everything as it was.

    Returns the new version's folder and the checks that it passed.
    """
    target = deployment.targets[form]
    model = repository / target.model
    with contextlib.ExitStack() as undo:
        if target.new_folder and not model.exists():
            model.mkdir(parents=True)
            undo.callback(shutil.rmtree, model)
            for name, text in target.new_folder.items():
                (model / name).write_text(text, encoding="utf-8")
        read_config(model)  # a model that Triton could not load is better refused before the work
        with staged(model, target.file, number) as (aside, final):
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
                "gate": [vars(check) for check in checks],
            }
            (aside / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
            file.chmod(0o644)
        write_calibration(model, int(final.name))
        undo.pop_all()
    return final, checks


@contextlib.contextmanager
def staged(model: Path, exported: str, number: int | None = None) -> Iterator[tuple[Path, Path]]:
    """Yield a folder to build a version of `model` in and the place that it takes if nothing failed.

    Without a `number` it is the version after the latest. It is built in the model's own folder, so
    that it takes its place by a rename; Triton looks only at folders that are numbers. All files of
    the latest version but the `exported` one are taken over: a Python model's code belongs to no
    export.
    """
    before = versions(model)
    final = model / str(number or (before[-1] + 1 if before else 1))
    aside, replaced = model / f".next.{os.getpid()}", model / f".old.{os.getpid()}"
    aside.mkdir()
    try:
        if before:
            skipped = shutil.ignore_patterns(exported, MANIFEST, "__pycache__")
            shutil.copytree(model / str(before[-1]), aside, ignore=skipped, dirs_exist_ok=True)
        yield aside, final
        if final.exists():
            final.rename(replaced)
        aside.rename(final)
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
    write_calibration(model, before)
    return latest, before


def write_calibration(model: Path, number: int) -> None:
    """Put the calibration that the manifest of version `number` has, if any, into the model's config."""
    manifest = model / str(number) / MANIFEST
    if manifest.exists():
        numbers = json.loads(manifest.read_text(encoding="utf-8")).get("calibration") or {}
        if numbers:
            set_parameters(model / "config.pbtxt", {name: f"{value:.4f}" for name, value in numbers.items()})


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
