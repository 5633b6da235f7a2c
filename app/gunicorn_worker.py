"""gunicorn's threaded worker, but for the end of a connection and its own.

A client that is still sending loses an answer whose connection is closed at once, so gunicorn waits for
it, in the thread that accepts everybody else's connections: there one client in no hurry keeps all of
them waiting. Here the request's own thread waits, and not many at a time.

When it is told to stop, gunicorn leaves connections that the kernel took in and nobody accepted yet to be
reset. Here they are accepted and answered, and none is taken in after that.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import Any, Final

from gunicorn.workers.gthread import ThreadWorker

# How long somebody who is still sending is read from after the answer, so that it is read too, how
# much, and in how many threads at a time.
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 50_000_000
_LINGERING: Final = 4
# What is left of the time to stop when those who wait for their turn are sent away.
_LAST_WORDS_S: Final = 0.8


class Worker(ThreadWorker):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._may_linger = threading.BoundedSemaphore(_LINGERING)
        self._listens = True

    def handle(self, conn: Any) -> Any:
        """Answer one request; False where that was the last of its connection, which is closed then."""
        keeps = super().handle(conn)
        if keeps is False:
            self._finish(conn)
            with contextlib.suppress(OSError):
                conn.sock.shutdown(socket.SHUT_RDWR)
            conn.sock.close()
            conn.close = lambda graceful=False: None
        return keeps

    def _keepalive_after(self, conn: Any, keepalive: bool) -> bool:
        return keepalive and self._finish(conn)

    def _finish(self, conn: Any) -> bool:
        """Read what a client still sends of a body that nobody wanted; whether that was all of it."""
        finish = getattr(conn.parser, "finish_body", None)
        if finish is None:
            return True
        lingers = self._may_linger.acquire(blocking=False)
        try:
            end = time.monotonic() + (_LINGER_S if lingers else 0.0)
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
        limits = self.wsgi.extensions["limits"]
        last_words = threading.Timer(max(0.0, self.cfg.graceful_timeout - _LAST_WORDS_S), limits.close)
        last_words.daemon = True
        last_words.start()
