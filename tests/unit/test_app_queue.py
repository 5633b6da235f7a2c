"""Places and who waits for them, and who is a client, without an app around them."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.eventually import eventually

from gourmet.served.fair_queue import FairQueue, QueueFull

ME, YOU, SHE = "192.0.2.1", "192.0.2.2", "192.0.2.3"


EVER = math.inf


class Queued:
    """A queue with clients that wait, in threads of their own."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue, self.began, self.refused = queue, list[str](), list[str]()

    def come(self, *clients: str) -> None:
        for client in clients:
            waiting = len(self.queue._waiting)
            threading.Thread(target=self._wait, args=(client,), daemon=True).start()
            eventually(lambda before=waiting: len(self.queue._waiting) == before + 1)

    def _wait(self, client: str) -> None:
        try:
            self.queue.acquire(client, EVER)
        except QueueFull:
            self.refused.append(client)
        else:
            self.began.append(client)

    def release(self, client: str) -> None:
        before = len(self.began)
        self.queue.release(client)
        eventually(lambda: len(self.began) == before + 1)


@pytest.mark.promise("operating: one client sends more than all others")
def test_a_client_with_half_of_the_places_waits_while_another_waits() -> None:
    queued = Queued(FairQueue(4))
    for _ in range(4):
        queued.queue.acquire(ME, EVER)
    queued.come(ME, ME, ME, YOU, YOU)
    for _ in range(2):
        queued.release(ME)
    assert queued.began == [YOU, YOU]
    queued.release(YOU)  # nobody but the greedy one waits any more: no place stays idle
    assert queued.began == [YOU, YOU, ME]


def test_a_client_never_exceeds_its_limit_and_the_machine_has_none() -> None:
    queued = Queued(FairQueue(4, max_per_client=2))
    for client in (ME, ME):
        assert queued.queue.acquire(client, EVER) == 0.0
    queued.come(ME)
    assert [queued.queue.acquire("", EVER) for _ in range(2)] == [0.0, 0.0]
    queued.queue.release("")
    assert queued.began == []
    queued.release(ME)
    assert queued.began == [ME]


def test_a_request_that_gave_up_leaves_no_gap() -> None:
    queue = FairQueue(1)
    queue.acquire(ME, EVER)
    with pytest.raises(TimeoutError):
        queue.acquire(YOU, time.monotonic() + 0.01)
    queue.release(ME)
    assert queue.acquire(ME, EVER) == 0.0


def test_a_request_whose_client_left_passes_its_place_on() -> None:
    queue = FairQueue(1)
    queue.acquire(ME, EVER)
    with ThreadPoolExecutor(2) as pool:
        left = pool.submit(queue.acquire, YOU, EVER, lambda: True)
        eventually(lambda: len(queue._waiting) == 1)
        stayed = pool.submit(queue.acquire, SHE, EVER)
        eventually(lambda: len(queue._waiting) == 2)
        queue.release(ME)
        assert stayed.result(60) > 0.0
        assert isinstance(left.exception(60), TimeoutError)


def test_a_client_may_fill_the_queue_until_another_comes() -> None:
    queued = Queued(FairQueue(1, max_waiting=3))
    queued.queue.acquire(ME, EVER)
    queued.come(ME, ME, ME)
    with pytest.raises(QueueFull):
        queued.queue.acquire(ME, EVER)
    assert queued.refused == []
    threading.Thread(target=queued._wait, args=(YOU,), daemon=True).start()
    eventually(lambda: queued.refused == [ME])
    assert [waiter.client for waiter in queued.queue._waiting] == [ME, ME, YOU]


def test_the_machine_itself_may_have_all_places() -> None:
    queue = FairQueue(4, max_per_client=2)
    assert [queue.acquire("", time.monotonic() + 0.01) for _ in range(4)] == [0.0] * 4


def test_of_clients_with_as_many_requests_the_newcomer_is_refused() -> None:
    queued = Queued(FairQueue(1, max_waiting=2))
    queued.queue.acquire(ME, EVER)
    queued.come(ME, YOU)
    with pytest.raises(QueueFull):
        queued.queue.acquire(SHE, EVER)
    assert queued.refused == []


def test_waiting_requests_sleep_until_they_get_a_place() -> None:
    """Found: a thousand that looked ten times a second took a quarter of the CPU."""
    queued = Queued(FairQueue(1))
    queued.queue.acquire(ME, EVER)
    tasks = Path("/proc/self/task")
    before = set(tasks.iterdir())
    queued.come(*[ME] * 8)
    waiting = set(tasks.iterdir()) - before

    def are_asleep() -> bool:
        before = [(task / "status").read_text() for task in waiting]
        time.sleep(0.3)
        return before == [(task / "status").read_text() for task in waiting]

    assert len(waiting) == 8
    eventually(are_asleep, 5)


def test_places_are_never_lost_or_doubled_by_many_threads() -> None:
    queue, at_work, max_at_work = FairQueue(3), [0], [0]
    lock = threading.Lock()

    def work(number: int) -> None:
        for _ in range(50):
            with queue.place(str(number % 4), EVER):
                with lock:
                    at_work[0] += 1
                    max_at_work[0] = max(max_at_work[0], at_work[0])
                with lock:
                    at_work[0] -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert max_at_work[0] <= 3
    assert [queue.acquire(ME, EVER) for _ in range(3)] == [0.0] * 3
