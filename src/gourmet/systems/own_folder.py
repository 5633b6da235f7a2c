"""Copies in the user's repository: of a folder of one's own, and of shipped models that get a version there.

The copy has a mark, so that nothing else is ever replaced or removed. A Triton that does not serve the user's
repository, such as one in a container, is sent the files instead, and keeps them until it ends.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gourmet.errors import UsageError
from gourmet.repository.models import CONFIG, DEFAULT_REPOSITORY, read_config
from gourmet.repository.versions import newest_version, version_numbers
from gourmet.served.files import new_token, own_models
from gourmet.served.manifest import facts
from gourmet.stack.run_file import RunningStack
from gourmet.systems import described
from gourmet.systems.data_systems import models_of

_MARK: Final = ".loaded-from"
_NAME_LINE: Final = re.compile(r"^\s*name\s*:.*\n?", re.MULTILINE)


@contextmanager
def beside_the_served(name: str, source: Path, stack: RunningStack | None) -> Iterator[tuple[Path, bool]]:
    """Yield the folder to load as the model `name`, and whether to send it; undo all if the block fails."""
    if not described.NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name for a model: use small letters, digits and underscores")
    if not version_numbers(source):
        raise UsageError(f"{source} has no version: put model.py or model.onnx into {source}/1")
    read_config(source)
    models = own_models()
    is_served = stack is not None and stack.serves(models)
    for repository in map(Path, stack.repositories if stack else ()):
        if (repository / name).exists() and not is_own_copy(repository / name):
            raise UsageError(f"{name} is a model of {repository}: choose another name for {source}")
    work = models.parent / f".load-{new_token()}"
    aside, old, model = work / name, work / "old", models / name
    try:
        shutil.copytree(
            source, aside, copy_function=shutil.copy, ignore=shutil.ignore_patterns("__pycache__")
        )
        (aside / _MARK).write_text(f"{source.absolute()}\n")
        config = (aside / CONFIG).read_text()
        (aside / CONFIG).write_text(f'name: "{name}"\n' + _NAME_LINE.sub("", config, count=1))
        if not is_served:
            yield aside, True
            return
        models.mkdir(parents=True, exist_ok=True)
        if model.exists():
            model.rename(old)
        aside.rename(model)
        try:
            yield model, False
        except BaseException:
            shutil.rmtree(model)
            if old.exists():
                old.rename(model)
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def is_own_copy(model: Path) -> bool:
    return (model / _MARK).is_file()


def remove_own_copy(name: str) -> None:
    """Remove what `gourmet load --from` put into the user's repository, and nothing else."""
    if is_own_copy(own_models() / name):
        shutil.rmtree(own_models() / name)


@contextmanager
def copies_of_shipped(system: str, models: Path) -> Iterator[None]:
    """Have a copy of each shipped model of `system` in `models`, if that is the user's repository.

    A version that is deployed beside it replaces the shipped one. Copies that got none are removed again.
    """
    is_own = models.resolve() == own_models().resolve()
    copies = {
        shipped: models / shipped.name
        for shipped in (models_of(system, [DEFAULT_REPOSITORY]) if is_own else ())
        if not (models / shipped.name).exists()
    }
    try:
        for shipped, copy in copies.items():
            aside = models / f".{copy.name}.part"
            shutil.rmtree(aside, ignore_errors=True)
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(shipped, aside, copy_function=_link, ignore=skipped)
            aside.rename(copy)
        yield
    finally:
        for shipped, copy in copies.items():
            if copy.exists() and facts(newest_version(copy)) == facts(newest_version(shipped)):
                shutil.rmtree(copy)


def _link(source: str, target: str) -> None:
    """Link a file, or copy it to another disk."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copy2(source, target)
