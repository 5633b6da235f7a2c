"""A process beside each worker that answers for it where it is killed.

    worker ── a connection ───────────────▶ survivor   something is about to be read from it
           ── its number, and last words ─▶            it is read now
           ── its number ─────────────────▶            it was answered
           ── killed: the channel ends ───▶            says the last words where no answer was begun

Who is killed cannot say a last word, and the kernel resets every connection that only a process had that
is gone. The survivor has those on which an answer is owed as well. Whether one was begun, the kernel tells
by how much was written; what a request that was not read yet is to be told, it sees for itself. It is
forked before anything of the app is imported, which keeps it small, and sleeps but for three messages a
request.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Final, Self

HERE_THE_ID: Final = b"0" * 64

_NAME: Final = "web survivor"  # for ps; the kernel keeps fifteen characters
_NUMBER: Final = struct.Struct("!i")
_WRITTEN: Final = struct.Struct("!Q")
_TEMPLATES: Final = -1
_MESSAGE_BYTES: Final = 65_536
_HEAD_BYTES: Final = 8192
_SECOND: Final = struct.pack("@ll", 1, 0)
_REQUEST: Final = re.compile(rb"[A-Z]+ \S+ HTTP/1")
_REQUEST_ID: Final = re.compile(rb"\r\nx-request-id: *([A-Za-z0-9._:-]{1,64})\r\n", re.I)
_FOR_A_PROGRAM: Final = re.compile(rb"[A-Z]+ /api/|(?s:.*)\r\naccept: *application/json", re.I)
_FOR_A_BROWSER: Final = re.compile(rb"\r\naccept:[^\r]*text/html", re.I)
_BY_A_SCRIPT: Final = re.compile(rb"\r\nx-requested-with:", re.I)
# What the kernel knows of a connection: the bytes that the client has confirmed.
_CONFIRMED: Final = struct.Struct("@Q")
_CONFIRMED_AT: Final = 120
_INT: Final = struct.Struct("@i")
# Written before an answer, to clients that ask whether they may send; no answer is as short.
_CONTINUE: Final = len("HTTP/1.1 100 Continue\r\n\r\n")
# How long those who are still sending are read from, so that they read what was said: see gunicorn_worker.
_LINGER_S: Final = 2.0
# What is sent to all processes of a group; the survivor ends when its worker has.
_FOR_WORKERS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1)


@dataclass(frozen=True)
class LastWords:
    """An answer in the shapes of `app.web.render`, with HERE_THE_ID where an id has to be, without length."""

    json: bytes = b""
    page: bytes = b""
    fragment: bytes = b""

    def to(self, head: bytes) -> bytes:
        """What to answer to a request that begins so; nothing where that is none."""
        if not _REQUEST.match(head):
            return b""
        given = _REQUEST_ID.search(head)
        name = given[1] if given else os.urandom(16).hex().encode()
        before, _, body = self._shape(head).replace(HERE_THE_ID, name).partition(b"\r\n\r\n")
        return b"%b\r\nContent-Length: %d\r\n\r\n%b" % (before, len(body), body)

    def _shape(self, head: bytes) -> bytes:
        if _FOR_A_PROGRAM.match(head):
            return self.json
        return self.page if _FOR_A_BROWSER.search(head) and not _BY_A_SCRIPT.search(head) else self.fragment


class Survivor:
    """The worker's end of the channel; what threads send through it stays whole."""

    def __init__(self, channel: socket.socket, pid: int, log: logging.Logger) -> None:
        self._channel = channel
        self._pid = pid
        self._log = log
        self._owed: set[int] = set()
        self._last_words = LastWords()

    @classmethod
    def start(
        cls, listeners: Iterable[socket.socket], log: logging.Logger, count_told: Callable[[int], None]
    ) -> Self | None:
        """Fork it; None where sockets of this kind are unknown, which is not on Linux."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return None
        if pid := os.fork():
            theirs.close()
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SECOND)
            return cls(ours, pid, log)
        try:
            ours.close()
            for listener in listeners:
                listener.close()
            for number in _FOR_WORKERS:
                signal.signal(number, signal.SIG_IGN)
            signal.set_wakeup_fd(-1)  # it leads to the worker
            with contextlib.suppress(OSError):
                Path("/proc/self/comm").write_text(_NAME)
            if told := _outlive(theirs, log):
                count_told(told)
        finally:
            os._exit(0)

    def prepare(self, last_words: LastWords) -> None:
        """What it will have to say, as soon as that is known."""
        self._last_words = last_words
        self._tell(_NUMBER.pack(_TEMPLATES) + b"\0".join(astuple(last_words)))

    def hold(self, connection: socket.socket) -> None:
        """An answer is about to be owed on it."""
        number = connection.fileno()
        try:
            message = _NUMBER.pack(number) + _WRITTEN.pack(_written(connection))
        except OSError:  # of another kind than TCP
            return
        if self._tell(message, [number]):
            self._owed.add(number)

    def entrust(self, connection: socket.socket) -> None:
        """What waits to be read from it is read from now on."""
        number = connection.fileno()
        if number in self._owed and (answer := self._last_words.to(_unread(connection))):
            self._tell(_NUMBER.pack(number) + answer)

    def withdraw(self, number: int) -> None:
        """It was answered, or nothing was asked."""
        if number in self._owed:
            self._owed.discard(number)
            self._tell(_NUMBER.pack(number))

    def end(self) -> None:
        """At the end of a worker that owes nothing; of another the survivor has to see the end."""
        if not self._owed:
            # It has nothing to say, and one that hangs would not end by itself.
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _tell(self, message: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Whether it will hear that; where nobody does, requests are answered all the same."""
        try:
            socket.send_fds(self._channel, [message], descriptors)
        except BlockingIOError:  # it hangs, and with it every connection that it has
            os.kill(self._pid, signal.SIGKILL)
            self._channel.shutdown(socket.SHUT_RDWR)  # other threads may be waiting for room as well
            self._log.error("the survivor did not listen for a second and was ended; nobody stands in now")
        except OSError:
            pass
        else:
            return True
        return False


