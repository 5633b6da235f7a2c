"""gunicorn's threaded worker without a thread for whoever has not sent the head of a request.

gunicorn has a thread wait for a connection's first bytes and read its head, however slowly that comes. Here
the loop that accepts connections reads heads too, without waiting, and a thread gets a connection whose head
is whole. Until then it has a deadline, and is one of a number that is bounded (crowd.py). Of the threads
nobody has more than their share (shares.py).

With certificates of its own (`--certfile`), gunicorn reads heads as it does by itself.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import resource
import selectors
import socket
import time
from typing import Any, Final

from gunicorn.http import get_parser
from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER, ThreadWorker

from app.admission import heads
from app.admission.crowd import Crowd
from app.admission.shares import Lines, Shares, client_of

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
# A worker waits for so long for each connection that it has before it takes another, so that one with fewer
# takes it: of six that came at once one worker took all in four of ten tries, and a fifth fewer photos were
# answered. Where it has more than some, chance is fair enough, and a flood would be let in slowly.
_LETS_OTHERS_TAKE_S: Final = 0.000_2
_SOME: Final = 10


class HeadsWithoutThreads(ThreadWorker):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_ssl = self.cfg.is_ssl
        self.worker_connections = self.cfg.worker_connections
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

    def accept(self, listener: Any) -> None:
        if self.cfg.workers > 1 and 0 < self.nr_conns < _SOME:
            time.sleep(_LETS_OTHERS_TAKE_S * self.nr_conns)
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
        """Have `answer` called once the head of what comes on `conn` is whole."""
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
            is_ready = heads.read(conn.sock, conn.parser.unreader.buf)
        except OSError:
            self.drop(conn)
            return
        if is_ready:
            self.answer(conn)
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
            self.drop(conn)
            return
        if is_ready:
            self._leave_crowd(conn)
            self.answer(conn)
        elif len(buffer.getvalue()) > heads.MOST_BYTES:
            self._leave_crowd(conn)
            self.drop(conn, heads.TOO_LONG)
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
        self.drop(conn)

    def drop(self, conn: Any, answer: bytes = b"") -> None:
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
            self.drop(conn, heads.TOO_SLOW if conn.parser.unreader.buf.getvalue() else b"")

    def _cap_keepalive(self, deadline: float) -> None:
        self._crowd.leave_by(deadline)

    def answer(self, conn: Any) -> None:
        """Have a thread answer what `conn.asks` sent, as soon as that client may have another."""
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
