"""Several photos at once, each as a request of its own to Triton.

One request with a row for each photo would be a little cheaper, but a model that decodes fails the
whole request for one broken row, and nobody would know which. Requests that arrive together are what
Triton's dynamic batcher makes a batch of, and decoding here uses the other cores meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from app.api.request_parsing import Photo
from app.classifier import Prediction
from app.core.errors import TritonTooSlow
from app.core.tracing import carried
from app.triton.client import Deadline

# Threads of a process for all calls of several photos together, so that one such call leaves the
# others, and those who send one photo, their share of Triton.
THREADS: Final = 4


@dataclass(frozen=True)
class Outcome:
    """What became of a photo; `done_at` is a moment of time.perf_counter()."""

    photo: Photo
    result: Prediction | Exception
    wait_ms: float | None
    done_at: float


Ask = Callable[[bytes], Prediction]


def classify(
    pool: ThreadPoolExecutor, photos: Sequence[Photo], ask: Ask, deadline: Deadline
) -> list[Outcome]:
    """What `ask` makes of each of `photos`, in their order, by the deadline."""
    if len(photos) == 1:
        return [_outcome(photos[0], ask)]
    within = carried(ask)
    submitted = time.perf_counter()
    futures = [pool.submit(_outcome, photo, within, submitted) for photo in photos]
    # A call ends by itself at the deadline; a little later is for those that wait for a thread.
    wait(futures, deadline.left_s() + 0.2)
    return [_ended(photo, future, deadline) for photo, future in zip(photos, futures, strict=True)]


def _outcome(photo: Photo, ask: Ask, submitted: float | None = None) -> Outcome:
    wait_ms = None if submitted is None else (time.perf_counter() - submitted) * 1000
    result: Prediction | Exception
    try:
        result = photo.fault or ask(photo.data)
    except Exception as exc:
        result = exc
    return Outcome(photo, result, wait_ms, time.perf_counter())


def _ended(photo: Photo, future: Future[Outcome], deadline: Deadline) -> Outcome:
    if future.done():
        return future.result()
    future.cancel()
    late = TritonTooSlow(f"there was no answer within {deadline.seconds:g} s")
    return Outcome(photo, late, None, time.perf_counter())
