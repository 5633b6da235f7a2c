"""Make a system that is only data, and remove a system, a model or a version that gourmet made."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gourmet.errors import UsageError
from gourmet.repository.config_file import LABELS_FILE
from gourmet.repository.models import CONFIG, DEFAULT_REPOSITORY, RepositoryError, models_in
from gourmet.repository.versions import version_numbers, withdrawn_versions
from gourmet.served.files import HOME_ENV, own_models
from gourmet.served.manifest import MANIFEST
from gourmet.stack.overview import owner_of
from gourmet.systems import described, folders, registry


@contextlib.contextmanager
def new_folder(
    name: str,
    about: Mapping[str, Any],
    files: Mapping[str, str | bytes],
    models: Sequence[Path],
    alone: AbstractContextManager[None],
) -> Iterator[Path]:
    """Write the folder of the system `name`: its description `about`, and other `files`.

    The block deploys the system's `models`, with the lock `alone` of their repository. If it fails, it leaves
    neither the folder nor a model.
    """
    folder = folders()[1] / name
    part = folder.with_name(f".{name}.part")  # a name that no system has
    try:
        part.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(
            f"{part.parent} cannot be written ({exc.strerror}): {HOME_ENV} names another"
        ) from exc
    try:
        with alone:
            for path in (*models, *(DEFAULT_REPOSITORY / model.name for model in models)):
                if path.exists():  # Triton accepts each name once in all of its repositories
                    raise UsageError(f"{path} is there already: choose another name than {name!r}")
            for file, content in files.items():
                (part / file).write_bytes(content if isinstance(content, bytes) else content.encode())
            described.write_description(part, about)
            part.rename(folder)
            try:
                yield folder
            except BaseException:
                for path in filter(Path.exists, (folder, *models)):
                    shutil.rmtree(path)
                raise
    finally:
        if part.exists():
            shutil.rmtree(part)


@dataclass(frozen=True)
class Removal:
    """The files and folders to remove."""

    system: str  # the one that goes whole, if any
    of_system: Sequence[Path]  # known by the last
    models: Sequence[Path]  # those that go whole
    of_models: Sequence[Path]


def removal_of(named: str, repositories: Sequence[Path]) -> Removal:
    """Return the removal of NAME or NAME/VERSION; raise if it does not exist, or was not made here."""
    name, slash, number = named.partition("/")
    its = models_of(name, repositories)
    system = name if its or name in {*registry.names(), *registry.broken()} else ""
    models = its if system else [path for path in models_in(repositories) if path.name == name]
    if not system and not models:
        raise UsageError(f"{name!r} is neither a system nor a model: `gourmet list` has their names")
    if slash:
        return Removal("", (), (), [_version(models, number)])
    mine = own_models().resolve()
    if replacing := [model for model in models if model.parent == mine and _shipped(model)]:
        return Removal("", (), replacing, [path for model in replacing for path in _deployed_files(model)])
    owners = {model: owner_of(model)[0] for model in models}
    code = [
        owner
        for owner in (system, *owners.values())
        if owner in registry.names() and not registry.is_data(owner)
    ]
    code += [
        model.name
        for model, owner in owners.items()
        if not owner and model.parent == DEFAULT_REPOSITORY.resolve()
    ]
    if code:
        raise UsageError(
            f"{code[0]} came as code, not by `gourmet new`: remove versions of its models, as MODEL/VERSION"
        )
    own = [folder / system / file for folder in folders() for file in described.FILES]
    paths = [path for path in own if described.NAME.fullmatch(system) and path.exists()]
    return Removal(system, paths, models, [path for model in models for path in _deployed_files(model)])


def take_away(paths: Sequence[Path]) -> list[Path]:
    """Remove `paths` and the folders that are empty then; return the folders that are not."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            if path.name.isdigit():  # by another name, so that no half of a version is ever served
                path = path.rename(path.with_name(f".old-{path.name}"))
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    folders_left = dict.fromkeys(path.parent for path in paths)
    for folder in folders_left:
        with contextlib.suppress(OSError):  # something is in it
            folder.rmdir()
    return [folder for folder in folders_left if folder.is_dir()]


def models_of(system: str, repositories: Sequence[Path]) -> list[Path]:
    """Return the models whose config names the system."""
    return [model for model in models_in(repositories) if owner_of(model)[0] == system]


def _version(models: Sequence[Path], number: str) -> Path:
    if len(models) != 1:
        raise UsageError(
            f"name one of its models: {', '.join(model.name for model in models) or 'it has none'}"
        )
    (model,) = models
    numbers = version_numbers(model)
    if not number.isdigit() or int(number) not in numbers:
        raise UsageError(
            f"{model.name} has no version {number!r}, but {', '.join(map(str, numbers)) or 'none'}"
        )
    if int(number) == numbers[-1]:
        raise UsageError(
            f"{number} is the latest version of {model.name}: go back with `gourmet rollback {model.name}`, "
            f"or remove all of it as {model.name}"
        )
    return model / str(int(number))


def _deployed_files(model: Path) -> list[Path]:
    """Return what deploying wrote into a model's folder."""
    paths = [model / str(number) for number in version_numbers(model)]
    if strange := [str(path) for path in paths if not (path / MANIFEST).is_file()]:
        raise RepositoryError(
            f"{', '.join(strange)} has no {MANIFEST}, so gourmet did not deploy it: remove it by hand"
        )
    paths += withdrawn_versions(model)
    names = dict.fromkeys([LABELS_FILE, CONFIG, *(path.name for path in _shipped(model))])
    return [*paths, *(path for name in names if (path := model / name).exists() and path not in paths)]


def _shipped(model: Path) -> list[Path]:
    """Return what the shipped model of this name has in its folder."""
    return (
        [*(DEFAULT_REPOSITORY / model.name).iterdir()] if (DEFAULT_REPOSITORY / model.name).is_dir() else []
    )
