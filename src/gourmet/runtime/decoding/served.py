"""A package and what works on it, as the Python models of a repository open them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from gourmet.runtime import manifest
from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.beams import search
from gourmet.runtime.decoding.engine import OnnxEngine
from gourmet.runtime.decoding.loop import Loop, Row, TooManyRows
from gourmet.runtime.decoding.texts import Job, submit
from gourmet.runtime.decoding.tokenizer import Tokenizer
from gourmet.runtime.instances import cpu_threads, integer_parameter, parameter

# Sentences that go through a step together, unless the config says otherwise.
_ROWS: Final = 16
_ROWS_PARAMETER: Final = "rows_at_once"
# With "off", who waits is let in when all are done: to see what joining between two steps is good for.
CONTINUOUS_PARAMETER: Final = "continuous_batching"
# Searches that may wait for the only one at work.
_SEARCHES: Final = 16
# Triton is not asked more often than this whether a client is still there; of most texts, never.
_ASKED_EVERY_S: Final = 0.1


class Served:
    def __init__(self, args: Mapping[str, str], config: Mapping[str, Any]) -> None:
        """`args` as Triton gives them to `initialize`; raises GourmetError."""
        path = Path(args["model_repository"]) / args["model_version"] / package.FILE
        manifest.check(path, config)
        files = package.read(path)
        self.tokenizer = Tokenizer(files)
        self._engine = OnnxEngine(files, cpu_threads(config))
        self._loop = Loop(
            self._engine,
            pad=self.tokenizer.pad,
            end=self.tokenizer.end,
            rows=integer_parameter(config, _ROWS_PARAMETER) or _ROWS,
            continuous=parameter(config, CONTINUOUS_PARAMETER) != "off",
        )
        # A search keeps its rows to itself, and goes on beside the loop.
        self._searches = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._searching = 0

    def submit(self, jobs: Sequence[Job], beams: Sequence[int]) -> None:
        """Begin to answer them, all or none: raises TooManyRows."""
        searched = [(job, width) for job, width in zip(jobs, beams, strict=True) if width > 1 and job.rows]
        greedy = [job for job, width in zip(jobs, beams, strict=True) if width == 1 or not job.rows]
        if self._searching + len(searched) > max(_SEARCHES, len(searched)):
            raise TooManyRows(f"{self._searching} texts wait already to be searched for: ask again later")
        submit(greedy, self._loop)
        self._searching += len(searched)
        for job, width in searched:
            self._searches.submit(self._search, job, width)

    def close(self) -> None:
        self._searches.shutdown(cancel_futures=True)
        self._loop.close()

    def _search(self, job: Job, beams: int) -> None:
        row = job.rows[0]
        try:
            for row in job.rows:
                if not self._is_over(row):
                    row.tokens, row.score = search(
                        self._engine,
                        row.source,
                        beams=beams,
                        most=row.most,
                        pad=self.tokenizer.pad,
                        end=self.tokenizer.end,
                        is_over=partial(self._is_over, row),
                    )
                row.ended = row.ended or "whole"
                row.told(row)
        except Exception as exc:  # somebody waits for an answer, and nobody for this thread
            row.ended, row.error = "failed", exc
            row.told(row)
        finally:
            self._searching -= 1

    @staticmethod
    def _is_over(row: Row) -> bool:
        row.ended = "late" if time.monotonic() > row.until else None if row.wanted() else "unwanted"
        return row.ended is not None


def now_and_then(asked: Callable[[], bool]) -> Callable[[], bool]:
    """The same answer for a while, since asking Triton costs more than a step."""
    last, at = False, time.monotonic()

    def remembered() -> bool:
        nonlocal last, at
        now = time.monotonic()
        if now - at > _ASKED_EVERY_S:
            last, at = asked(), now
        return last

    return remembered
