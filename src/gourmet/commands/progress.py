"""The progress bar of every verb: what, how far, how long still."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn


class Tick(Protocol):
    """Tell the bar how far it is."""

    def __call__(self, share: float, words: str = "", remaining_s: float | None = None) -> None: ...


@contextlib.contextmanager
def bar(title: str) -> Iterator[Tick]:
    """Draw a bar on stderr, if that is a terminal; ticks say the share done, from 0 to 1."""
    console = Console(stderr=True)
    progress = Progress(
        TextColumn(title),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[words]}", style="dim"),
        console=console,
        disable=not console.is_terminal,
    )
    task = progress.add_task(title, total=1.0, left="", words="")

    def tick(share: float, words: str = "", remaining_s: float | None = None) -> None:
        if remaining_s is None:
            remaining_s = progress.tasks[0].time_remaining
        progress.update(task, completed=share, words=words, left=_left(remaining_s))

    with progress:
        yield tick


def _left(seconds: float | None) -> str:
    if seconds is None or seconds == float("inf"):
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min left" if hours else f"{minutes}:{rest:02d} left"
