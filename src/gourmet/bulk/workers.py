"""Inputs answered by other processes, each of which reads, decodes and asks by itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from typing import Final, Protocol

from gourmet.bulk.journal import Row
from gourmet.bulk.run import AskRows, HowMany, answered
from gourmet.errors import GourmetError
from gourmet.runtime.instances import available_cpus

# Of those of a task, so many requests are under way at a time: a loop has its rows, and fewer pictures than
# it takes that have to be decoded by another process (gourmet.runtime.decoding.room).
_THREADS: Final = 3
_SAFE_PATH: Final = "PYTHONSAFEPATH"


class RowMaker(Protocol):
    def rows(self, names: Sequence[str]) -> list[Row]:
        """One for each of the inputs, by any number of threads."""

    def close(self) -> None: ...


class Work(Protocol):
    """What is asked about inputs, in a form that can be sent; equal ones are opened once in a process."""

    def __hash__(self) -> int: ...

    @property
    def wants_processes(self) -> bool:
        """Whether threads of one process would wait for each other."""

    @property
    def requests(self) -> int:
        """Of a task, which is then some tenths of a second, or few seconds."""

    def open(self) -> RowMaker: ...


@contextmanager
def in_processes(work: Work, together: int) -> Iterator[tuple[AskRows, HowMany]]:
    """How rows are asked for in processes of this machine, one for each processor."""
    processes = available_cpus()

    def ask(names: Sequence[str]) -> list[Row]:
        # Ctrl-C is for the command, which ends them: what is started by this thread does not see it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return pool.submit(task, work, names, together).result()
        except BrokenProcessPool as exc:
            raise GourmetError(
                "a worker process was ended from outside, perhaps for want of memory: make room"
            ) from exc

    with _safe_path():
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(processes, context, _end_with_the_parent)
        try:
            yield ask, how_many(work, together, processes)
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _safe_path() -> Iterator[None]:
    """A process that is started looks for no module in the folder of the command: it may hold anything."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(_SAFE_PATH)
        if before is not None:
            os.environ[_SAFE_PATH] = before


def how_many(work: Work, together: int, processes: int) -> HowMany:
    """Each process has its next task at hand."""
    return HowMany(work.requests * together, 2 * processes)


def task(work: Work, names: Sequence[str], together: int) -> list[Row]:
    """The rows of some inputs, by this process."""
    try:
        rows = answered(_opened(work).rows, names, HowMany(together, _THREADS))
        return [row for some in rows for row in some]
    except GourmetError as exc:  # some of which cannot be handed to another process
        raise GourmetError(str(exc)) from None


@cache
def _opened(work: Work) -> RowMaker:
    """Once for each process."""
    return work.open()


def _end_with_the_parent() -> None:
    """Also where that was killed."""
    parent = multiprocessing.parent_process()
    assert parent

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
