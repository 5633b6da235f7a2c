"""A model repository on disk: which models it holds, and their configs as Triton itself reads them."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from gourmet.client.model_config import parse
from gourmet.errors import GourmetError
from gourmet.runtime.decoding import package
from gourmet.runtime.files import IS_INSTALLED, home, own_models, shipped, write_whole
from gourmet.runtime.reading import in_short, read_text

# The models that came with this project. Those of an installed package are put into the user's own.
DEFAULT: Final = own_models() if IS_INSTALLED else shipped("triton/models")
CONFIG: Final = "config.pbtxt"


class RepositoryError(GourmetError):
    """A model repository, or a model in it, that cannot be used."""


def with_shipped_models() -> Path:
    """Return DEFAULT; the models of an installed package are put there once, as hard links or copies."""
    placed, release = home() / "shipped-models.txt", version("gourmetgram-triton")
    if IS_INSTALLED and not (placed.is_file() and placed.read_text() == release):
        for model in shipped("triton/models").iterdir():
            if not (DEFAULT / model.name).exists():
                shutil.copytree(model, DEFAULT / model.name, copy_function=_link)
        write_whole(placed, release)
    return DEFAULT


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def model_names(repository: Path) -> tuple[str, ...]:
    """The models of `repository`: each folder with a config or a version; the user's own may hold none."""
    if not repository.is_dir():
        raise RepositoryError(f"no model repository found at {repository}: name one with --model-repository")
    names = sorted(folder.name for folder in repository.iterdir() if folder.is_dir() and _is_model(folder))
    if not names and repository.resolve() != own_models().resolve():
        raise RepositoryError(
            f"{repository} holds no models: each is a folder with a config.pbtxt and a version folder like 1/"
        )
    return tuple(names)


def repository_text(path: Path) -> str:
    """A config or labels of a model."""
    try:
        return read_text(path)
    except OSError as exc:
        raise RepositoryError(f"the model {path.parent.name} has no {path} to read: {exc.strerror}") from exc
    except ValueError as exc:
        raise RepositoryError(f"{path} is not a text: {exc}") from exc


def read_config(model: Path) -> Any:
    """The parsed config.pbtxt of the model folder `model`."""
    path = model / CONFIG
    try:
        return parse(repository_text(path))
    except ValueError as exc:
        raise RepositoryError(f"{path} is not a config that Triton can read: {in_short(exc)}") from exc


def versions(model: Path) -> tuple[int, ...]:
    """The version folders of a model, ascending."""
    return tuple(sorted(int(path.name) for path in model.iterdir() if path.is_dir() and path.name.isdigit()))


def _is_model(folder: Path) -> bool:
    return (folder / CONFIG).is_file() or any(path.name.isdigit() for path in folder.iterdir())


def served_package(model: str) -> dict[str, bytes]:
    """Read the files in the package of a generating model's newest version in this checkout."""
    folder = DEFAULT / model
    return package.read(folder / str(versions(folder)[-1]) / package.FILE)
