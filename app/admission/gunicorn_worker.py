"""gunicorn's threaded worker, with threads for those alone whose request is there.

gunicorn has a thread read the head of a request, however slowly it comes. It lets a subclass bring the thread
pool, by `get_thread_pool`. To this one it submits a connection, which gets a thread when it has the head of a
request (it is looked at in the socket and left there) and comes back here after it; the future that gunicorn
waits for is done when the connection is. Without a thread a connection has a deadline (`keepalive`), and is
one of half of `worker_connections`. Of the threads no client has more than its share (queue.py).
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from gunicorn.glogging import Logger
from gunicorn.workers.gthread import ThreadWorker

from app.admission.queue import client_of
from gourmet.runtime.turns import Lines, Shares

_MAX_HEAD_BYTES: Final = 32_768
_CHECK_S: Final = 0.25
# A client that accepts nothing of its answer for this long is given up: it holds a thread.
_STALLED_MS: Final = 20_000
# A client that is still sending is read from after its answer, so that it reads that.
_LINGER_S: Final = 2.0
# The thread that answered waits for the connection's next request: the way through another thread costs as
# much as a small request (docs/performance.md).
_SOON_MS: Final = 20
# So many requests at most, so that connections that wait for a thread get one.
_IN_A_ROW: Final = 50
# For each connection that it has a worker waits, so that another accepts the next: of six at once one worker
# took all in four of ten tries, and a fifth fewer photos were answered. With some, chance is fair enough.
_LET_OTHERS_ACCEPT_S: Final = 0.000_2
_SOME: Final = 10
# Of the time to stop: first for requests on their way, last for those at work when others are sent away.
_STOPPING_S: Final = 2.0
_ANSWER: Final = b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TOO_SLOW: Final = _ANSWER % b"408 Request Timeout"
_TOO_LONG: Final = _ANSWER % b"431 Request Header Fields Too Large"


@dataclass(eq=False)
class ClientConnection:
    """`accepted` is gunicorn's object for it, and `handle` what answers one request of it."""

    accepted: Any
    handle: Callable[[Any], object]
    client: str
    number: int
    deadline: float = 0.0
    is_in_line: bool = False
    ended: Future[bool] = field(default_factory=Future)

    def head(self) -> bytes:
        """What has come of the next request; raise OSError where nothing more will."""
        read_ahead = bytes(self.accepted.parser.unreader.buf.getvalue()) if self.accepted.parser else b""
        if is_complete(read_ahead):
            return read_ahead
        arrived = b""
        with contextlib.suppress(BlockingIOError):
            arrived = self.accepted.sock.recv(_MAX_HEAD_BYTES + 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            if not arrived:
                raise ConnectionResetError
        head = read_ahead + arrived
        if not is_complete(head) and self.sees(select.POLLRDHUP):
            raise ConnectionResetError
        return head

    def sees(self, event: int, wait_ms: int = 0) -> bool:
        poll = select.poll()
        poll.register(self.accepted.sock, event)
        return bool(poll.poll(wait_ms))


def is_complete(head: bytes) -> bool:
    """Whether gunicorn's parser answers or refuses these bytes without reading on.

    It skips one empty line before the request, and refuses a line that ends without a carriage return.
    """
    start = 2 if head.startswith(b"\r\n") else 0
    return head.find(b"\r\n\r\n", start) >= 0 or head.count(b"\n") != head.count(b"\r\n")


class ConnectionPool(Executor):
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._pool = ThreadPoolExecutor(worker.cfg.threads)
        self._shares = Shares(worker.cfg.threads)
        # Those without a thread, by their descriptor, oldest first; and those of them whose request is there.
        self._waiting: dict[int, ClientConnection] = {}
        self._lines = Lines[ClientConnection]()
        self._lock = threading.RLock()
        self._arrivals = select.epoll()
        threading.Thread(target=self._watch, name="connections", daemon=True).start()

    def submit(self, handle: Callable[[Any], object], accepted: Any, /) -> Future[bool]:  # type: ignore[override]
        """Have the requests of a connection handled that gunicorn has accepted."""
        client = client_of(accepted.client[0] if accepted.client else "")
        connection = ClientConnection(accepted, handle, client, accepted.sock.fileno())
        accepted.data_ready = True  # when it is handled, and gunicorn need not look for it
        with contextlib.suppress(OSError):  # it is not TCP
            accepted.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STALLED_MS)
        with self._lock:
            if self._has_enough_threads():  # most requests come at once
                self._start(connection, is_here=False)
            else:
                self._expect_request(connection)
        if self._worker.cfg.workers > 1 and self._worker.nr_conns < _SOME:
            time.sleep(_LET_OTHERS_ACCEPT_S * self._worker.nr_conns)
        return connection.ended

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._waiting.clear()
        self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _expect_request(self, connection: ClientConnection) -> None:
        connection.deadline = time.monotonic() + self._worker.cfg.keepalive
        with self._lock:
            self._waiting[connection.number] = connection
            # Edge-triggered, since what has arrived stays in the socket.
            self._arrivals.register(connection.number, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
            self._look(connection)
            if len(self._waiting) > self._worker.worker_connections // 2:
                ((most, _),) = Counter(each.client for each in self._waiting.values()).most_common(1)
                self._end(next(each for each in self._waiting.values() if each.client == most))

    def _watch(self) -> None:
        """In a thread of its own: look at connections where something arrives, and now and then at all."""
        checked = 0.0
        while True:
            arrived = [number for number, _ in self._arrivals.poll(_CHECK_S)]
            if time.monotonic() > checked + _CHECK_S:
                checked, arrived = time.monotonic(), list(self._waiting)
            for number in arrived:
                with self._lock:
                    if connection := self._waiting.get(number):
                        self._look(connection)

    def _look(self, connection: ClientConnection) -> None:
        """Start or end a connection that waits, by what has come of its next request."""
        if connection.is_in_line:
            return
        now = time.monotonic()
        if not self._worker.alive:
            connection.deadline = min(connection.deadline, now + _STOPPING_S)
        try:
            head = connection.head()
        except OSError:
            self._end(connection)
            return
        if not is_complete(head):
            if len(head) > _MAX_HEAD_BYTES:
                self._end(connection, _TOO_LONG)
            elif now >= connection.deadline:
                self._end(connection, _TOO_SLOW if head else b"")
        elif self._shares.allows(connection.client):
            self._start(connection)
        else:
            connection.is_in_line = True
            self._lines.add(connection.client, connection)

    def _stop_waiting(self, connection: ClientConnection) -> None:
        with self._lock:
            if self._waiting.get(connection.number) is connection:
                del self._waiting[connection.number]
                if connection.is_in_line:
                    connection.is_in_line = not self._lines.remove(connection.client, connection)
                with contextlib.suppress(OSError):  # it was closed
                    self._arrivals.unregister(connection.number)

    def _start(self, connection: ClientConnection, *, is_here: bool = True) -> None:
        self._stop_waiting(connection)
        self._shares.take(connection.client)
        self._pool.submit(self._answer, connection, is_here)

    def _answer(self, connection: ClientConnection, is_here: bool) -> None:
        keeps = True
        try:
            for _ in range(_IN_A_ROW):
                if not (is_here or self._comes_soon(connection)):
                    break
                is_here = keeps = False
                keeps = connection.handle(connection.accepted) is True
                if not keeps:
                    _linger(connection.accepted.sock)
                    break
        finally:
            with self._lock:
                self._shares.give_back(connection.client)
                # Only as many as get a thread: a look at each would cost more the more of them wait.
                while found := self._lines.next(self._shares.allows):
                    found[1].is_in_line = False
                    self._start(found[1])
            (self._expect_request if keeps else self._end)(connection)

    def _has_enough_threads(self) -> bool:
        return bool(self._shares.free * 2 > self._worker.cfg.threads)

    def _comes_soon(self, connection: ClientConnection) -> bool:
        """Whether the next request is here, or in a moment where there are threads enough."""
        wait_ms = _SOON_MS if self._has_enough_threads() else 0
        with contextlib.suppress(OSError):
            return bool(self._worker.alive) and (
                is_complete(connection.head())
                or (connection.sees(select.POLLIN, wait_ms) and is_complete(connection.head()))
            )
        return False

    def _end(self, connection: ClientConnection, answer: bytes = b"") -> None:
        self._stop_waiting(connection)
        with contextlib.suppress(OSError):
            connection.accepted.sock.send(answer, socket.MSG_DONTWAIT)
            connection.accepted.sock.shutdown(socket.SHUT_RDWR)  # gunicorn closes it, and need not wait
        connection.ended.set_result(False)


def _linger(sock: socket.socket) -> None:
    end, sink = time.monotonic() + _LINGER_S, bytearray(65_536)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while (left_s := end - time.monotonic()) > 0:
            sock.settimeout(left_s)
            if not sock.recv_into(sink):
                break


class Worker(ThreadWorker):  # type: ignore[misc]
    def get_thread_pool(self) -> Executor:
        """Where gunicorn has certificates of its own (`--certfile`), heads cannot be looked at beforehand."""
        pool: Executor = super().get_thread_pool() if self.cfg.is_ssl else ConnectionPool(self)
        return pool

    def set_accept_enabled(self, enabled: bool) -> None:
        """Accept what the kernel took in before the worker stops: gunicorn leaves it to be reset."""
        super().set_accept_enabled(enabled)
        if self.alive:
            return
        while self.sockets:
            listener = self.sockets.pop()
            while select.select([listener], [], [], 0)[0]:
                self.accept(listener)
            listener.close()
        send_away_s = max(0.0, self.cfg.graceful_timeout - _STOPPING_S)
        sending_away = threading.Timer(send_away_s, self.wsgi.extensions["admission"].close)
        sending_away.daemon = True
        sending_away.start()


class LogWithoutQueries(Logger):  # type: ignore[misc]
    """A query may have a key in it, and so may a line that is not HTTP."""

    def atoms(self, resp: Any, req: Any, environ: Any, request_time: Any) -> dict[str, Any]:
        found: dict[str, Any] = super().atoms(resp, req, environ, request_time)
        path = environ["RAW_URI"].partition("?")[0]
        return found | {"r": f"{environ['REQUEST_METHOD']} {path} {environ['SERVER_PROTOCOL']}"}

    def warning(self, msg: str, *args: Any, **options: Any) -> None:
        """Of "Invalid request from ip=…: what is wrong: the line" without the line."""
        if msg.startswith("Invalid request from ip="):
            msg = ": ".join(msg.split(": ")[:2])
        super().warning(msg, *args, **options)

    def exception(self, msg: str, *args: Any, **options: Any) -> None:
        """Of "Error handling request %s" without the query."""
        super().exception(msg, *(str(each).partition("?")[0] for each in args), **options)
