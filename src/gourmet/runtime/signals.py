"""Ctrl-C and SIGTERM, handled in another way for a while."""

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
    """Other handlers for a while; only the main thread may ask for it."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stops() -> list[signal.Signals]:
    """Ctrl-C, SIGTERM and a terminal that closes, but under nohup, and those that are ignored for now."""
    numbers = (*STOPS, signal.SIGHUP)
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def stops_set(asked: threading.Event) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a terminal that closes set `asked`, however many come; under nohup it may close."""
    numbers = {*STOPS, *_stops()}
    with handled(dict.fromkeys(numbers, lambda *_: asked.set())):
        yield


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does, so that what it began is undone; elsewhere it kills."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with handled({signal.SIGTERM: lambda number, _: sys.exit(128 + number)}):
        yield


@contextmanager
def first_stop() -> Iterator[threading.Event]:
    """What the first Ctrl-C or SIGTERM sets, to be asked between steps; a second one ends the process."""
    asked = threading.Event()

    def note(*_: object) -> None:
        asked.set()
        for number in STOPS:
            signal.signal(number, signal.default_int_handler)

    with handled(dict.fromkeys(STOPS, note)):
        yield asked
