"""A generation room: rows come in from any thread; encoding and the loop each have a thread.

    room = GenerationRoom(engine, start=1, end=0, max_rows=16)
    room.submit([Row(source, max_tokens=128, on_tokens=print)])

A source that has to be prepared first, such as a picture that takes seconds to decode, gets a thread that
others do not wait for. A long encode delays only the rows that it is for, since the loop goes on
meanwhile, and goes first where both want one processor. A brief one is done by the loop's thread, since
handing it over would cost a step. An encode that fails fails only its own rows. Rows are notified by the
thread that did the work.

Each client has a line of rows that wait, and the lines are served in turn. Rows join in the order in which
they were let in: while the first needs more places than are free, those behind it wait, since four free
places never come together where others take each of them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, Final

from gourmet.errors import GourmetError
from gourmet.runtime.decoding.engine import Engine, Floats
from gourmet.runtime.decoding.loop import Loop, Row, TooManyRows

# With "off", waiting rows join when all are finished: to see what joining between two steps is good for.
CONTINUOUS_PARAMETER: Final = "continuous_batching"
# While so many rows of a client wait, for each that can be at work, no more of it come: with 16 at work five
# calls of 400 sentences, since a call that is refused costs the web app as much as one that is answered.
_WAITING: Final = 128
# Memories that are ready while the loop is full: the next to join need not wait, and few take space.
_READY: Final = 2
# Sources that are prepared at a time; there are no more threads for them.
_PREPARED: Final = 32
# Brief ones that are encoded between two steps while rows of several clients wait: a dozen are not brief.
_BRIEF_BESIDE: Final = 1
# The thread that encodes has a lower priority: with that of the loop, it keeps the processor for a slice
# of the scheduler, and the loop waits for ten steps (4.6 ms beside 0.6 on two busy cores).
_NICE: Final = 5
_CLOSED: Final = GourmetError("the model is being unloaded")


class Lines:
    """A line of waiting rows for each client; next is the client whose last turn is the longest ago."""

    def __init__(self) -> None:
        self._of: dict[str, deque[Row]] = {}  # in the order of their turns

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def __iter__(self) -> Iterator[Row]:
        return chain.from_iterable(self._of.values())

    @property
    def clients(self) -> Collection[str]:
        return self._of.keys()

    def of(self, client: str) -> int:
        return len(self._of.get(client, ()))

    def add(self, row: Row) -> None:
        self._of.setdefault(row.client, deque()).append(row)

    def next(self) -> Row:
        client = next(iter(self._of))
        line = self._of.pop(client)
        row = line.popleft()
        if line:
            self._of[client] = line
        return row


class GenerationRoom:
    def __init__(
        self, engine: Engine, *, start: int, end: int, max_rows: int, continuous: bool = True
    ) -> None:
        """Without `continuous`, waiting rows join when all are finished."""
        self._engine, self._max_rows = engine, max_rows
        self._continuous = continuous
        self._loop = Loop(engine, start=start, end=end, max_rows=max_rows)
        self._changed = threading.Condition()  # guards all that follows
        self._waiting, self._brief = Lines(), Lines()
        self._preparing: set[Row] = set()
        self._preparers = ThreadPoolExecutor(_PREPARED, thread_name_prefix="prepare")
        self._encoding: Sequence[Row] = ()
        # The next to join, with their memories; a brief one gets its own when it joins.
        self._ready: deque[tuple[Row, Floats | None]] = deque()
        self._closing = False
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._encode, self._decode)]
        for thread in self._threads:
            thread.start()

    def submit(self, rows: Sequence[Row]) -> None:
        """Raise TooManyRows, with all of them left out, where more have to be prepared than can be, and
        ValueError where one has more beams than there are places.
        """
        self._loop.check(rows)
        unprepared = {row for row in rows if row.prepare}
        with self._changed:
            if unprepared and len(self._preparing) + len(unprepared) > _PREPARED:
                raise TooManyRows(f"{len(self._preparing)} others are being prepared: ask again later")
            self._preparing |= unprepared
            for row in rows:
                if row.prepare:
                    self._preparers.submit(self._prepare, row, row.prepare)
                else:
                    self._line_up(row)
            self._changed.notify_all()

    def _line_up(self, row: Row) -> None:
        line = self._brief if self._engine.is_brief(row.source) else self._waiting
        line.add(row)

    def _prepare(self, row: Row, prepare: Callable[[Row], Any]) -> None:
        try:
            row.source = prepare(row)
        except Exception as exc:  # it is the answer of this row
            if not row.gave_up():
                row.finish("failed", exc)
        with self._changed:
            self._preparing.discard(row)
            if self._closing and not row.finished:
                row.finish("failed", _CLOSED)
            if not row.finished:
                self._line_up(row)
            self._changed.notify_all()

    def check(self, client: str) -> None:
        """Raise TooManyRows where too many of its rows wait for more of them to come."""
        with self._changed:
            waiting = sum(line.of(client) for line in self._lines)
        if waiting >= _WAITING * self._max_rows:
            raise TooManyRows(f"{waiting:,} sentences wait already: ask again later")

    def figures(self) -> dict[str, float]:
        """How many wait and are at work now, and sums since the start."""
        with self._changed:
            waiting = len(self._preparing) + sum(map(len, self._lines))
            at_work = sum(map(len, (self._loop.rows, self._encoding, self._ready)))
        loop = self._loop
        sums = {"tokens_total": loop.tokens, "begun_total": loop.begun}
        first = loop.first_token_s
        return {"waiting": waiting, "at_work": at_work, **sums, "first_token_seconds_total": first}

    @property
    def _lines(self) -> Sequence[Lines]:
        return self._waiting, self._brief

    def close(self) -> None:
        """Stop; rows at work or waiting fail."""
        self._closing = True
        self._notify()
        for thread in self._threads:
            thread.join()
        self._preparers.shutdown(wait=False, cancel_futures=True)
        self._loop.fail(_CLOSED)
        for row in chain((row for row, _ in self._ready), list(self._preparing), *self._lines):
            row.finish("failed", _CLOSED)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _encode(self) -> None:
        with contextlib.suppress(OSError):  # of this thread alone: Linux counts them as processes
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
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
        """How many rows; a search counts as its beams, and may be more than that."""
        if not self._waiting:
            return 0
        ahead = _READY if self._continuous else self._max_rows
        free = max(self._loop.capacity, ahead) - _places(row for row, _ in self._ready)
        return max(0, min(free, self._engine.max_sources))

    def _next(self, lines: Lines, most: int) -> list[Row]:
        """Those whose turn it is, until they have `most` places or more; what nobody waits for any more is
        finished on the way.
        """
        found: list[Row] = []
        while _places(found) < most and lines:
            row = lines.next()
            if not row.gave_up():
                found.append(row)
        return found

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
                let_in = self._let_in()
            joining = [(row, memory) for row, memory in let_in if memory is not None]
            joining += self._memories([row for row, memory in let_in if memory is None])
            capacity = self._loop.capacity
            try:
                self._loop.add_requests([row for row, _ in joining], [memory for _, memory in joining])
                if joining and self._waiting:
                    self._notify()  # there is space for memories again
                self._loop.step()
            except Exception as exc:  # of the engine: it is the answer of all rows at work
                self._loop.fail(exc)
            if self._waiting and self._loop.capacity > capacity - _places(row for row, _ in joining):
                self._notify()

    def _let_in(self) -> list[tuple[Row, Floats | None]]:
        """Those that join now. There is a brief one among the next as long as any wait."""
        free = self._loop.capacity if self._continuous or self._loop.is_idle else 0
        several = len({row.client for row in self._loop.rows}.union(self._brief.clients)) > 1
        found: list[tuple[Row, Floats | None]] = []
        brief = _BRIEF_BESIDE if several else free
        while True:
            if brief and self._brief and all(memory is not None for _, memory in self._ready):
                self._ready.extend((row, None) for row in self._next(self._brief, 1))
            if not self._ready:
                return found
            row, memory = self._ready[0]
            if row.beams > free and not row.gave_up():
                return found
            # The loop leaves out those that gave up; they were waited for all the same.
            free -= row.beams
            brief -= memory is None
            found.append((row, memory))
            self._ready.popleft()


def _places(rows: Iterable[Row]) -> int:
    return sum(row.beams for row in rows)


_EVERY_S: Final = 1.0
_GAUGES: Final = {"waiting": "Rows that wait for their turn", "at_work": "Rows that are being answered"}
_COUNTERS: Final = {
    "tokens_total": "Tokens of answers; of a search, its steps",
    "begun_total": "Rows that have their first token, without searches",
    "first_token_seconds_total": "Sum of the times from a row's arrival to its first token",
}


class RoomFigures:
    """What a room does, as metrics of Triton's own, which counts a request's queue and compute until it is
    handed to the model: at once. Each change costs a message to Triton: they are sent once a second.
    """

    def __init__(self, pb_utils: Any, room: GenerationRoom, labels: Mapping[str, str]) -> None:
        """`labels` are those of no other process: Triton would take the metric of both away with either."""
        family = pb_utils.MetricFamily
        kinds = {family.GAUGE: _GAUGES, family.COUNTER: _COUNTERS}
        self._room = room
        # A metric goes with its family.
        self._families = {
            name: family(name=f"generation_{name}", description=text, kind=kind)
            for kind, texts in kinds.items()
            for name, text in texts.items()
        }
        self._metrics = {name: each.Metric(labels=dict(labels)) for name, each in self._families.items()}
        self._told = dict.fromkeys(self._metrics, 0.0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="figures", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._metrics.clear()
        self._families.clear()

    def _tell(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            for name, value in self._room.figures().items():
                if grew := value - self._told[name]:
                    self._metrics[name].increment(grew)
                    self._told[name] = value
