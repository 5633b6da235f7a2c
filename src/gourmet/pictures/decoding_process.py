"""A process that decodes pictures for another, one after another, and never for long: see `apart`.

    python -m gourmet.pictures.decoding_process        # its standard input is the connection

The kernel ends it: for a picture that takes too much of the processor or too long, by signals that nothing
here handles, and while it decodes also for a connection that was closed. Memory beyond its limit is refused,
which is an error of that picture's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from PIL import Image

from gourmet.pictures.apart import ANSWERED, ASKED, CPU_S, WALL_S
from gourmet.pictures.decode import PictureError, answer
from gourmet.runtime import malloc

# What a picture may take beside what the process has at its start: 300 MB and some reserve of malloc's.
_MEMORY_BYTES: Final = 400_000_000
# Others, who know their work to be harmless, go first where the processors are busy.
_NICENESS: Final = 5


def main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for ends in (signal.SIGPROF, signal.SIGALRM, signal.SIGIO):
        signal.signal(ends, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that started this
    malloc.use(malloc.WEB)
    Image.init()
    _limit()
    with socket.socket(fileno=os.dup(0)) as link:
        while head := _receive(link, ASKED.size):
            task, size, length = ASKED.unpack(head)
            data = _receive(link, length)
            with _ended_by_the_kernel(link):
                reply = _reply(task, size, data)
            del data
            for part in reply:
                link.sendall(part)


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for never in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):  # no picture of a visitor's on a disk
        resource.setrlimit(never, (0, 0))
    os.nice(_NICENESS)


@contextlib.contextmanager
def _ended_by_the_kernel(link: socket.socket) -> Iterator[None]:
    flags = fcntl.fcntl(link, fcntl.F_GETFL)
    # SIGIO says that something happened to the connection: nothing is sent meanwhile, so it was closed.
    fcntl.fcntl(link, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(link, fcntl.F_SETFL, flags | os.O_ASYNC)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    signal.setitimer(signal.ITIMER_REAL, WALL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        fcntl.fcntl(link, fcntl.F_SETFL, flags)


def _reply(task: int, size: int, data: bytes) -> tuple[bytes, bytes]:
    try:
        height, width, body = answer(task, data, size)
    except PictureError as exc:
        code, message = exc.code.encode(), str(exc).encode(errors="replace")
        return ANSWERED.pack(False, len(code), 0, len(code) + len(message)), code + message
    return ANSWERED.pack(True, height, width, len(body)), body


def _receive(link: socket.socket, length: int) -> bytes:
    """So many bytes, or none where the other side has ended."""
    parts = bytearray()
    while len(parts) < length:
        came = link.recv(min(length - len(parts), 1 << 20))
        if not came:
            return b""
        parts += came
    return bytes(parts)


if __name__ == "__main__":
    main()
