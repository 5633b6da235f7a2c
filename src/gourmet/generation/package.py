"""The package of a served model that generates text: its graphs and vocabulary in one file.

A repository stores the same content only once: instead of a package, a model may have a reference to the
package of another model, by its sha256. A package may also refer to graphs that are models of their own.
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
from gourmet.served import manifest
from gourmet.served.reading import ZIP_ERRORS, error_summary, malformed_as_value_error, read_table

FILE: Final = "model.zip"
REFERENCE: Final = "package.json"
_ELSEWHERE: Final = "elsewhere.json"
_GRAPH: Final = "model.onnx"
_FIXED_DATE: Final = (1980, 1, 1, 0, 0, 0)  # the same content gives the same file
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def write_package(path: Path, files: Mapping[str, bytes], elsewhere: Mapping[str, str] = NOTHING) -> None:
    """Write a package, uncompressed: weights hardly shrink, and each start would pay for unpacking them.

    `elsewhere` names the files that other models have: the package stores the model's name and the sha256.
    """
    references = {
        name: {"model": model, "sha256": hashlib.sha256(files[name]).hexdigest()}
        for name, model in elsewhere.items()
    }
    stored = {name: data for name, data in files.items() if name not in references}
    if references:
        stored[_ELSEWHERE] = json.dumps(references, indent=2).encode()
    with zipfile.ZipFile(path, "w") as package:
        for name in sorted(stored):
            package.writestr(zipfile.ZipInfo(name, _FIXED_DATE), stored[name])


def read_package(path: Path) -> dict[str, bytes]:
    """Return all files of the package in a version's folder, including those of other models."""
    try:
        with malformed_as_value_error(), zipfile.ZipFile(path) as package:
            files = {name: package.read(name) for name in package.namelist()}
            references = json.loads(files.pop(_ELSEWHERE, b"{}"))
            graphs = {
                name: _referenced_file(path, reference, _GRAPH) for name, reference in references.items()
            }
        return files | {name: graph.read_bytes() for name, graph in graphs.items()}
    except ZIP_ERRORS as exc:
        raise GourmetError(
            f"{path} cannot be read: {error_summary(exc)}. Deploy the model again with `gourmet deploy`"
        ) from exc


@contextlib.contextmanager
def opened_as(what: str) -> Iterator[None]:
    """Raise GourmetError if the files of a package cannot be opened as those of `what` within the block."""
    try:
        yield
    except GourmetError:
        raise
    except Exception as exc:  # tokenizers and ONNX Runtime raise many types for bad files
        raise GourmetError(
            f"the package is not that of {what} ({type(exc).__name__}: {error_summary(exc)}): deploy the "
            "model again with `gourmet deploy`"
        ) from exc


def write_reference(path: Path, model: str, sha256: str) -> None:
    """Write a reference to the package with this sha256 of `model`, in the same repository."""
    path.write_text(reference_to(model, sha256), encoding="utf-8")


def reference_to(model: str, sha256: str) -> str:
    return json.dumps({"model": model, "sha256": sha256}, indent=2) + "\n"


def read_reference(path: Path) -> dict[str, str]:
    try:
        reference = read_table(path)
        return {key: str(reference[key]) for key in ("model", "sha256")}
    except (OSError, ValueError, KeyError) as exc:
        raise GourmetError(f"{path} cannot be read ({exc!r}): deploy the model again") from exc


def open_version(version: Path, config: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of a version's package, or of the package it refers to.

    Raise GourmetError if the version differs from its manifest.
    """
    path = version / REFERENCE
    if not path.exists():
        manifest.check_files(version / FILE, config)
        return read_package(version / FILE)
    manifest.check_files(path, config)
    return read_package(_referred_to(path))


def _referred_to(path: Path) -> Path:
    try:
        return _referenced_file(path, read_reference(path), FILE)
    except (OSError, ValueError) as exc:
        raise GourmetError(f"{path} cannot be read ({exc!r}): deploy the model again") from exc


def _referenced_file(path: Path, reference: Mapping[str, Any], file: str) -> Path:
    """Return the `file` with the reference's sha256 of another model in the repository of `path`."""
    name, digest = str(reference["model"]), str(reference["sha256"])
    if name != Path(name).name or name in ("", ".."):
        raise ValueError(f"{name!r} is not the name of a model")
    model = path.parents[2] / name
    for candidate in sorted(model.glob(f"[0-9]*/{file}")):
        if manifest.sha256(candidate) == digest:
            return candidate
    raise GourmetError(
        f"{path} refers to a {file} that {model} does not have: keep both models in one repository, "
        f"or deploy {name} and then {path.parents[1].name} again"
    )
