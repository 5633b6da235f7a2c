"""Read a model repository: its models, and their configs as Triton parses them."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.served.files import IS_INSTALLED, home, own_models, shipped, write_whole
from gourmet.served.reading import error_summary, read_text
from gourmet.triton_client.model_config import parse

# The models of this project. The models of an installed package are copied into the user's repository.
DEFAULT_REPOSITORY: Final = own_models() if IS_INSTALLED else shipped("triton/models")
CONFIG: Final = "config.pbtxt"


class RepositoryError(GourmetError):
    """A model repository that cannot be used, or a model in it."""


def with_shipped_models() -> Path:
    """Return DEFAULT_REPOSITORY. An installed package copies or links its models there, once a release."""
    marker, release = home() / "shipped-models.txt", version("gourmetgram-triton")
    if IS_INSTALLED and not (marker.is_file() and marker.read_text() == release):
        for model in shipped("triton/models").iterdir():
            if not (DEFAULT_REPOSITORY / model.name).exists():
                shutil.copytree(model, DEFAULT_REPOSITORY / model.name, copy_function=_link)
        write_whole(marker, release)
    return DEFAULT_REPOSITORY


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


def _is_model(folder: Path) -> bool:
    return (folder / CONFIG).is_file() or any(path.name.isdigit() for path in folder.iterdir())
