"""Waiting with a deadline, on a clock that cannot jump, and with a failure at its end."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from http.client import HTTPException
from typing import TypeVar

Answer = TypeVar("Answer")


def wait_until(ready: Callable[[], bool], timeout_s: float, what: str, poll_s: float = 0.05) -> float:
    """Return the seconds until `ready()` held; raise TimeoutError naming `what` if it never did."""
    started = time.monotonic()
    while not ready():
        if time.monotonic() - started > timeout_s:
            raise TimeoutError(f"{what} within {timeout_s:.0f} s")
        time.sleep(poll_s)
    return time.monotonic() - started


def unless(stopped: threading.Event, ask: Callable[[], Answer], poll_s: float = 0.05) -> Answer | None:
    """What `ask()` returns or raises; None as soon as `stopped` is set, whatever it may still wait for."""
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as exc:
            answer.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    while not answer.done():
        if stopped.wait(poll_s):
            return None
    return answer.result()


def http_ok(url: str, timeout_s: float = 2.0) -> bool:
    """Whether a GET of `url` is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):  # nobody, or one who does not speak HTTP
        return False
