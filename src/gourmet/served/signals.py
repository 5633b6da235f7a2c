"""Context managers that handle Ctrl-C and SIGTERM in other ways."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

STOPS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handled(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Replace signal handlers within the block. Call it in the main thread only."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def set_on_stop(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at Ctrl-C, SIGTERM and, except under nohup, when the terminal closes."""
    numbers = set(STOPS)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.add(signal.SIGHUP)
    with handled(dict.fromkeys(numbers, lambda *_: stop.set())):
        yield


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, so that the command cleans up. Outside the main thread, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with handled({signal.SIGTERM: lambda number, _: sys.exit(128 + number)}):
        yield


@contextmanager
def first_stop() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets; the second raises KeyboardInterrupt."""
    stop = threading.Event()

    def note(*_: object) -> None:
        stop.set()
        for number in STOPS:
            signal.signal(number, signal.default_int_handler)

    with handled(dict.fromkeys(STOPS, note)):
        yield stop
