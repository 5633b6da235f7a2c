"""gunicorn's threaded worker, but for refusals, the end of a connection and its own, also a sudden one.

Where the app is full, what asks it to look at a photo is refused in the loop that accepts connections,
from the first bytes of the request: through a thread and Flask a refusal takes five times as much of the
CPU (docs/reliability.md), which the photos then lack.

A client that is still sending loses an answer whose connection is closed at once, so gunicorn waits for
it, in the thread that accepts everybody else's connections: there one client in no hurry keeps all of
them waiting. Here the request's own thread waits, and not many at a time.

When it is told to stop, gunicorn leaves connections that the kernel took in and nobody accepted yet to be
reset. Here they are accepted and answered, and none is taken in after that. Where it is killed, its survivor
answers for it.
"""

from __future__ import annotations

import contextlib
import functools
import select
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from gunicorn.workers.gthread import ThreadWorker

from app.one_write import OneWrite
from app.survivor import Survivor

if TYPE_CHECKING:  # at its import, prometheus_client looks for the folder that gunicorn_conf makes later
    from app.limits import Limits, Refusal

# How long somebody who is still sending is read from after the answer, so that it is read too, how
# much, and in how many threads at a time.
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 50_000_000
# Where that many linger already: long enough to see that a body was read to its end.
_LOOK_S: Final = 0.05
_LINGERING: Final = 4
_CHUNK_BYTES: Final = 65_536
# The most that is read of a request that is refused here; where MSG_TRUNC is known, nothing is copied.
_SINK: Final = bytearray(1_000_000)
_FORGET: Final = socket.MSG_DONTWAIT | socket.MSG_TRUNC
# A request that comes later after its connection has no survivor while it is at work.
_SOON_S: Final = 1.0
# A longer head is left to a thread.
_HEAD_BYTES: Final = 8192
# What is left of the time to stop when those who wait for their turn are sent away: for those at work.
_LAST_WORDS_S: Final = 2.0


def _count_told(number: int) -> None:
    """In the survivor, when it has told `number` of them: all this is imported then and not before."""
    from app.errors import Interrupted
    from app.metrics import Metrics

    Metrics().errors.labels(Interrupted.code).inc(number)


def _nothing_left(graceful: bool = False) -> None:
    """Closes a connection that is closed."""


class Worker(ThreadWorker):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._may_linger = threading.BoundedSemaphore(_LINGERING)
        self._listens = True
        self.survivor: Survivor | None = None

    def load_wsgi(self) -> None:
        # What is encrypted only this process can say.
        self.survivor = None if self.cfg.is_ssl else Survivor.start(self.sockets, self.log, _count_told)
        super().load_wsgi()
        if self.survivor:
            from app import last_words

            self.survivor.prepare(last_words.of(self.wsgi))

    def enqueue_req(self, conn: Any) -> None:
        """Have a thread answer what comes on `conn`, or refuse it here."""
        limits: Limits = self.wsgi.extensions["limits"]
        if not limits.is_busy or self.cfg.is_ssl:
            self._pass_on(conn)
            return
        try:
            head = conn.sock.recv(_HEAD_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._wait_for_data(conn)
            return
        except OSError:
            head = b""
        if not limits.is_full:
            limits.expect(head, conn.sock)
        elif refusal := limits.refusal(head):
            self._refuse(conn, refusal)
            return
        self._pass_on(conn)

    def _pass_on(self, conn: Any) -> None:
        if self.survivor:
            self.survivor.hold(conn.sock)
        super().enqueue_req(conn)

    def _wait_for_data(self, conn: Any) -> None:
        conn.sock.setblocking(False)
        conn.set_timeout()
        self.pending_conns.append(conn)
        self.poller.register(
            conn.sock, selectors.EVENT_READ, functools.partial(self.on_pending_socket_readable, conn)
        )

    def _refuse(self, conn: Any, refusal: Refusal) -> None:
        try:
            left = refusal.request_bytes
            if conn.sock.send(refusal.answer, socket.MSG_DONTWAIT) < len(refusal.answer) or left > len(_SINK):
                raise BlockingIOError
            while left > 0 and (read := conn.sock.recv_into(_SINK, left, _FORGET)):
                left -= read
        except BlockingIOError:  # it is still sending, or would keep the others waiting
            asked = self.tpool.submit(self._linger, conn)
            asked.add_done_callback(lambda done: self.method_queue.defer(self.finish_request, conn, done))
            return
        except OSError:
            pass
        self.nr_conns -= 1
        conn.close()

    def _linger(self, conn: Any) -> bool:
        """Read on for a while, so that a client that is still sending reads the answer."""
        if self._may_linger.acquire(blocking=False):
            end = time.monotonic() + _LINGER_S
            try:
                while (left_s := end - time.monotonic()) > 0:
                    conn.sock.settimeout(left_s)
                    if not conn.sock.recv(_CHUNK_BYTES):
                        break
            except OSError:
                pass
            finally:
                self._may_linger.release()
        conn.sock.close()
        conn.close = _nothing_left
        return False

    def handle(self, conn: Any) -> Any:
        """Answer one request; False where that was the last of its connection, which is closed then."""
        number = conn.sock.fileno()
        if self.survivor and self._has_come(conn):
            self.survivor.entrust(conn.sock)
        keeps = super().handle(conn)
        if self.survivor:
            self.survivor.withdraw(number)
        if keeps is False:
            self._finish(conn)
            with contextlib.suppress(OSError):
                conn.sock.shutdown(socket.SHUT_RDWR)
            conn.sock.close()
            conn.close = _nothing_left
        return keeps

    def handle_request(self, req: Any, conn: Any) -> Any:
        answer = conn.sock = OneWrite(conn.sock)
        try:
            return super().handle_request(req, conn)
        finally:
            conn.sock = answer.end()

    def _has_come(self, conn: Any) -> bool:
        """Wait a little for a request, as gunicorn does for longer and only where none came here."""
        return bool(conn.initialized or conn.data_ready or conn.wait_for_data(_SOON_S))

    def _keepalive_after(self, conn: Any, keepalive: bool) -> bool:
        return keepalive and self._finish(conn)

    def _finish(self, conn: Any) -> bool:
        """Read what a client still sends of a body that nobody wanted; whether that was all of it."""
        finish = getattr(conn.parser, "finish_body", None)
        if finish is None:
            return True
        lingers = self._may_linger.acquire(blocking=False)
        try:
            end = time.monotonic() + (_LINGER_S if lingers else _LOOK_S)
            return bool(finish(deadline=end, max_bytes=_LINGER_BYTES))
        except Exception:  # of a connection that is lost, which ends here either way
            return False
        finally:
            if lingers:
                self._may_linger.release()

    def set_accept_enabled(self, enabled: bool) -> None:
        super().set_accept_enabled(enabled and self.alive)
        if not self.alive and self._listens:
            self._listens = False
            self._stop_listening()

    def _stop_listening(self) -> None:
        for listener in self.sockets:
            while select.select([listener], [], [], 0)[0]:
                self.accept(listener)
            listener.close()
        limits: Limits = self.wsgi.extensions["limits"]
        last_words = threading.Timer(max(0.0, self.cfg.graceful_timeout - _LAST_WORDS_S), limits.close)
        last_words.daemon = True
        last_words.start()
