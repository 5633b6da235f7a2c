"""Back to the version before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from gourmet.deploying.parameters import set_parameters
from gourmet.repository import RepositoryError, versions
from gourmet.runtime.manifest import MANIFEST


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
