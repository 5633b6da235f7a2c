"""Child processes that end with their parent, and waiting for a state of a process until a deadline."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Final

from gourmet.errors import GourmetError

LineSink = Callable[[str], None]

_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    # The kernel ends the child even if we are killed with -9. It does so when the *thread* that started the
    # child ends, so children are started from the main thread.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """A process in a session of its own, so that Ctrl-C reaches us first and children stop in order."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        on_line: LineSink,
        keeps: Sequence[int] = (),
    ) -> None:
        """Start the process; it inherits the file descriptors `keeps`."""
        self._process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_end_with_parent,
            pass_fds=keeps,
        )
        self._pump = threading.Thread(target=self._read_output, args=(on_line,), daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_status(self) -> int | None:
        """Return None while the process runs, then its status; a negative one is the signal that ended it."""
        return self._process.poll()

    def is_answering(self, name: str, url: str) -> bool:
        """Return whether a starting process answers a GET of `url` yet; raise GourmetError if it ended."""
        if (status := self.exit_status()) is not None:
            raise GourmetError(f"{name} ended with status {status} while starting: see its log above")
        return http_ok(url)

    def stop(self, timeout_s: float) -> None:
        """Ask the process to end, kill it after `timeout_s`, and end its children too."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.reap_group()

    def reap_group(self) -> None:
        """End the processes that are left in its session, and read the rest of its output."""
        output = self._process.stdout
        if output is None or output.closed:
            return  # the number may be another session's by now
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._pump.join(timeout=2)
        output.close()

    def _read_output(self, on_line: LineSink) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # reap_group closes the output
            for line in self._process.stdout:
                on_line(line.rstrip("\n"))


def wait_until(ready: Callable[[], bool], timeout_s: float, what: str, poll_s: float = 0.05) -> float:
    """Return the seconds until `ready()` held; raise TimeoutError naming `what` if it never did."""
    started = time.monotonic()
    while not ready():
        if time.monotonic() - started > timeout_s:
            raise TimeoutError(f"{what} within {timeout_s:.0f} s")
        time.sleep(poll_s)
    return time.monotonic() - started


def http_ok(url: str, within_s: float = 2.0) -> bool:
    """Return whether a GET of `url` is answered with 200 in that time."""
    try:
        with urllib.request.urlopen(url, timeout=within_s) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):  # no server, or one that does not speak HTTP
        return False
