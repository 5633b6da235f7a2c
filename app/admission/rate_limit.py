"""RATE_LIMIT: so many photos a client, counted by all workers of gunicorn together.

The package `limits` counts windows, and shares its counts between processes through a server only. What has
to be shared is one number for each client, the moment at which its photos so far are paid for (the generic
cell rate algorithm), and Linux's monotonic clock is the same for all processes: so it is a table of numbers
in a file that all workers map. A client is the API key, or else the address, of IPv6 the /64; its hash,
with a key of this start, is its place in the table, so that nobody can find an address that shares
another's. By RATE_LIMIT_STORAGE several web apps count together: app/admission/shared_rates.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from flask import Flask, Response, g, request

from app.admission.queue import client_of_request
from app.admission.uploads import discard
from app.core.errors import TooManyRequests
from app.core.http import API, marks
from app.core.metrics import DIRECTORY_ENV
from app.core.settings import Rate, Settings

# 512 KB; of a thousand clients at the same time, one in 66 shares its place with another.
_PLACES: Final = 65_536
_NUMBER: Final = struct.Struct("d")
_KEY_BYTES: Final = 32  # behind the table


@dataclass(frozen=True)
class Quota:
    """How a client stands after it asked; `wait_s` is 0 where it was allowed."""

    left: int
    full_again_s: float
    wait_s: float

    @classmethod
    def of(cls, rate: Rate, owed_s: float, wait_s: float) -> Quota:
        """Of a client whose photos so far are paid for in `owed_s`."""
        return cls(int((rate.seconds - owed_s) * rate.requests / rate.seconds + 1e-6), owed_s, wait_s)


class TakesQuota(Protocol):
    """Counts what clients had, in one place or another."""

    @property
    def rate(self) -> Rate: ...

    def take(self, client: str, count: int = 1) -> Quota:
        """Let `client` have `count` more, or none of them if that were too many."""


class Limiter:
    """The table; in `path`, where other processes share it, or in this process alone."""

    def __init__(
        self, rate: Rate, path: Path | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate = rate
        self._now = now
        self._lock = threading.Lock()
        size = _PLACES * _NUMBER.size
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600) if path else os.memfd_create("rates")
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        if os.fstat(self._file).st_size == 0:  # the first of the workers
            os.pwrite(self._file, os.urandom(_KEY_BYTES), size)
        fcntl.lockf(self._file, fcntl.LOCK_UN)
        self._table = mmap.mmap(self._file, size + _KEY_BYTES)
        self._key = self._table[size:]

    def take(self, client: str, count: int = 1) -> Quota:
        each = self.rate.seconds / self.rate.requests
        digest = hashlib.blake2b(client.encode(), digest_size=8, key=self._key).digest()
        at = int.from_bytes(digest, "big") % _PLACES * _NUMBER.size
        with self._lock:  # among threads; the file's lock is among processes
            fcntl.lockf(self._file, fcntl.LOCK_EX, _NUMBER.size, at)
            now = self._now()
            paid_until = max(now, _NUMBER.unpack_from(self._table, at)[0])
            then = paid_until + count * each
            wait_s = then - now - self.rate.seconds
            allowed = wait_s <= each * 1e-6
            if allowed:
                paid_until = then
                _NUMBER.pack_into(self._table, at, paid_until)
            fcntl.lockf(self._file, fcntl.LOCK_UN, _NUMBER.size, at)
        return Quota.of(self.rate, paid_until - now, 0.0 if allowed else wait_s)


def init_app(app: Flask, settings: Settings) -> None:
    rate = settings.rate_limit
    if rate is None:
        return
    folder = os.environ.get(DIRECTORY_ENV)  # made by gunicorn_conf, for all its workers
    limiter: TakesQuota = Limiter(rate, Path(folder, "rates") if folder else None)
    if settings.rate_limit_storage:
        from app.admission.shared_rates import SharedLimiter

        uncounted = app.extensions["metrics"].rate_limit_failures.inc
        limiter = SharedLimiter(settings.rate_limit_storage, limiter, uncounted)
    app.extensions["limiter"] = limiter

    @app.before_request
    def count_request() -> None:
        said = marks()
        is_counted = said.charged or (request.path.startswith(API) and not said.open)
        if is_counted and request.method != "OPTIONS":
            try:
                _take(limiter, 1)
            except TooManyRequests:
                discard(settings)
                raise

    @app.after_request
    def tell(response: Response) -> Response:
        quota: Quota | None = g.get("quota")
        if quota is not None:
            response.headers["RateLimit-Policy"] = f'"default";q={rate.requests};w={rate.seconds}'
            full_again_s = math.ceil(quota.full_again_s)
            response.headers["RateLimit"] = f'"default";r={quota.left};t={full_again_s}'
        return response


def count_photos(app: Flask, photos: int, called: str = "photos") -> None:
    """Count the photos of a call beyond the first, which was counted when the call came; or its texts.

    Only where the settings have a rate limit.
    """
    limiter: TakesQuota = app.extensions["limiter"]
    if photos > limiter.rate.requests:
        message = f"{photos} {called} in one call are never allowed here: at most {_words(limiter.rate)}"
        raise TooManyRequests(message)
    if photos > 1:
        _take(limiter, photos - 1)


def _take(limiter: TakesQuota, count: int) -> None:
    g.quota = limiter.take(client_of_request(), count)
    if g.quota.wait_s:
        message = f"too much for now: a client is allowed {_words(limiter.rate)}"
        raise TooManyRequests(message, retry_after_s=math.ceil(g.quota.wait_s))


def _words(rate: Rate) -> str:
    return f"{rate.requests} photos or requests in {rate.seconds} s"
