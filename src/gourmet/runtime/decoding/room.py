"""A generation room: rows come in from any thread; encoding, the loop and searches each have a thread.

    room = GenerationRoom(engine, start=1, end=0, max_rows=16)
    room.submit([Row(source, max_tokens=128, on_tokens=print)])

A long encode delays only the rows that it is for, since the loop goes on meanwhile, and an encode that fails
fails only them. Whoever asked hears from the thread that did the work.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from gourmet.errors import GourmetError
from gourmet.runtime.decoding.beams import search
from gourmet.runtime.decoding.engine import Engine, Floats
from gourmet.runtime.decoding.loop import Loop
from gourmet.runtime.decoding.rows import Row, TooManyRows

# With "off", rows that wait join when all are done: to see what joining between two steps is good for.
CONTINUOUS_PARAMETER: Final = "continuous_batching"
# So many rows may wait for each that can be at work, and so many for the only search.
_WAITING: Final = 8
_SEARCHES: Final = 32
# Memories that may lie ready while the loop is full: the next to join need not wait, and few take space.
_READY: Final = 2
_CLOSED: Final = GourmetError("the model is being unloaded")


class GenerationRoom:
    def __init__(
        self, engine: Engine, *, start: int, end: int, max_rows: int, continuous: bool = True
    ) -> None:
        """Without `continuous`, rows that wait join when all are done."""
        self._engine, self._start, self._end, self._max_rows = engine, start, end, max_rows
        self._continuous = continuous
        self._loop = Loop(engine, start=start, end=end, max_rows=max_rows)
        self._changed = threading.Condition()  # guards all that follows
        self._waiting: deque[Row] = deque()
        self._loop_waits = True  # nothing is at work
        self._joins_next = 0  # rows that the loop's own thread encodes
        self._ready: deque[tuple[Row, Floats]] = deque()
        self._searching: list[Row] = []
        self._closing = False
        # A search keeps its rows to itself, and goes on beside the loop.
        self._searches = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("encode", self._encode), ("decode", self._decode))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, rows: Sequence[Row]) -> None:
        """All of them, or none: raises TooManyRows."""
        searched = [row for row in rows if row.beams > 1]
        greedy = [row for row in rows if row.beams == 1]
        with self._changed:
            waiting = len(self._waiting)
            if greedy and waiting + len(greedy) > max(_WAITING * self._max_rows, len(greedy)):
                raise TooManyRows(f"{waiting} sentences wait already: ask again later")
            if searched and len(self._searching) + len(searched) > max(_SEARCHES, len(searched)):
                raise TooManyRows(f"{len(self._searching)} searches wait already: ask again later")
            self._searching += searched
            self._waiting.extend(greedy)
            self._changed.notify_all()
        for row in searched:
            self._searches.submit(self._search, row)

    def close(self) -> None:
        """Stop; rows at work or waiting fail."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._loop.fail(_CLOSED)
        with self._changed:
            left = [*(row for row, _ in self._ready), *self._waiting, *self._searching]
        for row in left:
            row.finish("failed", _CLOSED)
        self._searches.shutdown()  # the one at work sees at its next step that its row is finished

    def _encode(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or (not self._loop_waits and self._may_encode()))
                if self._closing:
                    return
                rows = self._to_encode()
            memories = self._memories([row for row in rows if not row.gave_up()])
            with self._changed:
                self._ready += memories
                self._changed.notify_all()

    def _to_encode(self) -> list[Row]:
        return [self._waiting.popleft() for _ in range(self._may_encode())]

    def _may_encode(self) -> int:
        ahead = self._max_rows if not self._continuous else _READY
        room = max(self._loop.capacity - self._joins_next, ahead) - len(self._ready)
        return max(0, min(room, len(self._waiting)))

    def _memories(self, rows: Sequence[Row]) -> list[tuple[Row, Floats]]:
        """Each with its memory; where they cannot be encoded together, each by itself."""
        if not rows:
            return []
        try:
            memories = self._engine.encode([row.source for row in rows])
            for memory in memories:
                if self._engine.places not in (None, memory.shape[3]):
                    raise GourmetError(
                        f"a memory has {memory.shape[3]} places; this system's have {self._engine.places}"
                    )
            return list(zip(rows, memories, strict=True))
        except Exception as exc:
            if len(rows) > 1:
                return [each for row in rows for each in self._memories([row])]
            rows[0].finish("failed", exc)
            return []

    def _decode(self) -> None:
        while True:
            with self._changed:
                self._loop_waits, self._joins_next = self._loop.is_idle, 0
                self._changed.wait_for(
                    lambda: self._closing or self._ready or self._waiting or not self._loop_waits
                )
                if self._closing:
                    return
                joining = self._joining()
                # Nobody's tokens wait while the loop is empty: it is handed over to no other thread.
                rows = self._to_encode() if self._loop.is_idle and not joining else []
                if joining or rows:
                    self._loop_waits, self._joins_next = False, len(rows)
                    self._changed.notify_all()
            joining += self._memories([row for row in rows if not row.gave_up()])
            capacity = self._loop.capacity
            try:
                self._loop.add_requests([row for row, _ in joining], [memory for _, memory in joining])
                self._loop.step()
            except Exception as exc:  # of the engine: it is the answer of all rows at work
                self._loop.fail(exc)
            if self._loop.capacity > capacity - len(joining):
                with self._changed:
                    self._changed.notify_all()

    def _joining(self) -> list[tuple[Row, Floats]]:
        if not self._continuous and not self._loop.is_idle:
            return []
        return [self._ready.popleft() for _ in range(min(self._loop.capacity, len(self._ready)))]

    def _search(self, row: Row) -> None:
        try:
            if not row.gave_up():
                row.tokens, row.score = search(self._engine, row, start=self._start, end=self._end)
                if not row.finished:
                    row.finish("stop")
        except Exception as exc:  # it is the answer of this row
            row.finish("failed", exc)
        finally:
            with self._changed:
                self._searching.remove(row)
