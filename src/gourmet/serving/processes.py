"""Child processes that cannot outlive us, whose output is readable and whose end has a deadline."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from gourmet.errors import GourmetError
from gourmet.serving.waiting import http_ok

LineSink = Callable[[str], None]

_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    # Even where we are killed with -9, the kernel tells the child to end. It does so when the *thread*
    # that started the child ends, which is why children are started from the main thread.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """A process in a session of its own, so that Ctrl-C in the terminal is ours to pass on in order."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        on_line: LineSink,
        keeps: Sequence[int] = (),
    ) -> None:
        """`keeps`: descriptors that it inherits."""
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
        self._pump = threading.Thread(target=self._read, args=(on_line,), daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_status(self) -> int | None:
        """None while it runs, then its status; a negative one is the signal that ended it."""
        return self._process.poll()

    def answers(self, name: str, url: str) -> bool:
        """Whether a starting process answers a GET of `url` yet; raise if it ended."""
        if (status := self.exit_status()) is not None:
            raise GourmetError(f"{name} ended with status {status} while starting: its log above says why")
        return http_ok(url)

    def stop(self, timeout_s: float) -> None:
        """Ask it to end, insist after `timeout_s`, and leave none of its own children behind."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.reap_group()

    def reap_group(self) -> None:
        """End whatever the process left running in its session, and close its output."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._pump.join(timeout=2)
        if self._process.stdout:
            self._process.stdout.close()

    def _read(self, on_line: LineSink) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # closed under us, once the process is gone
            for line in self._process.stdout:
                on_line(line.rstrip("\n"))
