"""A process with limits on CPU time, wall time and memory, for untrusted input: uploaded pictures.

It is not confined: code that took it over could read what its user may read, and reach the network. It
inherits only the variables that start Python, and no keys.

A library call that never returns cannot be interrupted within its process. So it runs in a process of its
own: a module of ours whose `main` is `serve(answer)`. The caller stops waiting and ends the process when its
time is over or its client has disconnected.

The process also ends by itself: signals that it does not handle end it at its limits of CPU and wall time,
and while it works when its parent closes the connection or is killed. A request for memory beyond the limit
fails inside the process and is answered as an error.

A question and an answer are each a small JSON object and bytes; neither is ever executed as code.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

Facts = Mapping[str, Any]
Answer = Callable[[Facts, bytes], tuple[Facts, bytes]]

# How often the caller checks whether it should go on waiting.
POLL_S: Final = 0.1
_MAX_FACTS: Final = 1 << 16
_MAX_BYTES: Final = 100_000_000
_ENDED_AT_A_LIMIT: Final = (-signal.SIGPROF, -signal.SIGALRM, -signal.SIGXCPU)
# Work on trusted input goes first when the CPUs are busy.
_NICENESS: Final = 5
_INHERITED: Final = ("PATH", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Limits:
    """The limits for each question."""

    cpu_s: float
    wall_s: float
    memory_bytes: int  # beyond the memory of the process at its start


class Refused(Exception):
    """The process refused its input; `code` is for programs, the message for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Ended(Exception):
    """The process ended without an answer: it reached a limit, was no longer needed, or crashed."""

    def __init__(self, *, too_slow: bool) -> None:
        super().__init__("it took too long" if too_slow else "its process crashed")
        self.too_slow = too_slow


class Sandbox:
    """A process that runs `module` and answers one question after another."""

    def __init__(self, module: str, limits: Limits) -> None:
        self._limits = limits
        self._link, child_link = Pipe()
        with child_link:
            self._program = subprocess.Popen(
                [sys.executable, "-P", "-m", module, json.dumps(asdict(limits))],
                stdin=child_link.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # warnings of C libraries
                # One malloc arena and one BLAS thread: the address space that they reserve counts as memory.
                env={name: os.environ[name] for name in _INHERITED if name in os.environ}
                | {"MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"},
            )

    @property
    def is_alive(self) -> bool:
        return self._program.poll() is None

    def request(
        self, facts: Facts, data: bytes = b"", is_over: Callable[[], bool] = lambda: False
    ) -> tuple[Facts, bytes]:
        """Return the answer; raise Refused, or Ended if the process is gone. Stop waiting when `is_over`."""
        end = time.monotonic() + self._limits.wall_s

        def receive(max_bytes: int) -> bytes:
            while not self._link.poll(POLL_S):
                if time.monotonic() > end or is_over():
                    raise TimeoutError
            return self._link.recv_bytes(max_bytes)

        try:
            _send(self._link, facts, data)
            reply: dict[str, Any] = dict(json.loads(receive(_MAX_FACTS)))
            body = receive(_MAX_BYTES)
        except (OSError, EOFError, ValueError, TypeError, RecursionError) as exc:
            status = self.end()
            raise Ended(too_slow=isinstance(exc, TimeoutError) or status in _ENDED_AT_A_LIMIT) from exc
        except BaseException:
            self.end()
            raise
        if "refused" in reply:
            raise Refused(str(reply["refused"]), body.decode(errors="replace"))
        return reply, body

    def end(self) -> int:
        """End the process and return its exit status."""
        self._link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._program.wait(POLL_S)  # the closed link ends it
        self._program.kill()
        return self._program.wait()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


# ---- in the process


def serve(answer: Answer) -> None:
    """Answer the questions that come through standard input, within the limits of the command line."""
    limits = Limits(**json.loads(sys.argv[1]))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGIO):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    max_bytes = pages * resource.getpagesize() + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    os.nice(_NICENESS)
    with Connection(os.dup(0)) as link, contextlib.suppress(EOFError):
        while True:
            facts, data = json.loads(link.recv_bytes()), link.recv_bytes()
            with _ended_by_the_kernel(link, limits):
                try:
                    reply: tuple[Facts, bytes] = answer(facts, data)
                except Refused as exc:
                    reply = {"refused": exc.code}, str(exc).encode(errors="replace")
            del data
            _send(link, *reply)


@contextlib.contextmanager
def _ended_by_the_kernel(link: Connection, limits: Limits) -> Iterator[None]:
    flags = fcntl.fcntl(link, fcntl.F_GETFL)
    # The parent sends nothing meanwhile, so SIGIO means that the connection was closed.
    fcntl.fcntl(link, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(link, fcntl.F_SETFL, flags | os.O_ASYNC)
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
    signal.setitimer(signal.ITIMER_REAL, limits.wall_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        fcntl.fcntl(link, fcntl.F_SETFL, flags)


def _send(link: Connection, facts: Facts, data: bytes) -> None:
    link.send_bytes(json.dumps(facts).encode())
    link.send_bytes(data)
