"""How sure a deployed model has to be, changed where it is deployed: its config and its manifest."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gourmet.deploying.deploy import replace_text
from gourmet.repository import RepositoryError, model_names, versions
from gourmet.repository.config_file import ConfigFile
from gourmet.runtime import manifest
from gourmet.runtime.manifest import MANIFEST
from gourmet.runtime.reading import in_short, what_it_says


def of_same_weights(model: Path) -> list[Path]:
    """The models beside it, itself included, whose newest version was made of the same weights."""
    if not (weights := _weights(model)):
        raise RepositoryError(f"{model} has no version that says what weights it is of: deploy it first")
    beside = [model.parent / name for name in model_names(model.parent)]
    return [each for each in beside if _weights(each) == weights]


def newest(model: Path) -> Path:
    return model / str(max(versions(model), default=0))


def put(
    models: Sequence[Path],
    calibration: Mapping[str, float],
    facts: Mapping[str, Any],
    served: Callable[[Path], None] = lambda _model: None,
) -> None:
    """Give the newest versions of `models` these numbers, or raise and leave everything as it was.

    `served` is called with each in place, and may still refuse it.
    """
    with contextlib.ExitStack() as undo:
        for model in models:
            version = newest(model)
            before, config = manifest.read(version), ConfigFile.read(model)
            try:
                with what_it_says():
                    config = config.with_version(calibration, before.get("dims", {}))
            except ValueError as exc:
                raise RepositoryError(
                    f"{version / MANIFEST} has no shapes that can be used ({in_short(exc)}): deploy the "
                    "model again with `gourmet deploy`"
                ) from exc
            about = {
                **before,
                "calibration": dict(calibration),
                **facts,
                "config": config.generated,
            }
            replace_text(version / MANIFEST, json.dumps(about, indent=2) + "\n", undo)
            for name, text in config.texts().items():
                replace_text(model / name, text, undo)
            served(model)
        undo.pop_all()


def _weights(model: Path) -> str:
    with contextlib.suppress(OSError, ValueError), what_it_says():
        return str(manifest.facts(newest(model))["training"]["weights_sha256"])
    return ""
