"""The rate limit on photos of a client (RATE_LIMIT), counted by Flask-Limiter.

Without RATE_LIMIT_STORAGE each process counts alone, in memory. With it, processes count together in a Redis,
and alone while that Redis does not answer. The window moves: with 60/min, any minute has at most sixty. A
client is an API key or else an address (app/web/admission.py).
"""

from __future__ import annotations

import hashlib
import math
import time
from typing import Any, Final

from flask import Flask, Response, current_app, g, request
from flask_limiter import Limiter, RateLimitExceeded
from limits.errors import ConfigurationError, StorageError

from app.web.admission import client_of_request
from app.web.errors import ServingError
from app.web.http import FOR_PROGRAMS, options_of_route
from app.web.settings import Rate, Settings, SettingsError
from gourmet.served.optional import how_to_install

_TIMEOUT_S: Final = 0.25


def init_app(app: Flask, settings: Settings) -> None:
    rate = settings.rate_limit
    if rate is None:
        return
    limiter = _limiter(app, settings)
    failures = app.extensions["metrics"].rate_limit_failures

    @limiter.shared_limit(f"{rate.requests} per {rate.seconds} second", "all", cost=lambda: int(g.cost))
    def charge() -> None:
        """Charge this request's client with `g.cost`."""

    def take(photos: int) -> None:
        g.cost = photos
        try:
            charge()
        except RateLimitExceeded:
            message = f"too much for now: a client is allowed {_words(rate)}"
            _, reset_s = _left(limiter) or (0, 1)
            raise ServingError("too_many_requests", message, retry_after_s=max(1, reset_s)) from None

    app.extensions["rate_limit"] = rate, take

    @app.before_request
    def count_request() -> None:
        view = options_of_route()
        is_counted = view.charged or (request.path.startswith(FOR_PROGRAMS) and not view.open)
        if is_counted and request.method != "OPTIONS":
            take(1)

    @app.after_request
    def add_headers(response: Response) -> Response:
        if quota := _left(limiter):
            response.headers["RateLimit-Policy"] = f'"default";q={rate.requests};w={rate.seconds}'
            response.headers["RateLimit"] = f'"default";r={quota[0]};t={quota[1]}'
            if limiter.limiter.storage is not limiter.storage:
                failures.inc()
        return response


def count_photos(photos: int, called: str = "photos", *, capped: bool = False) -> None:
    """Count a call's photos, or its texts, except the first: `count_request` counted that one.

    If `capped`, a call that costs more than a client may ever send costs all of it.
    """
    if "rate_limit" not in current_app.extensions:
        return
    rate, take = current_app.extensions["rate_limit"]
    if capped:
        photos = min(photos, rate.requests)
    if photos > rate.requests:
        message = f"{photos} {called} in one call are never allowed here: at most {_words(rate)}"
        raise ServingError("too_many_requests", message)
    if photos > 1:
        take(photos - 1)


def _limiter(app: Flask, settings: Settings) -> Limiter:
    url = settings.rate_limit_storage
    options: dict[str, Any] = (
        {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": _TIMEOUT_S, "wrap_exceptions": True}
        if url
        else {}
    )
    try:
        return Limiter(
            _client,
            app=app,
            storage_uri=url or "memory://",
            storage_options=options,
            strategy="moving-window",
            in_memory_fallback_enabled=bool(url),
            swallow_errors=True,  # if two threads lose the Redis at once, one has no fallback
        )
    except ConfigurationError:
        raise SettingsError(
            f"RATE_LIMIT_STORAGE needs a package: run `{how_to_install('redis')}`, or unset it"
        ) from None
    except ValueError:  # its message may contain a part of the password
        raise SettingsError(
            "RATE_LIMIT_STORAGE is not usable: its port and its database are numbers, as in "
            "redis://host:6379/0"
        ) from None


def _client() -> str:
    """Return a hash of the client, so that readers of the Redis do not learn addresses."""
    return hashlib.blake2b(client_of_request().encode(), digest_size=16).hexdigest()


def _left(limiter: Limiter) -> tuple[int, int] | None:
    """Return how many photos the client may still send, and the seconds until its oldest one leaves."""
    if not (limit := limiter.current_limit):
        return None
    try:
        window = limit.window
    except StorageError:  # the Redis was lost during this request
        return None
    return window.remaining, max(0, math.ceil(window.reset_time - time.time()))


def _words(rate: Rate) -> str:
    return f"{rate.requests} photos or requests in {rate.seconds} s"
