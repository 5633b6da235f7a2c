"""Version folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gourmet.repository import RepositoryError, versions
from gourmet.runtime.manifest import MANIFEST


@contextlib.contextmanager
def staged(model: Path, exported: str, number: int | None = None) -> Iterator[tuple[Path, Path]]:
    """Yield a folder to build a version of `model` in and the place that it takes if nothing failed.

    Without a `number` it is the version after the latest. It is built in the model's own folder, so
    that it takes its place by a rename; Triton looks only at folders that are numbers. All files of
    the latest version but the `exported` one are taken over: a Python model's code belongs to no
    export.
    """
    if not model.is_dir():
        raise RepositoryError(f"{model} does not exist: --to names the model repository, like triton/models")
    before = versions(model)
    final = model / str(number or (before[-1] + 1 if before else 1))
    aside = model / f".next.{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    if before:
        skipped = shutil.ignore_patterns(exported, MANIFEST, "__pycache__")
        shutil.copytree(model / str(before[-1]), aside, ignore=skipped)
    else:
        aside.mkdir()
    try:
        yield aside, final
        _put(aside, final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _put(aside: Path, final: Path) -> None:
    """Rename `aside` to `final`, which may exist already and comes back if the rename fails."""
    old = aside.with_name(f".old.{os.getpid()}")
    if final.exists():
        final.rename(old)
    try:
        aside.rename(final)
    except OSError:
        if old.exists():
            old.rename(final)
        raise
    shutil.rmtree(old, ignore_errors=True)