@dataclass
class _Owed:
    """A connection on which so much was written before."""

    connection: socket.socket
    written: int
    answer: bytes = b""

    def say(self, last_words: LastWords) -> bool:
        with contextlib.suppress(OSError):
            answer = self.answer or last_words.to(_unread(self.connection))
            if answer and _written(self.connection) - self.written <= _CONTINUE:
                self.connection.setblocking(False)
                self.connection.send(answer)
                self.connection.shutdown(socket.SHUT_WR)
                return True
        return False


def _outlive(channel: socket.socket, log: logging.Logger) -> int:
    """How many were told to come again, when all is said."""
    worker = os.getppid()
    last_words = LastWords()
    all_owed: dict[int, _Owed] = {}
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 1)
        if not message:
            break
        (number,) = _NUMBER.unpack_from(message)
        content = message[_NUMBER.size :]
        if number == _TEMPLATES:
            last_words = LastWords(*content.split(b"\0"))
        elif descriptors:
            all_owed[number] = _Owed(socket.socket(fileno=descriptors[0]), *_WRITTEN.unpack(content))
        elif owed := all_owed.pop(number, None):
            if content:
                all_owed[number] = replace(owed, answer=content)
            else:
                owed.connection.close()
    told = [owed.connection for owed in all_owed.values() if owed.say(last_words)]
    if told:
        log.warning("worker %d was killed; requests that were told to come again: %d", worker, len(told))
        _linger(told)
    return len(told)


def _written(connection: socket.socket) -> int:
    """How many bytes were ever written to it: those that were confirmed, and those that were not yet."""
    known = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _CONFIRMED_AT + _CONFIRMED.size)
    waiting = fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(_INT.size))
    return int(_CONFIRMED.unpack_from(known, _CONFIRMED_AT)[0] + _INT.unpack(waiting)[0])


def _unread(connection: socket.socket) -> bytes:
    try:
        return connection.recv(_HEAD_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return b""


def _linger(connections: Sequence[socket.socket]) -> None:
    """A connection that is closed while something is still sent is reset, and what was said on it lost."""
    sending = list(connections)
    end = time.monotonic() + _LINGER_S
    while sending and (left_s := end - time.monotonic()) > 0:
        for connection in select.select(sending, [], [], left_s)[0]:
            with contextlib.suppress(OSError):
                if connection.recv(_MESSAGE_BYTES):
                    continue
            sending.remove(connection)
