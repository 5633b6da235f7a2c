"""`gourmet up` as a user runs it, for the tests of every tier that want the whole stack."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Self

import psutil
import pytest

from gourmet.stack.preflight import free_ports
from gourmet.stack.processes import wait_until

KINDS = {"tritonserver": "Triton", "triton_python_backend_stub": "stubs"}
GOURMET = str(Path(sys.executable).with_name("gourmet"))


def restore_signals() -> None:
    """Let a child (`preexec_fn`) end by Ctrl-C and SIGHUP, ignored where nohup or `&` started the tests."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Up:
    """A running `gourmet up` and what it has printed; ready at the start of its block, stopped at the end."""

    def __init__(
        self,
        *arguments: str,
        tmp: Path,
        env: dict[str, str] | None = None,
        within: tuple[str, ...] = (),
        program: str = GOURMET,
        verb: str = "up",
    ) -> None:
        """`within`: a command that becomes the one that it is given, such as `unshare`."""
        # Its own folder for what it puts together, so that what it leaves can be told from others'.
        self.tmp = tmp
        self.folders: set[str] = set()
        self.port, self.http, self.grpc, self.metrics = free_ports(4)
        ports = (
            f"--port={self.port}",
            f"--http-port={self.http}",
            f"--grpc-port={self.grpc}",
            f"--metrics-port={self.metrics}",
        )
        self.process = subprocess.Popen(
            [*within, program, verb, *ports, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp), **(env or {})},
            start_new_session=True,
            preexec_fn=restore_signals,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        self.wait_for("ready after")
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def leftovers(self) -> list[Path]:
        """Files and shared memory of a process that is gone."""
        assert self.folders, "the process never made its folder, so this would find nothing"
        memory = [path for name in self.folders for path in Path("/dev/shm").glob(f"{name}*")]
        return [*memory, *self.tmp.iterdir()]

    def ended(self) -> bool:
        self.folders |= {path.name for path in self.tmp.glob("gourmet-triton-*")}
        return self.process.poll() is not None

    def said(self, text: str) -> bool:
        if self.ended():
            pytest.fail(f"it ended while {text!r} was waited for:\n{self.output}")
        return text in self.output

    def wait_for(self, text: str, timeout_s: float = 180) -> float:
        return wait_until(
            lambda: self.said(text), timeout_s, f"{text!r} was not said; said was:\n{self.output}"
        )

    def stop(self, number: signal.Signals = signal.SIGINT) -> float:
        started = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(60)
        took_s = time.monotonic() - started
        self.close()
        return took_s

    def kill(self) -> None:
        """As a machine that runs short of memory might: every process at once, and none in order."""
        launcher = psutil.Process(self.process.pid)
        dying = [launcher, *launcher.children(recursive=True)]
        for process in dying:
            process.suspend()  # none ends in order while the others are killed
        for process in dying:
            process.kill()
        self.process.wait(60)
        self.close()

    def close(self) -> None:
        self._reader.join(60)
        assert self.process.stdout
        self.process.stdout.close()

    def processes(self) -> list[int]:
        """Triton, its stubs, gunicorn and its workers, by the ports and folders in their command lines."""
        marks = {f"--http-port={self.http}", f"127.0.0.1:{self.port}", *self.folders}
        commands = self._commands()
        return [pid for pid, command in commands.items() if any(mark in command for mark in marks)]

    def strays(self) -> list[int]:
        """Processes of it that run on without belonging to it any more."""
        found, ours = self.processes(), psutil.Process(self.process.pid)
        pids = {ours.pid, *(child.pid for child in ours.children(recursive=True))}
        return [pid for pid in found if pid not in pids and psutil.pid_exists(pid)]

    def by_kind(self) -> dict[str, list[psutil.Process]]:
        """All that it runs all the time: Triton, stubs and web; what decodes pictures comes when needed."""
        kinds = defaultdict[str, list[psutil.Process]](list)
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                command = process.cmdline()  # empty for those that are over
                if command and "gourmet.pictures.decode" not in command:
                    kinds[KINDS.get(command[0].rpartition("/")[2], "web")].append(process)
        return kinds

    def stubs(self, model: str) -> list[psutil.Process]:
        """The processes in which the Python backend runs `model`, one an instance."""
        results = []
        for stub in self.by_kind()["stubs"]:
            with contextlib.suppress(psutil.Error):
                if f"/{model}/" in " ".join(stub.cmdline()):
                    results.append(stub)
        return results

    def triton_pid(self) -> int:
        (only_pid,) = [
            pid
            for pid, command in self._commands().items()
            if f"--http-port={self.http}" in command and "tritonserver" in command.split()[0]
        ]
        return only_pid

    def _commands(self) -> dict[int, str]:
        return {
            process.pid: " ".join(process.info["cmdline"] or ())
            for process in psutil.process_iter(["cmdline"])
        }
