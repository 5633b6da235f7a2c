"""Ctrl-C and SIGTERM, handled in another way for a while."""

from __future__ import annotations

import signal
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


@contextmanager
def stops_set(asked: threading.Event) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a terminal that closes set `asked`, however many come; under nohup it may close."""
    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = STOPS if under_nohup else (*STOPS, signal.SIGHUP)
    with handled(dict.fromkeys(numbers, lambda *_: asked.set())):
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
