"""Certificates of a CA of our own, and a way to a server that speaks TLS with them."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import subprocess
import threading
from pathlib import Path


class Certificates:
    """Made by `openssl` in `folder`: a CA, and what it signs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ca = folder / "ca.pem"
        self._openssl("req", "-x509", *self._new("ca"), "-days", "2", "-subj", "/CN=a CA", "-out", self.ca)

    def sign(self, name: str, san: str) -> tuple[Path, Path]:
        """A certificate and its key."""
        request, extension = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extension.write_text(f"subjectAltName={san}\n")
        self._openssl("req", *self._new(name), "-subj", f"/CN={name}", "-out", request)
        signed = self._folder / f"{name}.pem"
        by = ("-CA", self.ca, "-CAkey", self._folder / "ca.key", "-CAcreateserial", "-days", "2")
        self._openssl("x509", "-req", "-in", request, *by, "-extfile", extension, "-out", signed)
        return signed, self._folder / f"{name}.key"

    def _new(self, name: str) -> tuple[str | Path, ...]:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        return (*curve, "-keyout", self._folder / f"{name}.key")

    def _openssl(self, *arguments: str | Path) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)

    def context(self, name: str = "here", san: str = "IP:127.0.0.1,DNS:localhost") -> ssl.SSLContext:
        """Of a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.sign(name, san))
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context


class TlsDoor:
    """Listens with TLS on a port of loopback, passes on to `target` (host:port), and keeps what was asked."""

    def __init__(self, target: str, context: ssl.SSLContext) -> None:
        host, _, port = target.rpartition(":")
        self._target, self._context = (host, int(port)), context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ending, self._hanging_up = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked = bytearray()  # which grows without a copy for each piece

    def __enter__(self) -> TlsDoor:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake who accepts
        for thread in self._threads:
            thread.join(60)
        self._listener.close()

    def hang_up(self) -> None:
        """End all connections, as a restart would."""
        self._hanging_up.set()
        for thread in self._threads[1:]:
            thread.join(60)
        self._hanging_up.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # at the end
            while True:
                near, _ = self._listener.accept()
                near.settimeout(60)
                self._threads.append(threading.Thread(target=self._pass_on, args=[near]))
                self._threads[-1].start()

    def _pass_on(self, plain: socket.socket) -> None:
        """One thread for both ways, since no two may use a connection with TLS at a time."""
        with (
            plain,
            contextlib.suppress(OSError),
            self._context.wrap_socket(plain, server_side=True) as near,
            socket.create_connection(self._target, 60) as far,
        ):
            for connection in (near, far):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not self._ending.is_set() and not self._hanging_up.is_set():
                ready = [near] if near.pending() else select.select([near, far], [], [], 0.05)[0]
                for source, target in ((near, far), (far, near)):
                    if source in ready:
                        piece = source.recv(65_536)
                        if not piece:
                            return
                        self.asked += piece if source is near else b""
                        target.sendall(piece)
