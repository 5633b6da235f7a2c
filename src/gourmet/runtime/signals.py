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
def undone_by_sigterm() -> Iterator[None]:
    """SIGTERM and a terminal that closes raise SystemExit, by which what was begun is undone.

    Those that come after the first do not disturb that. Where they are handled already, that stays, and
    beside the main thread, which is the one that a stop interrupts, nothing changes.
    """
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        numbers = []

    def end(number: int, _frame: object) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    with handled(dict.fromkeys(numbers, end)):
        yield


@contextmanager
def stops_held_back() -> Iterator[None]:
    """A stop that comes meanwhile acts afterwards: around steps of which one alone would be left behind."""
    if threading.current_thread() is not threading.main_thread():  # which is the one that a stop interrupts
        yield
        return
    came: list[int] = []
    with handled(dict.fromkeys(_stops(), lambda number, _: came.append(number))):
        yield
    for number in came[:1]:
        signal.raise_signal(number)


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
