"""Read a model repository: its models, their versions, and their configs as Triton parses them."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.generation import package
from gourmet.served.files import IS_INSTALLED, home, own_models, shipped, write_whole
from gourmet.served.reading import error_summary, read_text
from gourmet.triton_client.model_config import parse

# The models of this project. The models of an installed package are copied into the user's repository.
DEFAULT: Final = own_models() if IS_INSTALLED else shipped("triton/models")
CONFIG: Final = "config.pbtxt"


class RepositoryError(GourmetError):
    """A model repository that cannot be used, or a model in it."""


def with_shipped_models() -> Path:
    """Return DEFAULT. Copy or link the models of an installed package there first, once for each release."""
    marker, release = home() / "shipped-models.txt", version("gourmetgram-triton")
    if IS_INSTALLED and not (marker.is_file() and marker.read_text() == release):
        for model in shipped("triton/models").iterdir():
            if not (DEFAULT / model.name).exists():
                shutil.copytree(model, DEFAULT / model.name, copy_function=_link)
        write_whole(marker, release)
    return DEFAULT


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def model_names(repository: Path) -> tuple[str, ...]:
    """Return the models of `repository`: the folders with a config or a version."""
    if not repository.is_dir():
        raise RepositoryError(f"{repository} does not exist: name a folder with --model-repository")
    names = sorted(folder.name for folder in repository.iterdir() if folder.is_dir() and _is_model(folder))
    if not names and repository.resolve() != own_models().resolve():  # the user's own may be empty
        raise RepositoryError(
            f"{repository} has no models: a model is a folder with a config.pbtxt and a folder like 1/"
        )
    return tuple(names)


def repository_text(path: Path) -> str:
    """Read a text file of a model: its config or its labels."""
    try:
        return read_text(path)
    except OSError as exc:
        raise RepositoryError(
            f"{path} of the model {path.parent.name} cannot be read: {exc.strerror}"
        ) from exc
    except ValueError as exc:
        raise RepositoryError(f"{path} is not a UTF-8 text: {exc}") from exc


def read_config(model: Path) -> Any:
    """Return the parsed config.pbtxt of the folder `model`."""
    path = model / CONFIG
    try:
        return parse(repository_text(path))
    except ValueError as exc:
        raise RepositoryError(f"{path} is not a config that Triton can read: {error_summary(exc)}") from exc


def versions(model: Path) -> tuple[int, ...]:
    """Return the versions of a model, ascending; none if the folder is missing."""
    paths = model.iterdir() if model.is_dir() else ()
    return tuple(sorted(int(path.name) for path in paths if path.is_dir() and path.name.isdigit()))


def newest(model: Path) -> Path:
    """Return the folder of a model's newest version; raise RepositoryError if there is none."""
    if not (numbers := versions(model)):
        raise RepositoryError(f"{model} has no version: deploy one with `gourmet deploy`")
    return model / str(numbers[-1])


def _is_model(folder: Path) -> bool:
    return (folder / CONFIG).is_file() or any(path.name.isdigit() for path in folder.iterdir())


def served_package(model: str) -> dict[str, bytes]:
    """Read the files in the package of a generating model's newest version in this checkout."""
    folder = DEFAULT / model
    return package.read_package(newest(folder) / package.FILE)
