"""gunicorn's threaded worker, but for heads of requests, refusals, the end of a connection and its own.

gunicorn has a thread wait for a connection's first bytes and read its head, however slowly that comes. Here
the loop that accepts connections reads heads too, without waiting, and a thread gets a connection whose head
is whole. Until then it has a deadline, and is one of a number that is bounded (crowd.py). Of the threads
nobody has more than their share (shares.py).

Where the app is full, what asks it to look at a photo is refused in that loop: see early_refusal.py.

A client that is still sending loses an answer whose connection is closed at once, so gunicorn waits for
it, in the thread that accepts everybody else's connections: there one client in no hurry keeps all of
them waiting. Here the request's own thread waits, and not many at a time.

When it is told to stop, gunicorn leaves connections that the kernel took in and nobody accepted yet to be
reset. Here they are accepted and answered, and none is taken in after that.

With certificates of its own (`--certfile`), gunicorn reads heads as it does by itself.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import resource
import select
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from gunicorn.http import get_parser
from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER, ThreadWorker

from app.admission import heads
from app.admission.crowd import Crowd
from app.admission.shares import Lines, Shares, client_of

if TYPE_CHECKING:  # at its import, prometheus_client looks for the folder that gunicorn_conf makes later
    from app.admission.queue import Admission

# From a connection's first byte, or its beginning, until the head of its request is whole.
HEAD_S: Final = 10.0
# So late it may be noticed.
_LOOKS_EVERY_S: Final = 0.25
# Until when a connection may stay that waits for a thread.
_IN_LINE: Final = math.inf
# A client that takes nothing of its answer for so long is given up: it holds a thread.
_TAKES_NOTHING_MS: Final = 20_000
# Files that a worker opens beside its connections: one to Triton for a thread, logs, metrics, libraries.
_OTHER_FILES: Final = 128
# Connections that a worker has for all that; where there are files for fewer, it runs out of them.
_FEW: Final = 16
# How long somebody who is still sending is read from after the answer, so that it is read too, how
# much, and in how many threads at a time.
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 50_000_000
# Where that many linger already: long enough to see that a body was read to its end.
_LOOK_S: Final = 0.05
_LINGERING: Final = 4
_CHUNK_BYTES: Final = 65_536
# For so long the thread that answered waits for the next request of its connection: the way through the loop
# and another thread costs as much as a small request (docs/performance.md).
_SOON_MS: Final = 20
# So often at most, so that connections that wait for a thread get one.
_IN_A_ROW: Final = 50
# The most that is read of a request that is refused here; where MSG_TRUNC is known, nothing is copied.
_SINK: Final = bytearray(1_000_000)
_FORGET: Final = socket.MSG_DONTWAIT | socket.MSG_TRUNC
# What is left of the time to stop when those who wait for their turn are sent away: for those at work.
_FOR_THOSE_AT_WORK_S: Final = 2.0


def _nothing_left(graceful: bool = False) -> None:
    """Closes a connection that is closed."""


class Worker(ThreadWorker):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._may_linger = threading.BoundedSemaphore(_LINGERING)
        self._listens = True
        self._is_ssl = self.cfg.is_ssl
        # At most half of the threads, so that connections without one still find a free one.
        self._may_wait = threading.BoundedSemaphore(max(1, self.cfg.threads // 2))
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files != resource.RLIM_INFINITY:
            most = max(_FEW, files - self.cfg.threads - _OTHER_FILES)
            self.worker_connections = min(self.worker_connections, most)
        # Those that no thread is at work on; with a whole head they are in a line for one as well.
        self._most_in_crowd = self.worker_connections // 2
        self._crowd = Crowd[Any]()
        self._lines = Lines[Any]()
        self._threads = Shares(self.cfg.threads)
        self._looks_at = 0.0

    # A connection until its head is whole

    def accept(self, listener: Any) -> None:
        try:
            super().accept(listener)
        except OSError as exc:
            if exc.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if len(self._crowd):
                self._drop_oldest()
            else:
                time.sleep(_LOOKS_EVERY_S)  # it waits in the kernel, and would be tried again at once

    def enqueue_req(self, conn: Any) -> None:
        """Have a thread answer what comes on `conn` once its head is whole, or refuse it here."""
        if self._is_ssl:
            super().enqueue_req(conn)
            return
        if not conn.initialized:
            conn.initialized = True
            conn.parser = get_parser(conn.cfg, conn.sock, conn.client)
            conn.peer = client_of(conn.client[0] if conn.client else "")
            with contextlib.suppress(OSError):  # not TCP
                conn.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TAKES_NOTHING_MS)
            conn.timeout = time.monotonic() + HEAD_S
        try:
            if heads.read(conn.sock, conn.parser.unreader.buf):
                self._admit(conn)
                return
        except OSError:
            self._drop(conn)
            return
        if conn.parser.unreader.buf.getvalue():
            conn.timeout = time.monotonic() + HEAD_S
        conn.sock.setblocking(False)
        self.poller.register(conn.sock, selectors.EVENT_READ, functools.partial(self._on_readable, conn))
        self._join_crowd(conn)

    def _on_readable(self, conn: Any, _: Any) -> None:
        if conn.sock.fileno() < 0:  # dropped since the poller was asked
            return
        buffer = conn.parser.unreader.buf
        has_begun = bool(buffer.getvalue())
        try:
            is_ready = heads.read(conn.sock, buffer)
        except OSError:
            self._leave_crowd(conn)
            self._drop(conn)
            return
        if is_ready:
            self._leave_crowd(conn)
            self._admit(conn)
        elif len(buffer.getvalue()) > heads.MOST_BYTES:
            self._leave_crowd(conn)
            self._drop(conn, heads.TOO_LONG)
        elif not has_begun:
            self._crowd.set_until(conn.peer, conn, time.monotonic() + HEAD_S)

    def _join_crowd(self, conn: Any) -> None:
        self._crowd.add(conn.peer, conn, conn.timeout)
        if not self.alive:
            self._cap_keepalive(time.monotonic() + STOP_KEEPALIVE_LINGER)
        if len(self._crowd) > self._most_in_crowd:
            self._drop_oldest()

    def _leave_crowd(self, conn: Any) -> None:
        self._crowd.remove(conn.peer, conn)
        if conn.timeout == _IN_LINE:
            self._lines.remove(conn.asks, conn)
        else:
            self.poller.unregister(conn.sock)

    def _drop_oldest(self) -> None:
        conn = self._crowd.oldest()
        self._leave_crowd(conn)
        self._drop(conn)

    def _drop(self, conn: Any, answer: bytes = b"") -> None:
        self.nr_conns -= 1
        with contextlib.suppress(OSError):
            conn.sock.send(answer, socket.MSG_DONTWAIT)
        conn.close()

    def murder_keepalived(self, force: bool = False) -> None:
        """End the connections that are late; when it ends itself, all of them."""
        now = time.monotonic()
        if now < self._looks_at and not force:
            return
        self._looks_at = now + _LOOKS_EVERY_S
        for conn in self._crowd.late(math.inf if force else now):
            self._leave_crowd(conn)
            self._drop(conn, heads.TOO_SLOW if conn.parser.unreader.buf.getvalue() else b"")

    def _cap_keepalive(self, deadline: float) -> None:
        self._crowd.leave_by(deadline)

    # A request, once its head is whole

    def _admit(self, conn: Any) -> None:
        """Have the next free thread answer it that its client may have, or refuse it."""
        admission: Admission = self.wsgi.extensions["admission"]
        head = conn.parser.unreader.buf.getvalue()
        conn.asks = admission.client(head, conn.peer)
        if admission.queue.is_busy(conn.asks):
            if not admission.queue.is_full(conn.asks):
                admission.expect(head, conn.sock, conn.asks)
            elif refusal := admission.early.refusal(head):
                answer, request_bytes = refusal
                self._refuse(conn, answer, request_bytes - len(head))
                return
        if self._threads.allows(conn.asks):
            self._threads.take(conn.asks)
            super().enqueue_req(conn)
        else:
            conn.timeout = _IN_LINE
            self._lines.add(conn.asks, conn)
            self._join_crowd(conn)

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Have what waits for that thread take it, and the connection wait for its next request."""
        if self._is_ssl:
            super().finish_request(conn, fs)
            return
        self._threads.give_back(conn.asks)
        while found := self._lines.next(self._threads.allows):
            client, waiting = found
            self._crowd.remove(waiting.peer, waiting)
            self._threads.take(client)
            super().enqueue_req(waiting)
        if fs.cancelled() or fs.exception() or not fs.result():
            self.nr_conns -= 1
            conn.close()
        else:
            conn.set_timeout()
            self.enqueue_req(conn)

    def _refuse(self, conn: Any, answer: bytes, left: int) -> None:
        try:
            if conn.sock.send(answer, socket.MSG_DONTWAIT) < len(answer) or left > len(_SINK):
                raise BlockingIOError
            while left > 0 and (read := conn.sock.recv_into(_SINK, left, _FORGET)):
                left -= read
        except BlockingIOError:  # it is still sending, or would keep the others waiting
            asked = self.tpool.submit(self._linger, conn)
            asked.add_done_callback(lambda _: self.method_queue.defer(self._drop, conn))
            return
        except OSError:
            pass
        self._drop(conn)

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
        """Answer what comes on a connection; False where that was the last of it, which is closed then."""
        for _ in range(_IN_A_ROW):
            keeps = super().handle(conn)
            if keeps is not True or not self._comes_soon(conn):
                break
        if keeps is False:
            self._finish(conn)
            with contextlib.suppress(OSError):
                conn.sock.shutdown(socket.SHUT_RDWR)
            conn.sock.close()
            conn.close = _nothing_left
        return keeps

    def _comes_soon(self, conn: Any) -> bool:
        """Whether the next request is here in a moment, and is not one that the loop may have to refuse."""
        admission: Admission = self.wsgi.extensions["admission"]
        if self._is_ssl or not self.alive or conn.parser.unreader.buf.getvalue():
            return False
        if admission.queue.is_busy(conn.asks):
            return False
        if not self._may_wait.acquire(blocking=False):
            return False
        try:
            coming = select.poll()
            coming.register(conn.sock, select.POLLIN)
            if not coming.poll(_SOON_MS) or admission.queue.is_busy(conn.asks):
                return False
            return heads.read(conn.sock, conn.parser.unreader.buf)
        except OSError:
            return False
        finally:
            self._may_wait.release()

    def handle_request(self, req: Any, conn: Any) -> Any:
        try:
            return super().handle_request(req, conn)
        except TimeoutError as exc:  # it took nothing: for gunicorn's log, it went away
            raise ConnectionResetError(errno.ECONNRESET, str(exc)) from exc

    def _keepalive_after(self, conn: Any, keepalive: bool) -> bool:
        return keepalive and self._finish(conn)

    def _finish(self, conn: Any) -> bool:
        """Read what a client still sends of a body that nobody wanted; whether that was all of it."""
        message = getattr(conn.parser, "mesg", None)
        # Looked at first, since gunicorn asks the socket even where nothing is left.
        if message is None or getattr(message.body.reader, "length", None) == 0:
            return True
        finish = conn.parser.finish_body
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
        admission: Admission = self.wsgi.extensions["admission"]
        send_away_s = max(0.0, self.cfg.graceful_timeout - _FOR_THOSE_AT_WORK_S)
        sending_away = threading.Timer(send_away_s, admission.queue.close)
        sending_away.daemon = True
        sending_away.start()
