"""A few sandboxed processes that decode the pictures that may be expensive (`gourmet.pictures.sandbox`).

They decode each picture whose header does not prove it harmless (`header.Header.is_harmless`). A process is
started when it is first needed, kept for the next picture, and replaced when it has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol

from gourmet.errors import GourmetError
from gourmet.pictures import header
from gourmet.pictures.errors import DecodersBusy, PictureError
from gourmet.pictures.sandbox import Ended, Facts, Limits, Refused, Sandbox
from gourmet.served.fair_queue import FairQueue
from gourmet.served.instances import available_cpus

# The most expensive honest picture, fifty million pixels in ten scans, takes a second on a CPU of 2024.
CPU_S: Final = 3.0
WALL_S: Final = 8.0
# A picture may take 300 MB; the rest is malloc's reserve.
LIMITS: Final = Limits(CPU_S, WALL_S, memory_bytes=400_000_000)
# How long a request waits for a decoder. An ordinary picture is decoded in less.
_MAX_WAIT_S: Final = 0.5


@dataclass(frozen=True)
class Client:
    """The client that waits for the pixels, and the queue of the server that decodes for it."""

    deadline: float = float("inf")
    is_cancelled: Callable[[], bool] = lambda: False
    name: str = ""
    queue: FairQueue | None = None

    def has_left(self) -> bool:
        return time.monotonic() > self.deadline or self.is_cancelled()


_client: Final[ContextVar[Client | None]] = ContextVar("client", default=None)


@contextlib.contextmanager
def decoding_for(
    seconds: float, is_cancelled: Callable[[], bool], name: str = "", queue: FairQueue | None = None
) -> Iterator[None]:
    """Decode pictures within the block for a client that waits at most `seconds`, unless it is cancelled."""
    token = _client.set(Client(time.monotonic() + seconds, is_cancelled, name, queue))
    try:
        yield
    finally:
        _client.reset(token)


def decoder_queue(places: int) -> FairQueue:
    """Return a queue in which a client never has more than half of the places: a picture can take seconds."""
    return FairQueue(places, max_per_client=(places + 1) // 2)


@contextlib.contextmanager
def decoder_place(queue: FairQueue, client: str) -> Iterator[None]:
    """Hold a place while an expensive picture is decoded, here or in another server; raise DecodersBusy."""
    end = time.monotonic() + _MAX_WAIT_S
    with _place_in_queue(queue, client, end):
        yield


@contextlib.contextmanager
def _place_in_queue(
    queue: FairQueue, client: str, until: float, has_left: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(queue.place(client, until, has_left))
        except TimeoutError:
            raise DecodersBusy("no decoder was free in time: send the picture again later") from None
        yield


class Caller(Protocol):
    """The client that waits for an answer, and its deadline."""

    client: str
    is_cancelled: Callable[[], bool]

    def left_s(self) -> float: ...


class Decoding:
    """Limit how many slow pictures are decoded at a time for one kind of model."""

    def __init__(self, max_sandboxed: int) -> None:
        self._queue = decoder_queue(max_sandboxed)

    def decode_in_app(self, caller: Caller) -> AbstractContextManager[None]:
        """Return a context manager for decoding in this process, or in one that it starts."""
        return decoding_for(caller.left_s(), caller.is_cancelled, caller.client, self._queue)

    def decode_in_model(self, picture: bytes | header.Header, caller: Caller) -> AbstractContextManager[None]:
        """Return a context manager for asking a model that decodes; a slow picture needs a place.

        The model decides on a picture whose header is refused here. If it fails, that refusal is raised.
        """
        try:
            head = picture if isinstance(picture, header.Header) else header.parse_header(picture)
        except PictureError as refusal:
            return _refused_unless_answered(refusal)
        return nullcontext() if head.is_harmless else decoder_place(self._queue, caller.client)


@contextlib.contextmanager
def _refused_unless_answered(refusal: PictureError) -> Iterator[None]:
    try:
        yield
    except GourmetError as exc:
        raise refusal from exc


class Decoders:
    """At most `processes` processes, shared by any number of threads."""

    def __init__(self, processes: int) -> None:
        self._queue = decoder_queue(processes)
        self._idle: list[Sandbox] = []  # the process used last is used next

    def decode(self, facts: Facts, data: bytes) -> tuple[Facts, bytes]:
        """Return the answer of a process about a picture; raise PictureError or DecodersBusy."""
        client = _client.get() or Client()
        with contextlib.ExitStack() as held:
            if client.queue:
                held.enter_context(decoder_place(client.queue, client.name))
            held.enter_context(
                _place_in_queue(self._queue, client.name, client.deadline, client.is_cancelled)
            )
            if client.has_left():
                raise DecodersBusy("the client disconnected, or its time is over")
            return self._ask_sandbox(facts, data, client)

    def _ask_sandbox(self, facts: Facts, data: bytes, client: Client) -> tuple[Facts, bytes]:
        process = self._take_sandbox()
        try:
            answer = process.request(facts, data, client.has_left)
        except Refused as exc:
            self._idle.append(process)
            raise PictureError(exc.code, str(exc)) from exc
        except Ended as exc:
            if exc.too_slow:
                raise PictureError(
                    "too_slow", "decoding this picture took too long: save it again as an ordinary JPEG"
                ) from exc
            raise PictureError(
                "broken_picture",
                "this picture cannot be decoded: its decoder crashed. Save it again as a JPEG",
            ) from exc
        self._idle.append(process)
        return answer

    def _take_sandbox(self) -> Sandbox:
        while True:
            try:
                process = self._idle.pop()
            except IndexError:  # checked this way, since other threads take from the list too
                return Sandbox("gourmet.pictures.decode", LIMITS)
            if process.is_alive:
                return process
            process.end()

    def close(self) -> None:
        """End the idle processes."""
        while self._idle:
            self._idle.pop().end()


decoders = Decoders(available_cpus())


def _after_fork() -> None:
    global decoders  # the parent's processes answer the parent only
    decoders = Decoders(available_cpus())


os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: decoders.close())
