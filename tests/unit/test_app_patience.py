"""What is not done in time is given up, by one thread for all; what is done in time is left alone."""

from __future__ import annotations

import threading
import time

from app.admission.uploads import within


def test_what_takes_too_long_is_given_up_and_what_does_not_is_left_alone() -> None:
    late, others = threading.Event(), threading.Event()
    with within(60, others.set), within(0.05, late.set):
        assert late.wait(10)
    with within(0.2, others.set):
        pass
    time.sleep(0.4)
    assert not others.is_set()


def test_a_shorter_patience_need_not_wait_for_a_longer_one() -> None:
    late = threading.Event()
    with within(60, late.clear):
        time.sleep(0.1)  # by now the thread waits for the minute to pass
        started = time.monotonic()
        with within(0.05, late.set):
            assert late.wait(10)
    assert time.monotonic() - started < 8


def test_one_thread_does_for_many() -> None:
    given_up: list[int] = []
    with within(60, lambda: None):
        before = threading.active_count()
    waiting = [within(0.05 + number / 1000, lambda: given_up.append(1)) for number in range(20)]
    for each in waiting:
        each.__enter__()
    assert threading.active_count() == before
    deadline = time.monotonic() + 10
    while len(given_up) < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(given_up) == 20
    for each in waiting:
        each.__exit__(None, None, None)
