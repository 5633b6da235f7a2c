"""A generation room: rows come in from any thread; encoding, the loop and searches each have a thread.

    room = GenerationRoom(engine, start=1, end=0, max_rows=16)
    room.submit([Row(source, max_tokens=128, on_tokens=print)])

A long encode delays only the rows that it is for, since the loop goes on meanwhile. A brief one is done by
the loop's thread, since handing it over would cost a step. An encode that fails fails only its own rows. Rows
are notified by the thread that did the work.
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
from gourmet.runtime.decoding.loop import Loop, Row, TooManyRows

# With "off", waiting rows join when all are finished: to see what joining between two steps is good for.
CONTINUOUS_PARAMETER: Final = "continuous_batching"
# Rows that may wait, for each that can be at work.
_WAITING: Final = 8
# Memories that are ready while the loop is full: the next to join need not wait, and few take space.
_READY: Final = 2
_CLOSED: Final = GourmetError("the model is being unloaded")


class GenerationRoom:
    def __init__(
        self, engine: Engine, *, start: int, end: int, max_rows: int, continuous: bool = True
    ) -> None:
        """Without `continuous`, waiting rows join when all are finished."""
        self._engine, self._start, self._end, self._max_rows = engine, start, end, max_rows
        self._continuous = continuous
        self._loop = Loop(engine, start=start, end=end, max_rows=max_rows)
        self._changed = threading.Condition()  # guards all that follows
        self._waiting: deque[Row] = deque()
        self._brief: deque[Row] = deque()  # rows that wait and are brief to encode
        self._ready: deque[tuple[Row, Floats]] = deque()
        self._searching: list[Row] = []
        self._closing = False
        # A search keeps its rows to itself, and goes on beside the loop.
        self._searches = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._encode, self._decode)]
        for thread in self._threads:
            thread.start()

    def submit(self, rows: Sequence[Row]) -> None:
        """All of them, or none: raises TooManyRows. Where none wait, any number may come."""
        searched = [row for row in rows if row.beams > 1]
        with self._changed:
            waiting = len(self._waiting) + len(self._brief) + len(self._searching)
            if waiting and waiting + len(rows) > _WAITING * self._max_rows:
                raise TooManyRows(f"{waiting} sentences wait already: ask again later")
            self._searching += searched
            for row in rows:
                if row.beams == 1:
                    (self._brief if self._engine.is_brief(row.source) else self._waiting).append(row)
            self._changed.notify_all()
        for row in searched:
            self._searches.submit(self._search, row)

    def close(self) -> None:
        """Stop; rows at work or waiting fail."""
        self._closing = True
        self._notify()
        for thread in self._threads:
            thread.join()
        self._loop.fail(_CLOSED)
        with self._changed:
            left = [*(row for row, _ in self._ready), *self._waiting, *self._brief, *self._searching]
        for row in left:
            row.finish("failed", _CLOSED)
        self._searches.shutdown()  # the one at work sees at its next step that its row is finished

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _encode(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._may_encode())
                if self._closing:
                    return
                rows = [self._waiting.popleft() for _ in range(self._may_encode())]
            memories = self._memories([row for row in rows if not row.gave_up()])
            with self._changed:
                self._ready += memories
                self._changed.notify_all()

    def _may_encode(self) -> int:
        ahead = _READY if self._continuous else self._max_rows
        room = max(self._loop.capacity, ahead) - len(self._ready)
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
                self._changed.wait_for(
                    lambda: self._closing or self._ready or self._brief or not self._loop.is_idle
                )
                if self._closing:
                    return
                may_join = self._loop.capacity if self._continuous or self._loop.is_idle else 0
                joining = [self._ready.popleft() for _ in range(min(may_join, len(self._ready)))]
                brief = [self._brief.popleft() for _ in range(min(may_join - len(joining), len(self._brief)))]
            joining += self._memories([row for row in brief if not row.gave_up()])
            capacity = self._loop.capacity
            try:
                self._loop.add_requests([row for row, _ in joining], [memory for _, memory in joining])
                if joining and self._waiting:
                    self._notify()  # there is space for memories again
                self._loop.step()
            except Exception as exc:  # of the engine: it is the answer of all rows at work
                self._loop.fail(exc)
            if self._waiting and self._loop.capacity > capacity - len(joining):
                self._notify()

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
