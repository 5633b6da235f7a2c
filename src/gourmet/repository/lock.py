"""Change a model repository: one verb at a time, and each change wholly or not at all.

A verb that waits for another says so. How to put back what a verb changes is written into the repository
before it is changed, so that the next verb can do so if this one is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from gourmet.repository.models import RepositoryError, repository_text
from gourmet.repository.versions import version_numbers
from gourmet.served.files import write_whole
from gourmet.served.reading import error_summary, malformed_as_value_error, read_table

LOCK_FILE: Final = ".gourmet.lock"
UNDO_FILE: Final = ".gourmet.undo"
# What a model's folder has of versions that are built, replaced or removed, and of texts written aside.
_LEFT: Final = (".next.*", ".old[.-]*", ".*.part", "*/.*.part")
_MAX_WAIT_S: Final = 900.0


@contextlib.contextmanager
def changing(
    repository: Path, say: Callable[[str], object], max_wait_s: float = _MAX_WAIT_S
) -> Iterator[list[Path]]:
    """Hold the lock of `repository`; `say` reports a wait for another verb.

    A missing folder is created. The lock ends with its process, and works between programs of one machine.
    Yield the models in which the change of a killed verb was undone.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(repository / LOCK_FILE)
    try:
        repository.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            say(f"another gourmet changes {repository}: waiting until it has ended")
            lock.acquire(timeout=max_wait_s)
        try:
            yield undo(repository)
        finally:
            lock.release()
    except Timeout as exc:
        raise RepositoryError(
            f"another gourmet still changes {repository}: try again when it has ended"
        ) from exc
    except OSError as exc:
        raise RepositoryError(
            f"{repository} cannot be written ({exc.strerror or exc}): free disk space, or name another folder"
        ) from exc


@contextlib.contextmanager
def all_or_nothing(
    models: Sequence[Path], renames: Sequence[tuple[Path, Path]], texts: Mapping[Path, str]
) -> Iterator[None]:
    """Rename paths and write texts in `models` of one repository; put all back if the block fails.

    A link to a text stays a link.
    """
    repository = models[0].parent
    files = {path.resolve(): text for path, text in texts.items()}
    before = {
        "models": [model.name for model in models],
        "renames": [[os.path.relpath(path, repository) for path in pair] for pair in renames],
        "texts": {
            os.path.relpath(path, repository.resolve()): repository_text(path) if path.exists() else None
            for path in files
        },
    }
    write_whole(repository / UNDO_FILE, json.dumps(before))
    try:
        for source, target in renames:
            source.rename(target)
        for path, text in files.items():
            write_whole(path, text)
        yield
    except BaseException:
        undo(repository)
        raise
    (repository / UNDO_FILE).unlink()


def undo(repository: Path) -> list[Path]:
    """Put back what a failed or killed verb changed in `repository`, and return the models."""
    for part in repository.glob(f".{UNDO_FILE}.*.part"):
        part.unlink()
    path = repository / UNDO_FILE
    if not path.exists():
        return []
    try:
        with malformed_as_value_error():
            before = read_table(path)
            for source, target in reversed(before["renames"]):
                if (repository / target).exists() and not (repository / source).exists():
                    (repository / target).rename(repository / source)
            for name, text in before["texts"].items():
                if text is None:
                    (repository / name).unlink(missing_ok=True)
                else:
                    write_whole(repository / name, text)
            models = [repository / name for name in before["models"]]
    except ValueError as exc:
        raise RepositoryError(
            f"{path} does not say how to put back what a killed verb changed ({error_summary(exc)}): delete "
            "it, and deploy the models again"
        ) from exc
    path.unlink()
    for model in models:
        tidied(model)
    return models


def tidied(model: Path) -> tuple[int, ...]:
    """Remove what killed verbs left in a model's folder, and return its versions.

    A folder that is empty then is removed, too.
    """
    for left in (path for name in _LEFT for path in model.glob(name)):
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    with contextlib.suppress(OSError):  # something is in it, or it is not there
        model.rmdir()
    return version_numbers(model)
