"""RATE_LIMIT_STORAGE: what clients had, counted by several web apps together in a Redis.

The same algorithm as in app/admission/rate_limit.py, as a script that Redis runs by its own clock; what is
paid for is forgotten by Redis itself. While it does not answer, each web app counts by itself: nobody is
refused whom Redis would have let through. One request a second of each process then looks whether it is back,
and no other waits for it.

The package `limits` (5.8.0 was read) would replace the script alone, some twenty lines: it does not fall
back, and it counts windows. Its moving one keeps an entry for each request, by the clocks of the web apps;
its sliding one estimates, its fixed one lets twice the rate through where two windows meet. None says when
several photos fit again (Retry-After), and what is left is a second question to Redis. It wants redis below
8, too.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final

from app.admission.rate_limit import Quota, TakesQuota
from app.core.settings import SettingsError

_SCRIPT: Final = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local paid = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0))
local cost, burst, slack = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local wait = paid + cost - now - burst
if wait <= slack then
  wait, paid = 0, paid + cost
  if cost > 0 then
    redis.call('SET', KEYS[1], string.format('%.6f', paid), 'PX', math.ceil(1000 * (paid - now)))
  end
end
return {string.format('%.6f', paid - now), string.format('%.6f', wait)}
"""
_TIMEOUT_S: Final = 0.25
_LOOK_AGAIN_S: Final = 1.0
_PREFIX: Final = "gourmet:rate:"
_log = logging.getLogger(__name__)


class SharedLimiter:
    """What clients had, in the Redis at `url`; `alone` counts while that does not answer, and `uncounted` is
    called for each such request."""

    def __init__(self, url: str, alone: TakesQuota, uncounted: Callable[[], None]) -> None:
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError:
            raise SettingsError(
                "RATE_LIMIT_STORAGE needs a package: `pip install -r requirements/redis.txt`, or unset it"
            ) from None
        self.rate = alone.rate
        self._alone, self._uncounted = alone, uncounted
        # What another program keeps at that address may answer with no numbers at all.
        self._failures = (redis.RedisError, TypeError, ValueError)
        try:
            server = redis.Redis.from_url(
                url,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=_TIMEOUT_S,
                socket_connect_timeout=_TIMEOUT_S,
            )
        except ValueError:  # whose words may have a part of the password in them
            raise SettingsError(
                "RATE_LIMIT_STORAGE is not usable: its port and its database are numbers, as in "
                "redis://host:6379/0"
            ) from None
        self._script = server.register_script(_SCRIPT)
        self._lock = threading.Lock()
        self._is_away = False
        self._look_again_at = 0.0

    def take(self, client: str, count: int = 1) -> Quota:
        if self._may_ask():
            try:
                quota = self._shared(client, count)
                self._note(away=False)
                return quota
            except self._failures as exc:
                self._note(away=True, why=str(exc))
        self._uncounted()
        return self._alone.take(client, count)

    def _shared(self, client: str, count: int) -> Quota:
        # Not the address itself: who reads the Redis need not know who asked.
        key = _PREFIX + hashlib.blake2b(client.encode(), digest_size=16).hexdigest()
        each = self.rate.seconds / self.rate.requests
        owed_s, wait_s = map(float, self._script([key], [count * each, self.rate.seconds, each * 1e-6]))
        if not (math.isfinite(owed_s) and math.isfinite(wait_s)):
            raise ValueError(f"it says {owed_s} and {wait_s}")
        return Quota.of(self.rate, owed_s, wait_s)

    def _may_ask(self) -> bool:
        with self._lock:
            if not self._is_away:
                return True
            if time.monotonic() < self._look_again_at:
                return False
            self._look_again_at = time.monotonic() + _LOOK_AGAIN_S  # others need not wait for this one
            return True

    def _note(self, *, away: bool, why: str = "") -> None:
        with self._lock:
            changed, self._is_away = self._is_away != away, away
            self._look_again_at = time.monotonic() + _LOOK_AGAIN_S
        if changed and away:
            _log.warning("RATE_LIMIT_STORAGE does not answer (%s): clients are counted here alone", why)
        elif changed:
            _log.warning("RATE_LIMIT_STORAGE answers again")
