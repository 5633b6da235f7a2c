"""A way to Triton that can be cut and held up: TCP, passed on as it comes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Final

_PIECE: Final = 65_536
# Closing such a socket resets its connection.
_RESETS: Final = struct.pack("ii", 1, 0)


class Proxy:
    """Listens on a port of loopback and passes on to `target`, while `passes` is set."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.passes = threading.Event()
        self.passes.set()
        self.refuses = False
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake who accepts
        self._listener.close()
        self.cut()
        self.passes.set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Reset every connection that is open now."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
                    connection.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed, at the end
            while True:
                near, _ = self._listener.accept()
                if self.refuses:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(self._target, 5)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                with self._lock:
                    self._open |= {near, far}
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while piece := source.recv(_PIECE):
                self.passes.wait()
                target.sendall(piece)
        except OSError:
            pass
        finally:
            with self._lock:
                self._open -= {source, target}
            for connection in (source, target):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            source.close()
