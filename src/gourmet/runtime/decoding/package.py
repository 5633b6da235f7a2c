"""What a served model that generates needs, in one file: graphs and vocabulary.

The same content is the same file, and lies in a repository once: instead of a package, another model may have
a reference to one that a model beside it has, by its sha256.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.runtime import manifest

FILE: Final = "model.zip"
REFERENCE: Final = "package.json"
_ALWAYS: Final = (1980, 1, 1, 0, 0, 0)


def write(path: Path, files: Mapping[str, bytes]) -> None:
    """Not compressed: weights hardly shrink, and it would be paid for at each start."""
    with zipfile.ZipFile(path, "w") as package:
        for name in sorted(files):
            package.writestr(zipfile.ZipInfo(name, _ALWAYS), files[name])


def read(path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as package:
            return {name: package.read(name) for name in package.namelist()}
    except (OSError, zipfile.BadZipFile) as exc:
        raise GourmetError(
            f"{path} cannot be read: {exc}. Deploy the model again with `gourmet deploy`"
        ) from exc


def write_reference(path: Path, model: str, sha256: str) -> None:
    """Say that the package is the one of `model`, in the same repository, that has this sha256."""
    path.write_text(json.dumps({"model": model, "sha256": sha256}, indent=2) + "\n", encoding="utf-8")


def open_version(version: Path, config: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a version's package, or of the one it refers to, if they are those that its manifest
    names; raises GourmetError.
    """
    path = version / REFERENCE
    if not path.exists():
        manifest.check(version / FILE, config)
        return read(version / FILE)
    manifest.check(path, config)
    return read(_referred_to(path))


def _referred_to(reference: Path) -> Path:
    try:
        about = json.loads(reference.read_text(encoding="utf-8"))
        model, digest = str(about["model"]), str(about["sha256"])
        if model != Path(model).name:
            raise ValueError(f"{model!r} is not the name of a model")
        beside = reference.parents[2] / model
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise GourmetError(f"{reference} cannot be read ({exc!r}): deploy the model again") from exc
    for path in sorted(beside.glob(f"[0-9]*/{FILE}")):
        if manifest.sha256(path) == digest:
            return path
    raise GourmetError(
        f"{reference} refers to a package that {beside} does not have: keep both models in one repository, "
        f"or deploy {beside.name} and then {reference.parents[1].name} again"
    )
