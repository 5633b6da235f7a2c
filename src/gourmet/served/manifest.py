"""Compare a version's files with the sha256 values in its manifest.json, before the weights are used.

Standard library only: the served models and the ONNX Runtime backend import it inside Triton.

The check finds a file that is not the deployed one: truncated, half copied, taken from another version, or
replaced by hand. It is not a signature: anyone who may write the weights may write the manifest too. That is
why the served repository is mounted read-only.

A version without a manifest is served unchecked, unless the model's config requires one:
parameters { key: "manifest" value: { string_value: "required" } }. `gourmet deploy` writes this parameter
into each config, so that deleting the manifest does not switch off the check.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.served.instances import parameter
from gourmet.served.reading import error_summary, read_table

MANIFEST: Final = "manifest.json"
PARAMETER: Final = "manifest"
REQUIRED: Final = "required"  # any other value has the same effect
# The format of versions that this release writes. It grows when an older release could not serve them.
FORMAT: Final = 1


class ManifestError(GourmetError):
    """A file that is missing or differs from its manifest, or a manifest that cannot be read."""


def sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file in hexadecimal."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def read_manifest(version: Path) -> dict[str, Any]:
    """Return the manifest of a version; raise ManifestError if there is none."""
    path = version / MANIFEST
    try:
        return read_table(path)
    except (OSError, ValueError) as exc:
        raise ManifestError(
            f"{path} cannot be read as a manifest ({error_summary(exc)}): deploy the model again with "
            "`gourmet deploy`"
        ) from exc


def facts(version: Path) -> dict[str, Any]:
    """Return the manifest of a version, empty if there is none that can be used."""
    try:
        manifest = read_table(version / MANIFEST)
    except (OSError, ValueError):
        return {}
    has_tables = all(isinstance(manifest.get(name, {}), dict) for name in ("network", "config", "deployed"))
    return manifest if has_tables else {}


def deployed_file(version: Path, model_config: Mapping[str, Any], default: str) -> Path:
    """Return the path of a version's model file, checked against the manifest.

    A model with external weights lies in a folder, together with them.
    """
    path = version / (model_config.get("default_model_filename") or default)
    if path.is_dir():
        path /= default
    if not path.is_file():
        raise ManifestError(
            f"{path.parent} has no {path.name}: put the model there, "
            "or name its file in default_model_filename"
        )
    check_files(path, model_config, version)
    return path


def check_files(file: Path | None, model_config: Mapping[str, Any], version: Path | None = None) -> bool:
    """Raise ManifestError unless `file` is as its version's manifest lists it; None checks all its files.

    The others must exist. Return False if there is no manifest and none is required. `version` is the folder
    of the version; the default is the folder of the file.
    """
    version = version or (file or Path()).parent
    path = version / MANIFEST
    if not path.exists():
        if not parameter(model_config, PARAMETER):
            return False
        raise ManifestError(
            f"{path} is missing, and the model's config requires it: deploy the model again with "
            f"`gourmet deploy`, or remove the parameter {PARAMETER!r} from its config.pbtxt"
        )
    manifest = read_manifest(version)
    if (written := manifest.get("format", FORMAT)) != FORMAT:
        raise ManifestError(
            f"{version} was written by release {manifest.get('release', '?')}, in format {written}, and this "
            f"release reads format {FORMAT}: install that release or a later one, or run `gourmet rollback`"
        )
    try:
        expected = {manifest["file"]: manifest["sha256"]}
        expected |= {name: entry["sha256"] for name, entry in manifest.get("also", {}).items()}
        for name in expected:
            is_inside = (version / name).resolve().is_relative_to(version.resolve())
            if file is None and not (is_inside and (version / name).is_file()):
                raise ValueError(f"{name!r} is not a file of the version")
        files = [file] if file else [version / name for name in expected]
        digests = {listed: sha256(listed) for listed in files}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as exc:
        raise ManifestError(
            f"{path} or a file that it lists cannot be read ({exc!r}): deploy the model again with "
            "`gourmet deploy`"
        ) from exc
    for checked, digest in digests.items():
        if (name := checked.relative_to(version).as_posix()) not in expected:
            raise ManifestError(
                f"{path} lists {', '.join(map(repr, expected))}, not {checked.name!r}: deploy the model "
                "again with `gourmet deploy`"
            )
        if digest != expected[name]:
            raise ManifestError(
                f"{checked} has sha256 {digest}, its manifest says {expected[name]}: this is not the "
                "deployed file. Restore it, or deploy the model again with `gourmet deploy`"
            )
    if missing := [name for name in expected if not (version / name).is_file()]:
        raise ManifestError(
            f"{version} lacks {', '.join(missing)}, which its manifest lists: restore it, or deploy the "
            "model again with `gourmet deploy`"
        )
    return True
