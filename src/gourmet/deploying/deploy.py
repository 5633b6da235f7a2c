"""Build aside, pass the gate, write the manifest, move the folder into place."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from gourmet.deploying.target import Check, Deployment, ExportRefused, table
from gourmet.deploying.versions import write_calibration
from gourmet.repository import read_config, versions
from gourmet.runtime.manifest import MANIFEST, sha256

_BUILT_BY: Final = ("torch", "torchvision", "onnx", "onnxruntime", "numpy")


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
                raise ExportRefused(
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
