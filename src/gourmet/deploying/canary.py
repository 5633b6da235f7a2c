"""A version that is tried beside the one that serves: both lie on disk, and the model's config says so.

That config is what every app that asks the server reads, and what a server that starts again finds. What an
app may conclude from it is in app/canary.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from gourmet.contracts import Canary
from gourmet.deploying.deploy import replace_text
from gourmet.deploying.rollback import deployed_together, texts_of
from gourmet.errors import UsageError
from gourmet.repository.config_file import ConfigFile


def tried(repository: Path, name: str) -> dict[Path, Canary]:
    """The models of which a version is tried: that of this name, or those of the system that go together."""
    found = {model: ConfigFile.read(model).canary for model in deployed_together(repository, name)}
    if without := [model.name for model, canary in found.items() if not canary]:
        raise UsageError(
            f"no version of {', '.join(without)} is tried: begin with `gourmet deploy {name} --canary 10%`"
        )
    return {model: canary for model, canary in found.items() if canary}


def promote(models: Sequence[Path], served: Callable[[Path], object]) -> None:
    """Have what is tried serve alone, with its own config. `served` is called with each, and may refuse it:
    then all is as it was.
    """
    with ExitStack() as undo:
        for model in models:
            canary = ConfigFile.read(model).canary
            assert canary
            for file, text in texts_of(model, int(canary.new)).items():
                replace_text(model / file, text, undo)
            served(model)
        undo.pop_all()
