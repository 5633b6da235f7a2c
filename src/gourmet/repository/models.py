"""Read a model repository: its models, and their configs as Triton parses them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.served.files import own_models, shipped
from gourmet.served.reading import error_summary, read_text
from gourmet.triton_client.model_config import parse

# The shipped models. No verb writes here unless it is named: a user's versions go to `own_models()`.
DEFAULT_REPOSITORY: Final = shipped("triton/models")
CONFIG: Final = "config.pbtxt"


class RepositoryError(GourmetError):
    """A model repository that cannot be used, or a model in it."""


def repository_of(model: str) -> Path:
    """Return the user's own repository if it has the model, else DEFAULT_REPOSITORY."""
    own = own_models()
    return own if (own / model).is_dir() and _is_model(own / model) else DEFAULT_REPOSITORY


def models_in(repositories: Iterable[Path]) -> list[Path]:
    """Return the folders of all models. One of the user's own replaces that of its name elsewhere."""
    resolved, own = [path.resolve() for path in repositories], own_models().resolve()
    replaced = model_names(own) if own in resolved and own.is_dir() else ()
    return [
        repository / name
        for repository in resolved
        for name in model_names(repository)
        if repository == own or name not in replaced
    ]


def link_models(view: Path, repository: Path) -> None:
    """Fill the folder `view` with links to the models of `repository` that the user's own does not replace.

    Triton refuses a model that is in two of its repositories.
    """
    own = own_models()
    models = models_in([repository, *([own] if own.is_dir() else [])])
    wanted = {model.name: model for model in models if model.parent == repository.resolve()}
    view.mkdir(exist_ok=True)
    present = {link.name for link in view.iterdir()}
    for name in present - wanted.keys():
        (view / name).unlink()
    for name in wanted.keys() - present:
        (view / name).symlink_to(wanted[name])


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
