"""Where the work on inputs is done: in this process, in others of this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from gourmet.bulk.on_ray import on_ray
from gourmet.bulk.run import AskRows, HowMany
from gourmet.bulk.workers import RowMaker, Work, in_processes

Engine = Literal["local", "ray"]


@contextmanager
def asking(work: Work, here: RowMaker, engine: Engine, how: HowMany) -> Iterator[tuple[AskRows, HowMany]]:
    """How rows are asked for; `here` is what asks in this process, where neither Ray nor another one does."""
    if engine == "ray":
        with on_ray(work, how.together) as found:
            yield found
    elif work.wants_processes:
        with in_processes(work, how.together) as found:
            yield found
    else:
        yield here.rows, how
