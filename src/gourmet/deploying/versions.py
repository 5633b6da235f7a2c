"""Versions of a model that is deployed: back to the one before, and what a running Triton serves of them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gourmet.repository import RepositoryError, versions
from gourmet.runtime.files import written_aside
from gourmet.runtime.manifest import MANIFEST
from gourmet.serving.client import ModelUnavailable, triton

_LOADS_WITHIN_S: Final = 180.0


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
    with written_aside(config) as aside:
        aside.write_text(text, encoding="utf-8")


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
