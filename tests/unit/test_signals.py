"""Ctrl-C and SIGTERM while something finishes first."""

from __future__ import annotations

import signal
import threading

import pytest

from gourmet.served.signals import STOPS, first_stop, set_on_stop


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in STOPS]


@pytest.mark.parametrize("number", STOPS)
def test_the_first_stop_is_noted_and_the_second_ends(number: signal.Signals) -> None:
    before = handlers()
    with first_stop() as stop_requested:
        signal.raise_signal(number)
        assert stop_requested.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert handlers() == before


def test_a_terminal_that_closes_is_a_stop_but_under_nohup() -> None:
    for before, stops in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
        stop_requested = threading.Event()
        result = signal.signal(signal.SIGHUP, before)
        try:
            with set_on_stop(stop_requested):
                signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == before
        finally:
            signal.signal(signal.SIGHUP, result)
        assert stop_requested.is_set() == stops


def test_however_many_stops_come_they_only_set_the_event() -> None:
    before, stop_requested = handlers(), threading.Event()
    with set_on_stop(stop_requested):
        for number in (*STOPS, *STOPS):
            signal.raise_signal(number)
    assert stop_requested.is_set()
    assert handlers() == before
