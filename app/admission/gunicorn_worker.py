"""gunicorn's threaded worker, but for heads (gunicorn_heads.py), refusals, and how connections and it end.

Where the app is full, what asks it to look at a photo is refused in the loop that accepts connections:
see app/admission/early_refusal.py.

A client that is still sending loses an answer whose connection is closed at once, so gunicorn waits for
it, in the thread that accepts everybody else's connections: there one client in no hurry keeps all of
them waiting. Here the request's own thread waits, and not many at a time.

When it is told to stop, gunicorn leaves connections that the kernel took in and nobody accepted yet to be
reset. Here they are accepted and answered, and none is taken in after that.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from app.admission import heads
from app.admission.gunicorn_heads import HeadsWithoutThreads

if TYPE_CHECKING:  # at its import, prometheus_client looks for the folder that gunicorn_conf makes later
    from app.admission.queue import Admission

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


class Worker(HeadsWithoutThreads):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._may_linger = threading.BoundedSemaphore(_LINGERING)
        self._listens = True
        # At most half of the threads, so that connections without one still find a free one.
        self._may_wait = threading.BoundedSemaphore(max(1, self.cfg.threads // 2))

    def answer(self, conn: Any) -> None:
        """Have a thread answer a request whose head is whole, or refuse it here."""
        admission: Admission = self.wsgi.extensions["admission"]
        head = conn.parser.unreader.buf.getvalue()
        conn.asks = admission.client(head, conn.peer)
        if admission.queue.is_busy(conn.asks):
            if not admission.queue.is_full(conn.asks):
                admission.expect(head, conn.sock, conn.asks)
            elif refusal := admission.early.refusal(head):
                said, request_bytes = refusal
                self._refuse(conn, said, request_bytes - len(head))
                return
        super().answer(conn)

    def _refuse(self, conn: Any, answer: bytes, left: int) -> None:
        try:
            if conn.sock.send(answer, socket.MSG_DONTWAIT) < len(answer) or left > len(_SINK):
                raise BlockingIOError
            while left > 0 and (read := conn.sock.recv_into(_SINK, left, _FORGET)):
                left -= read
        except BlockingIOError:  # it is still sending, or would keep the others waiting
            asked = self.tpool.submit(self._linger, conn)
            asked.add_done_callback(lambda _: self.method_queue.defer(self.drop, conn))
            return
        except OSError:
            pass
        self.drop(conn)

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
