"""The progress bar of every verb, and the error of one that Ctrl-C stopped."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from rich.console import Console
from rich.progress import Progress, TextColumn

from gourmet.errors import GourmetError, echo
from gourmet.progress import ReportProgress


class Stopped(GourmetError):
    """Ctrl-C stopped a verb before its end."""

    exit_code = 130


@contextlib.contextmanager
def bar(title: str) -> Iterator[ReportProgress]:
    """Draw a bar on stderr, if that is a terminal; a tick reports the share done, from 0 to 1."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[words]}", style="dim"))
    progress = Progress(*columns, console=console, disable=not console.is_terminal)
    task = progress.add_task(title, total=1.0, words="")

    def tick(share: float, words: str = "") -> None:
        progress.update(task, completed=share, words=words)

    with progress:
        yield tick


@contextlib.contextmanager
def json_lines(first: float = 0.0, last: float = 1.0) -> Iterator[ReportProgress]:
    """Print progress as lines of JSON for another program; the work is the part from `first` to `last`."""

    def tick(share: float, words: str = "") -> None:
        echo(json.dumps({"share": round(first + share * (last - first), 3), "doing": words}))

    yield tick
