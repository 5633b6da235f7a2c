"""One client that does its worst to a web app on loopback, from an address of its own, until it is ended.

python one_client.py PORT SOURCE KIND…        # prints a line once it has begun with each of them
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

THEM: Final = "127.0.0.2"
_HEAD: Final = b"POST /api/v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_PAGE: Final = b"GET /static/style.css HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: identity\r\n\r\n"
_VALUES: Final = b'{"images": ["a"' + b',"a"' * 7_500_000 + b"]}"
# Those that were ended are opened again, so many a second.
_OPENED_A_S: Final = 400


def connect(port: int, source: str, *, buffer: int = 0) -> socket.socket:
    connection = socket.socket()
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(20)
    connection.bind((source, 0))
    connection.connect(("127.0.0.1", port))
    return connection


def keep(
    port: int, source: str, count: int, begin: bytes, feed: bytes = b"", *, reads: bool = True
) -> Callable[[], None]:
    """Have so many connections open, each with its beginning sent, and `feed` to each every second."""
    held: set[socket.socket] = set()

    def fill(most: int) -> None:
        for _ in range(min(most, count - len(held))):
            with contextlib.suppress(OSError):
                connection = connect(port, source, buffer=0 if reads else 4096)
                connection.setblocking(False)
                held.add(connection)
                connection.send(begin)

    def feed_all() -> None:
        poll = select.poll()
        by_number = {connection.fileno(): connection for connection in held}
        for number in by_number:
            poll.register(number, select.POLLIN if reads else select.POLLERR)
        ended = {number for number, _ in poll.poll(0)}
        for number, connection in by_number.items():
            try:
                if number in ended:
                    raise ConnectionResetError
                if feed:
                    connection.send(feed)
            except BlockingIOError:
                pass
            except OSError:
                held.discard(connection)
                connection.close()

    fill(count)

    def go_on() -> None:
        while True:
            time.sleep(1)
            feed_all()
            fill(_OPENED_A_S)

    return go_on


def heads(port: int, source: str) -> Callable[[], None]:
    return keep(port, source, 170, b"GET / HTTP/1.1\r\nHost", b"x")


def silence(port: int, source: str) -> Callable[[], None]:
    return keep(port, source, 1000, b"")


def bodies(port: int, source: str) -> Callable[[], None]:
    return keep(port, source, 60, _HEAD + b'Transfer-Encoding: chunked\r\n\r\n3\r\n{"i\r\n', b"1\r\n \r\n")


def unread(port: int, source: str) -> Callable[[], None]:
    """Answers that are asked for and not taken."""
    return keep(port, source, 170, _PAGE * 200, reads=False)


def values(port: int, source: str) -> Callable[[], None]:
    """Thirty megabytes of JSON, over and over."""
    whole = _HEAD + b"Content-Length: %d\r\n\r\n" % len(_VALUES) + _VALUES

    def go_on() -> None:
        while True:
            with contextlib.suppress(OSError), connect(port, source) as connection:
                connection.sendall(whole)
                connection.recv(65_536)
            time.sleep(0.5)

    return go_on


KINDS: Final = {each.__name__: each for each in (heads, silence, bodies, unread, values)}
# All but the one that has the app compute as many answers as its buffers hold.
CHEAP: Final = [kind for kind in KINDS if kind != "unread"]


@contextlib.contextmanager
def attacked(port: int, *kinds: str) -> Iterator[None]:
    """While a process of its own does that, from `THEM`."""
    command = [sys.executable, __file__, str(port), THEM, *kinds]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as attacker:
        try:
            assert attacker.stdout
            assert attacker.stdout.readline() == b"begun\n"
            yield
        finally:
            attacker.kill()


def main(port: int, source: str, kinds: list[str]) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    threads = [threading.Thread(target=KINDS[kind](port, source), daemon=True) for kind in kinds]
    for thread in threads:
        thread.start()
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    threads[0].join()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
