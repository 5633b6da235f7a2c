"""Build aside, pass the gate, write the manifest, move the folder into place."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from gourmet.deploying.rollback import write_calibration
from gourmet.deploying.staging import staged
from gourmet.deploying.target import Check, Deployment, ExportRefused, Target, table
from gourmet.repository import read_config
from gourmet.runtime.manifest import MANIFEST, sha256

_BUILT_BY: Final = ("torch", "torchvision", "onnx", "onnxruntime", "numpy")


@dataclass(frozen=True)
class Deployed:
    """A version that passed and is in its place."""

    folder: Path
    checks: Sequence[Check]


def deploy(deployment: Deployment, form: str, repository: Path, number: int | None = None) -> Deployed:
    """Put a model of the format `form` into `repository`, or raise and leave everything as it was."""
    target = deployment.targets[form]
    model = repository / target.model
    new = bool(target.new_folder) and not model.exists()
    if new:
        model.mkdir(parents=True)
    try:
        for name, text in target.new_folder.items() if new else ():
            (model / name).write_text(text, encoding="utf-8")
        return _deploy(deployment, target, model, number)
    except BaseException:
        if new:
            shutil.rmtree(model)
        raise


def _deploy(deployment: Deployment, target: Target, model: Path, number: int | None) -> Deployed:
    read_config(model)  # a model that Triton could not load is better refused before the work
    with staged(model, target.file, number) as (aside, final):
        form = target.build(aside / target.file)
        checks = target.verify(aside / target.file)
        if not all(check.passed for check in checks):
            raise ExportRefused(
                f"{target.model} is not deployed; what is served stays as it is\n{table(checks)}"
            )
        manifest = {
            "model": target.model,
            "file": target.file,
            "sha256": sha256(aside / target.file),
            "bytes": (aside / target.file).stat().st_size,
            **form,
            "built_by": {"python": platform.python_version(), **{name: version(name) for name in _BUILT_BY}},
            **deployment.facts,
            "calibration": dict(deployment.calibration),
            "gate": [vars(check) for check in checks],
        }
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        (aside / target.file).chmod(0o644)
    write_calibration(model, int(final.name))
    return Deployed(final, checks)
