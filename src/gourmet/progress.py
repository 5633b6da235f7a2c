"""How long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class ReportProgress(Protocol):
    """A callback for the progress of a stage, from 0 to 1."""

    def __call__(self, share: float, words: str = "", /) -> None: ...


# Shows the progress of a stage, which it names, within a block.
ProgressBar = Callable[[str], AbstractContextManager[ReportProgress]]
