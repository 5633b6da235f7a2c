"""The scheduler runs the loop: any thread submits rows; encoding and the loop have a thread each.

    scheduler = DecodeScheduler(engine, vocabulary, 16)
    scheduler.submit([Row(source, max_tokens=128, on_tokens=print)])

Sources that take long to prepare, such as a picture that takes seconds to decode, have a pool of threads. A
long encode delays only its own rows: the loop goes on meanwhile, and has priority if both need the same CPU.
The loop's thread does brief encodes itself, since a handover would cost a step. A failed encode fails only
its own rows. The thread that did the work notifies a row.

Each client has a queue of waiting rows, and the queues are served in turn. Rows join in the order in which
they left the queues: while the first needs more slots than are free, the rows behind it wait. Otherwise they
would take each slot that becomes free, and a search with four beams would never join.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.generation.engine import Engine, Floats
from gourmet.generation.loop import Loop, Row, TooManyRows, Vocabulary

# With "off", waiting rows join when all others are finished: it shows the gain of joining between two steps.
CONTINUOUS_PARAMETER: Final = "continuous_batching"
# Limit of a client's waiting rows, per row of the loop: with 16 rows it allows five calls of 400 sentences. A
# refused call costs the web app as much as an answered one.
_MAX_WAITING: Final = 128
# Memories that are encoded ahead while the loop is full: few, since they take space.
_MAX_READY: Final = 2
# Sources that are prepared at a time, a thread each.
_MAX_PREPARING: Final = 32
# Brief encodes between two steps while several clients have rows: a dozen together would not be brief.
_MAX_BRIEF_IN_TURN: Final = 1
# The encoding thread has a lower priority. With the priority of the loop it keeps the CPU for a slice of the
# scheduler, and the loop waits for ten steps (measured: 4.6 ms beside 0.6 on two busy cores).
_NICENESS: Final = 5
_CLOSED: Final = GourmetError("the model is being unloaded")


class ClientQueues:
    """A queue of waiting rows for each client, served round-robin."""

    def __init__(self) -> None:
        self._by_client: dict[str, deque[Row]] = {}  # the next client first

    def __len__(self) -> int:
        return sum(map(len, self._by_client.values()))

    def __iter__(self) -> Iterator[Row]:
        return chain.from_iterable(self._by_client.values())

    @property
    def clients(self) -> Collection[str]:
        return self._by_client.keys()

    def length_of(self, client: str) -> int:
        return len(self._by_client.get(client, ()))

    def add(self, row: Row) -> None:
        self._by_client.setdefault(row.client, deque()).append(row)

    def next(self) -> Row:
        client = next(iter(self._by_client))
        queue = self._by_client.pop(client)
        row = queue.popleft()
        if queue:
            self._by_client[client] = queue
        return row


class DecodeScheduler:
    def __init__(
        self, engine: Engine, vocabulary: Vocabulary, max_rows: int, *, continuous: bool = True
    ) -> None:
        """Start the threads. Without `continuous`, waiting rows join when all others are finished."""
        self._engine, self._max_rows, self._continuous = engine, max_rows, continuous
        self._loop = Loop(engine, vocabulary, max_rows)
        self._changed = threading.Condition()  # guards the attributes below
        self._waiting, self._brief = ClientQueues(), ClientQueues()
        self._preparing: set[Row] = set()
        self._preparers = ThreadPoolExecutor(_MAX_PREPARING, thread_name_prefix="prepare")
        self._encoding: Sequence[Row] = ()
        # The next rows to join, with their memories; a brief one gets its memory when it joins.
        self._ready: deque[tuple[Row, Floats | None]] = deque()
        self._closing = False
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._encode, self._decode)]
        for thread in self._threads:
            thread.start()

    def submit(self, rows: Sequence[Row]) -> None:
        """Add rows to the queues.

        Raise ValueError if a row has more beams than the loop has slots, or TooManyRows if more sources
        would be prepared at a time than allowed. Then none of the rows is added.
        """
        self._loop.check_beams(rows)
        unprepared = {row for row in rows if row.prepare}
        with self._changed:
            if unprepared and len(self._preparing) + len(unprepared) > _MAX_PREPARING:
                raise TooManyRows(
                    f"{len(self._preparing)} inputs are being prepared, at most {_MAX_PREPARING} are "
                    "allowed: send the request again later"
                )
            self._preparing |= unprepared
            for row in rows:
                if row.prepare:
                    self._preparers.submit(self._prepare, row, row.prepare)
                else:
                    self._enqueue(row)
            self._changed.notify_all()

    def _enqueue(self, row: Row) -> None:
        queues = self._brief if self._engine.is_brief(row.source) else self._waiting
        queues.add(row)

    def _prepare(self, row: Row, prepare: Callable[[Row], Any]) -> None:
        try:
            row.source = prepare(row)
        except Exception as exc:  # it becomes the error of this row
            if not row.gave_up():
                row.finish("failed", exc)
        with self._changed:
            self._preparing.discard(row)
            if self._closing and not row.finished:
                row.finish("failed", _CLOSED)
            if not row.finished:
                self._enqueue(row)
            self._changed.notify_all()

    def check_queue_of(self, client: str) -> None:
        """Raise TooManyRows if the client may not add rows now, since too many of its rows wait."""
        with self._changed:
            waiting = sum(queues.length_of(client) for queues in self._queues)
        if waiting >= (limit := _MAX_WAITING * self._max_rows):
            raise TooManyRows(
                f"{waiting:,} sentences of this client wait, at most {limit:,} may: "
                "send the request again later"
            )

    def figures(self) -> dict[str, float]:
        """Return the numbers of rows that wait and that are at work, and sums since the start."""
        with self._changed:
            waiting = len(self._preparing) + sum(map(len, self._queues))
            at_work = sum(map(len, (self._loop.rows, self._encoding, self._ready)))
        loop = self._loop
        sums = {"tokens_total": loop.tokens, "begun_total": loop.started}
        first = loop.first_token_s
        return {"waiting": waiting, "at_work": at_work, **sums, "first_token_seconds_total": first}

    @property
    def _queues(self) -> Sequence[ClientQueues]:
        return self._waiting, self._brief

    def close(self) -> None:
        """Stop the threads and fail all unfinished rows."""
        self._closing = True
        self._notify()
        for thread in self._threads:
            thread.join()
        self._preparers.shutdown(wait=False, cancel_futures=True)
        self._loop.fail(_CLOSED)
        for row in chain((row for row, _ in self._ready), list(self._preparing), *self._queues):
            row.finish("failed", _CLOSED)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _encode(self) -> None:
        with contextlib.suppress(OSError):  # Linux sets the priority of this thread alone
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._may_encode())
                if self._closing:
                    return
                self._encoding = self._next(self._waiting, self._may_encode())
            memories = self._memories(self._encoding)
            with self._changed:
                self._ready += memories
                self._encoding = ()
                self._changed.notify_all()

    def _may_encode(self) -> int:
        """Return how many rows may be encoded for now. A search may exceed it with its last beams."""
        if not self._waiting:
            return 0
        ahead = _MAX_READY if self._continuous else self._max_rows
        free = max(self._loop.capacity, ahead) - _slots_for(row for row, _ in self._ready)
        return max(0, min(free, self._engine.max_sources))

    def _next(self, queues: ClientQueues, slots: int) -> list[Row]:
        """Take the next rows from the queues until they need at least `slots`. Skip rows that gave up."""
        rows: list[Row] = []
        while _slots_for(rows) < slots and queues:
            row = queues.next()
            if not row.gave_up():
                rows.append(row)
        return rows

    def _memories(self, rows: Sequence[Row]) -> list[tuple[Row, Floats]]:
        """Encode the rows together; if that fails, one by one. Return rows with their memories."""
        if not rows:
            return []
        try:
            memories = self._engine.encode([row.source for row in rows])
            for memory in memories:
                if self._engine.positions not in (None, memory.shape[3]):
                    raise GourmetError(
                        f"the encoder returned a memory of {memory.shape[3]} positions; "
                        f"memories of this system must have {self._engine.positions}"
                    )
            return list(zip(rows, memories, strict=True))
        except Exception as exc:
            if len(rows) > 1:
                return [encoded for row in rows for encoded in self._memories([row])]
            rows[0].finish("failed", exc)
            return []

    def _decode(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._ready or self._brief or not self._loop.is_idle
                )
                if self._closing:
                    return
                let_in = self._let_in()
            joining = [(row, memory) for row, memory in let_in if memory is not None]
            joining += self._memories([row for row, memory in let_in if memory is None])
            capacity = self._loop.capacity
            try:
                self._loop.add_requests([row for row, _ in joining], [memory for _, memory in joining])
                if joining and self._waiting:
                    self._notify()  # there is space for memories again
                self._loop.step()
            except Exception as exc:  # an error of the engine becomes the error of all rows at work
                self._loop.fail(exc)
            if self._waiting and self._loop.capacity > capacity - _slots_for(row for row, _ in joining):
                self._notify()

    def _let_in(self) -> list[tuple[Row, Floats | None]]:
        """Return the rows that join now. One of the next rows is a brief one as long as any wait."""
        free = self._loop.capacity if self._continuous or self._loop.is_idle else 0
        has_several_clients = len({row.client for row in self._loop.rows}.union(self._brief.clients)) > 1
        joining: list[tuple[Row, Floats | None]] = []
        brief = _MAX_BRIEF_IN_TURN if has_several_clients else free
        while True:
            if brief and self._brief and all(memory is not None for _, memory in self._ready):
                self._ready.extend((row, None) for row in self._next(self._brief, 1))
            if not self._ready:
                return joining
            row, memory = self._ready[0]
            if row.beams > free and not row.gave_up():
                return joining
            # The loop skips rows that gave up; they count here all the same.
            free -= row.beams
            brief -= memory is None
            joining.append((row, memory))
            self._ready.popleft()


def _slots_for(rows: Iterable[Row]) -> int:
    return sum(row.beams for row in rows)
