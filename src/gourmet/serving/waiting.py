"""Wait for a state until a deadline."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException


def wait_until(ready: Callable[[], bool], timeout_s: float, what: str, poll_s: float = 0.05) -> float:
    """Return the seconds until `ready()` held; raise TimeoutError naming `what` if it never did."""
    started = time.monotonic()
    while not ready():
        if time.monotonic() - started > timeout_s:
            raise TimeoutError(f"{what} within {timeout_s:.0f} s")
        time.sleep(poll_s)
    return time.monotonic() - started


def http_ok(url: str, timeout_s: float = 2.0) -> bool:
    """Return whether a GET of `url` is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):  # no server, or one that does not speak HTTP
        return False
