"""Choose a version of a model: the newest, the newest that can serve, those that were rolled back."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from gourmet.generation import package
from gourmet.repository.models import RepositoryError, model_names, repository_of
from gourmet.served import manifest
from gourmet.served.manifest import ManifestError
from gourmet.served.reading import malformed_as_value_error

# A version that was rolled back, until the next deployment.
WITHDRAWN: Final = ".withdrawn-"


def version_numbers(model: Path) -> tuple[int, ...]:
    """Return the versions of a model, ascending; none if the folder is missing."""
    paths = model.iterdir() if model.is_dir() else ()
    return tuple(sorted(int(path.name) for path in paths if path.is_dir() and path.name.isdigit()))


def newest_version(model: Path) -> Path:
    """Return the folder of a model's newest version; raise RepositoryError if there is none."""
    if not (numbers := version_numbers(model)):
        raise RepositoryError(f"{model} has no version: deploy one with `gourmet deploy`")
    return model / str(numbers[-1])


def newest_intact_version(model: Path) -> Path | None:
    """Return the newest version that can serve: its files are those of its manifest."""
    for number in reversed(version_numbers(model)):
        with suppress(ManifestError):
            manifest.check_files(None, {}, model / str(number))
            return model / str(number)
    return None


def withdrawn_versions(model: Path) -> list[Path]:
    """Return the versions of a model that were rolled back since its last deployment, ascending."""
    paths = (path for path in model.glob(f"{WITHDRAWN}*") if withdrawn_number(path).isdigit())
    return sorted(paths, key=lambda path: int(withdrawn_number(path)))


def withdrawn_number(path: Path) -> str:
    return path.name.removeprefix(WITHDRAWN)


def models_deployed_together(repository: Path, name: str, *, undo: bool = False) -> list[Path]:
    """Return the models that the last deployment of the system `name` made; else the model of that name.

    With `undo`, return those whose versions of one deployment were the last to be withdrawn.
    """
    names, when = model_names(repository), {}
    for model in (repository / model_name for model_name in names):
        numbers = version_numbers(model)
        path = next(iter(withdrawn_versions(model)), None) if undo else model / str(max(numbers, default=0))
        about = manifest.facts(path) if path else {}
        if about.get("network", {}).get("system") == name:
            # One with a single version has nothing to go back to.
            when[model] = undo or len(numbers) > 1, str(about.get("deployed", {}).get("at", ""))
    if undo and not when and name not in names:
        raise RepositoryError(
            f"{repository} has no withdrawn version of {name!r}: the next deployment removes it"
        )
    if not when and name not in names:
        raise RepositoryError(
            f"{repository} has no model and no models of a system {name!r}: "
            f"it has {', '.join(names) or 'none at all'}"
        )
    chosen = min(when.values(), default=None) if undo else max(when.values(), default=None)
    return [model for model, at in when.items() if at == chosen] or [repository / name]


def weights_of(version: Path) -> str:
    """Return the sha256 of the weights that a version was made of, or an empty text."""
    with suppress(OSError, ValueError), malformed_as_value_error():
        return str(manifest.facts(version)["training"]["weights_sha256"])
    return ""


def models_of_same_weights(model: Path) -> list[Path]:
    """Return the models of the repository whose newest version has the same weights as this one's."""
    if not (weights := weights_of(newest_version(model))):
        raise RepositoryError(f"{model} has no version that says what weights it is of: deploy it first")
    beside = [model.parent / name for name in model_names(model.parent)]
    return [path for path in beside if version_numbers(path) and weights_of(newest_version(path)) == weights]


def served_package(model: str) -> dict[str, bytes]:
    """Read the files in the package of a generating model's newest version in this checkout."""
    folder = repository_of(model) / model
    return package.read_package(newest_version(folder) / package.FILE)
