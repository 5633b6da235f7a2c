"""A version's files against the sha256 that its manifest.json gives, asked before the weights are used.

Standard library only: the served models and the ONNX Runtime backend import it inside Triton.

What this guards against is a file that is not the one that was deployed: cut short, half copied, taken
from another version, replaced by hand. It is not a signature: anyone who may write the weights may write
the manifest beside them too, which is why the repository is mounted read-only where it is served.

A version without a manifest is served as it is, since a repository may hold models of anybody's, unless
the model's config asks for one: parameters { key: "manifest" value: { string_value: "required" } }. All
models that `gourmet deploy` writes ask for it, so that removing the manifest does not remove the check.

    python3 -m gourmet.runtime.manifest /models       # before a server starts: sets bad versions aside
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.runtime.instances import parameter
from gourmet.runtime.reading import in_short, read_table

MANIFEST: Final = "manifest.json"
PARAMETER: Final = "manifest"
REQUIRED: Final = "required"  # as does any other value


class ManifestError(GourmetError):
    """A file that is missing or not the one its manifest speaks of, or a manifest that cannot be read."""


def sha256(path: Path) -> str:
    """The digest of a file, in hexadecimal."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def read(version: Path) -> dict[str, Any]:
    """What the manifest of a version says; ManifestError unless there is one."""
    path = version / MANIFEST
    try:
        return read_table(path)
    except (OSError, ValueError) as exc:
        raise ManifestError(
            f"{path} cannot be read as a manifest ({in_short(exc)}): deploy the model again with "
            "`gourmet deploy`"
        ) from exc


def facts(version: Path) -> dict[str, Any]:
    """The same, and nothing where there is none that can be used."""
    try:
        found = read_table(version / MANIFEST)
    except (OSError, ValueError):
        return {}
    tables = all(isinstance(found.get(name, {}), dict) for name in ("network", "config", "deployed"))
    return found if tables else {}


def deployed_file(version: Path, model_config: Mapping[str, Any], usual: str) -> Path:
    """The file of a version, checked against its manifest before anything opens it.

    It may lie with more of its weights in a folder of its name.
    """
    path = version / (model_config.get("default_model_filename") or usual)
    if path.is_dir():
        path /= usual
    if not path.is_file():
        raise ManifestError(
            f"no {path.name} found in {path.parent}; put the model there, "
            "or name its file in default_model_filename"
        )
    check(path, model_config, version)
    return path


def check(file: Path | None, model_config: Mapping[str, Any], version: Path | None = None) -> bool:
    """Raise ManifestError unless `file` is one of those in its version's manifest; None is all of them.

    Returns False where there is no manifest and none is required. `version` is the folder of the
    version, where that is not the folder of the file.
    """
    version = version or (file or Path()).parent
    path = version / MANIFEST
    if not path.exists():
        if not parameter(model_config, PARAMETER):
            return False
        raise ManifestError(
            f"{path} is missing, and the config of the model asks for it: deploy the model again with "
            f"`gourmet deploy`, or drop the parameter {PARAMETER!r} from its config.pbtxt"
        )
    manifest = read(version)
    try:
        expected = {manifest["file"]: manifest["sha256"]}
        expected |= {name: about["sha256"] for name, about in manifest.get("also", {}).items()}
        for named in expected:
            inside = (version / named).resolve().is_relative_to(version.resolve())
            if file is None and not (inside and (version / named).is_file()):
                raise ValueError(f"{named!r} is not a file of the version")
        files = [file] if file else [version / named for named in expected]
        found = {each: sha256(each) for each in files}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as exc:
        raise ManifestError(
            f"{path} cannot be read as a manifest, or its file not at all ({exc!r}): deploy the model again "
            "with `gourmet deploy`"
        ) from exc
    for each, digest in found.items():
        if (name := each.relative_to(version).as_posix()) not in expected:
            raise ManifestError(
                f"{path} speaks of {', '.join(map(repr, expected))}, not of {each.name!r}: deploy the model "
                "again with `gourmet deploy`"
            )
        if digest != expected[name]:
            raise ManifestError(
                f"{each} has sha256 {digest}, its manifest says {expected[name]}: this is not the file that "
                "was deployed; restore it, or deploy the model again with `gourmet deploy`"
            )
    return True


def set_aside_unverified(repository: Path) -> Iterator[str]:
    """Hide each version whose files are not those of its manifest, so that the one before serves; say which.

    NVIDIA's own backends load a model without a look at its manifest.
    """
    configs = sorted(repository.glob("*/config.pbtxt"))
    if not configs:
        raise ManifestError(f"no model found in {repository}: copy triton/models into it")
    checked = 0
    for config in configs:
        # The parser of configs is not in the standard library.
        asks = re.search(rf'^[^#\n]*\bkey:\s*"{PARAMETER}"', config.read_text(), re.MULTILINE)
        parameters = {PARAMETER: {"string_value": REQUIRED}} if asks else {}
        for version in sorted(each for each in config.parent.iterdir() if each.name.isdigit()):
            try:
                checked += check(None, {"parameters": parameters}, version)
            except ManifestError as exc:
                version.rename(version.with_name(f".unverified-{version.name}"))
                yield f"not served: {exc}"
    yield f"{repository}: {len(configs)} models, {checked} versions are those of their manifests"


if __name__ == "__main__":
    try:
        for line in set_aside_unverified(Path(sys.argv[1])):
            sys.stdout.write(f"{line}\n")
    except GourmetError as reason:
        sys.exit(str(reason))
