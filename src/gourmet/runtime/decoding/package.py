"""What a served model that generates needs, in one file: graphs and vocabulary.

The same content is the same file, and lies in a repository once: instead of a package, another model may have
a reference to one that a model beside it has, by its sha256; and a package may refer to graphs that are
models of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.runtime import manifest
from gourmet.runtime.reading import ZIP_ERRORS, in_short, read_table, what_it_says

FILE: Final = "model.zip"
REFERENCE: Final = "package.json"
_ELSEWHERE: Final = "elsewhere.json"
_GRAPH: Final = "model.onnx"
_ALWAYS: Final = (1980, 1, 1, 0, 0, 0)
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def write(path: Path, files: Mapping[str, bytes], elsewhere: Mapping[str, str] = NOTHING) -> None:
    """Not compressed: weights hardly shrink, and it would be paid for at each start.

    Of files that are `elsewhere`, which says for each what model it is, the package has the sha256.
    """
    refers = {
        name: {"model": model, "sha256": hashlib.sha256(files[name]).hexdigest()}
        for name, model in elsewhere.items()
    }
    held = {name: data for name, data in files.items() if name not in refers}
    if refers:
        held[_ELSEWHERE] = json.dumps(refers, indent=2).encode()
    with zipfile.ZipFile(path, "w") as package:
        for name in sorted(held):
            package.writestr(zipfile.ZipInfo(name, _ALWAYS), held[name])


def read(path: Path) -> dict[str, bytes]:
    """All files of a package in a version's folder, those that are elsewhere included."""
    try:
        with what_it_says(), zipfile.ZipFile(path) as package:
            files = {name: package.read(name) for name in package.namelist()}
            refers = json.loads(files.pop(_ELSEWHERE, b"{}"))
            found = {name: _beside(path, each, _GRAPH) for name, each in refers.items()}
        return files | {name: graph.read_bytes() for name, graph in found.items()}
    except ZIP_ERRORS as exc:
        raise GourmetError(
            f"{path} cannot be read: {in_short(exc)}. Deploy the model again with `gourmet deploy`"
        ) from exc


@contextlib.contextmanager
def opened_as(what: str) -> Iterator[None]:
    """Within, a package's files are taken for those of `what`; GourmetError says where they are not."""
    try:
        yield
    except GourmetError:
        raise
    except Exception as exc:  # what tokenizers and ONNX Runtime make of what somebody wrote
        raise GourmetError(
            f"the package is not that of {what} ({type(exc).__name__}: {in_short(exc)}): deploy the model "
            "again with `gourmet deploy`"
        ) from exc


def write_reference(path: Path, model: str, sha256: str) -> None:
    """Say that the package is the one of `model`, in the same repository, that has this sha256."""
    path.write_text(reference_to(model, sha256), encoding="utf-8")


def reference_to(model: str, sha256: str) -> str:
    return json.dumps({"model": model, "sha256": sha256}, indent=2) + "\n"


def read_reference(path: Path) -> dict[str, str]:
    try:
        about = read_table(path)
        return {key: str(about[key]) for key in ("model", "sha256")}
    except (OSError, ValueError, KeyError) as exc:
        raise GourmetError(f"{path} cannot be read ({exc!r}): deploy the model again") from exc


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
        return _beside(reference, read_reference(reference), FILE)
    except (OSError, ValueError) as exc:
        raise GourmetError(f"{reference} cannot be read ({exc!r}): deploy the model again") from exc


def _beside(reference: Path, about: Mapping[str, Any], file: str) -> Path:
    """The file of a model beside that of `reference` that has the sha256 that it says."""
    model, digest = str(about["model"]), str(about["sha256"])
    if model != Path(model).name or model in ("", ".."):
        raise ValueError(f"{model!r} is not the name of a model")
    beside = reference.parents[2] / model
    for path in sorted(beside.glob(f"[0-9]*/{file}")):
        if manifest.sha256(path) == digest:
            return path
    raise GourmetError(
        f"{reference} refers to a {file} that {beside} does not have: keep both models in one repository, "
        f"or deploy {beside.name} and then {reference.parents[1].name} again"
    )
