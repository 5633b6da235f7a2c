"""Places and who waits for them, and who is a client, without an app around them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.eventually import eventually

from gourmet.served.fair_queue import FairQueue

ME, YOU, SHE = "192.0.2.1", "192.0.2.2", "192.0.2.3"


def never() -> bool:
    return False


class Queued:
    """A queue with clients that wait, in threads of their own."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue, self.began = queue, list[str]()

    def come(self, *clients: str) -> None:
        for client in clients:
            waiting = len(self.queue._waiting)
            threading.Thread(target=self._wait, args=(client,), daemon=True).start()
            eventually(lambda before=waiting: len(self.queue._waiting) == before + 1)

    def _wait(self, client: str) -> None:
        self.queue.acquire(client, never)
        self.began.append(client)

    def release(self, client: str) -> None:
        before = len(self.began)
        self.queue.release(client)
        eventually(lambda: len(self.began) == before + 1)


def test_a_client_with_half_of_the_places_waits_while_another_waits() -> None:
    queued = Queued(FairQueue(4))
    for _ in range(4):
        queued.queue.acquire(ME, never)
    queued.come(ME, ME, ME, YOU, YOU)
    for _ in range(2):
        queued.release(ME)
    assert queued.began == [YOU, YOU]
    queued.release(YOU)  # nobody but the greedy one waits any more: no place stays idle
    assert queued.began == [YOU, YOU, ME]


def test_a_client_never_exceeds_its_limit_and_the_machine_has_none() -> None:
    queued = Queued(FairQueue(4, max_per_client=2))
    for client in (ME, ME):
        assert queued.queue.acquire(client, never) == 0.0
    queued.come(ME)
    assert [queued.queue.acquire("", never) for _ in range(2)] == [0.0, 0.0]
    queued.queue.release("")
    assert queued.began == []
    queued.release(ME)
    assert queued.began == [ME]


def test_a_request_that_gave_up_leaves_no_gap() -> None:
    queue = FairQueue(1)
    queue.acquire(ME, never)
    with pytest.raises(TimeoutError):
        queue.acquire(YOU, lambda: True)
    queue.release(ME)
    assert queue.acquire(ME, never) == 0.0


def test_places_are_never_lost_or_doubled_by_many_threads() -> None:
    queue, at_work, max_at_work = FairQueue(3), [0], [0]
    lock = threading.Lock()

    def work(number: int) -> None:
        for _ in range(50):
            with queue.place(str(number % 4), never):
                with lock:
                    at_work[0] += 1
                    max_at_work[0] = max(max_at_work[0], at_work[0])
                with lock:
                    at_work[0] -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert max_at_work[0] <= 3
    assert [queue.acquire(ME, never) for _ in range(3)] == [0.0] * 3
