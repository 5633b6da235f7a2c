"""Verbs fed with somebody's files in a process that says what each of them wrote, started or connected to.

    python -m support.fed_verb BASE     # a case a line of JSON comes in, what came of it goes out

Python's audit hooks tell of files that Python opens to be written, of folders and links, of processes and of
connections, with no more rights than a test has, where strace may be forbidden, and a mount namespace with
everything read-only would make a write fail instead of naming it. What code in C++ writes (TorchScript, ONNX
Runtime) they do not hear: so every folder that a file may name is looked through before and after.

Our readers of weights and networks are processes of their own here too, one for each file and within the same
limits, but forked from this one, where torch and ONNX Runtime are imported already. Started as they are
elsewhere, they import them for each file, a second or more (test_hostile_files.py has those).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from click.testing import CliRunner

SECONDS: Final = 30
# For a file that is refused; what a verb imports (torch) is in memory before it is given one.
MEGABYTES: Final = 400
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES: Final = {
    f"os.{name}"
    for name in [
        "chmod",
        "chown",
        "link",
        "mkdir",
        "mkfifo",
        "mknod",
        "remove",
        "rmdir",
        "setxattr",
        "symlink",
        "truncate",
        "utime",
    ]
}
_STARTS: Final = {"os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn"}
_NOWHERE: Final = ("/dev/null", "/proc/self/fd/", "/proc/self/clear_refs")


class Hung(BaseException):
    """The time of a case is over."""


_IMPORTING: Final = {
    "gourmet.training.reading_process",
    "gourmet.tasks.classification.onnx_process",
    "gourmet.measure.onnx_process",
    "gourmet.roofline.counting_process",
}


class Forked:
    """As much of Popen as gourmet.runtime.sandbox uses, for a module that is imported before it is forked."""

    returncode: int | None = None

    def __init__(self, module: str, limits: str, *, stdin: int, pass_fds: tuple[int, ...], **_: Any) -> None:
        importlib.import_module(module)
        self._pid = os.fork()
        if self._pid:
            return
        with contextlib.suppress(BaseException):
            os.dup2(stdin, 0)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
                if number not in (0, 1, 2, *pass_fds):
                    with contextlib.suppress(OSError):
                        os.close(number)
            sys.argv = [module, limits]
            runpy.run_module(module, run_name="__main__")
            os._exit(0)
        os._exit(1)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, seconds: float = 60) -> int:
        end = time.monotonic() + seconds
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a reader", seconds)
            time.sleep(0.001)
        return status

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)


class Reporter:
    """What is written outside of `allowed` folders, started or connected to, but for our own sandboxes."""

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] = ()  # nothing is looked at without any
        self.found: list[str] = []
        self.ports: tuple[int, ...] = ()
        sys.addaudithook(self._heard)

    def _heard(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.allowed:
            return
        if event == "open" and isinstance(given[2], int):
            if given[2] & _WRITES:
                self._written(event, given[0])
        elif event in _CHANGES:
            for path in given[:2] if event in ("os.rename", "os.link") else given[:1]:
                self._written(event, path)
        elif event == "subprocess.Popen" and given[0] != "lscpu":  # which says what this machine is
            if not any(
                str(word).startswith("gourmet.") and str(word).endswith("_process") for word in given[1]
            ):
                self.found.append(f"starts {given[1]}")
        elif event in _STARTS:
            self.found.append(f"{event} {given}"[:300])
        elif event == "socket.connect" and given[1][1] not in self.ports:
            self.found.append(f"connects to {given[1]}")

    def popen(self, command: list[str], **more: Any) -> Any:
        """Start a process of ours as gourmet.runtime.sandbox does, without hearing of it."""
        if command[3] not in _IMPORTING:
            return subprocess.Popen(command, **more)
        allowed, self.allowed = self.allowed, ()
        try:
            return Forked(*command[3:], **more)
        finally:
            self.allowed = allowed

    def _written(self, event: str, path: object) -> None:
        if isinstance(path, int):
            return
        where = str(Path.cwd() / os.fsdecode(path))  # type: ignore[arg-type]
        if not f"{where}/".startswith((*self.allowed, *_NOWHERE)):
            self.found.append(f"{event} {where}")


def contents(base: Path) -> set[tuple[str, int, int, int]]:
    """What lies beside the verb's own folder: in the home, among victims, and directly in others.

    Of the folder with a folder for each file, only when something last came into it or left it: looking at
    each of thousands took a quarter of the test's time.
    """
    found = set()
    for pattern in ("*", "home/**/*", "victim/**/*"):
        for path in base.glob(pattern):
            about = path.lstat()
            if path.name not in ("own", "tmp"):
                size, when = (about.st_size, about.st_mtime_ns) if _has_a_time(path) else (0, 0)
                found.add((str(path), about.st_mode, size, when))
    return found


def _has_a_time(path: Path) -> bool:
    return path.name == "given" or not path.is_dir()


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    def over(*_: object) -> None:
        raise Hung

    signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def peak_mb() -> int:
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) >> 10


def fed(case: dict[str, Any], base: Path, reporter: Reporter) -> dict[str, Any]:
    """Run the verb of one case; its own folder is where it is started."""
    from gourmet.cli import main
    from gourmet.systems import registry

    registry.load.cache_clear()  # what a case before had is not read for this one
    own = case["own"]
    Path(own).mkdir(parents=True, exist_ok=True)
    os.chdir(own)
    allowed = tuple(f"{folder}/" for folder in (own, os.environ["TMPDIR"], *case.get("writes", ())))
    before = contents(base)
    for name, value in case.get("env", {}).items():
        os.environ[name] = value
    Path("/proc/self/clear_refs").write_text("5")
    memory, began = peak_mb(), time.monotonic()
    reporter.found, reporter.ports = [], tuple(case.get("ports", ()))
    reporter.allowed = allowed
    stdin: Any = Path(case["stdin"]).open("rb") if "stdin" in case else None  # noqa: SIM115
    try:
        with within(SECONDS):
            done = CliRunner().invoke(main, case["argv"], input=stdin)
            failed = None if isinstance(done.exception, SystemExit) else done.exception
            status, said = done.exit_code, done.output
    except Hung as exc:
        status, said, failed = -1, "", exc
    finally:
        reporter.allowed = ()
        for name in case.get("env", {}):
            del os.environ[name]
    return {
        "status": status,
        "said": said,
        "error": repr(failed)[:500] if failed else "",
        "at": _last_line_of_ours(failed) if failed else "",
        "seconds": round(time.monotonic() - began, 2),
        "megabytes": peak_mb() - memory,
        "found": reporter.found,
        "changed": sorted(str(each) for each in before ^ contents(base)),
        "left": [
            each.name for each in Path(os.environ["TMPDIR"]).iterdir() if "torchinductor" not in each.name
        ],
    }


def _last_line_of_ours(error: BaseException) -> str:
    at, trace = "", error.__traceback__
    while trace:
        if "gourmet" in trace.tb_frame.f_code.co_filename:
            at = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return at


def main() -> None:
    base = Path(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch  # noqa: F401  so that no case pays for it

    from gourmet.errors import GourmetError

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (2 << 30)  # a verb that reads without end ends in a MemoryError
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    from gourmet.commands import up
    from gourmet.doctor import machine
    from gourmet.runtime import sandbox
    from gourmet.systems.digits import strokes

    def started(*_: object, **__: object) -> None:
        raise GourmetError("here Triton would be started")

    up.TritonServer = started  # type: ignore[assignment,misc]
    machine.distributions = (
        lambda: ()
    )  # what is installed is nobody's file, and takes doctor most of its time
    draws = strokes.drawn  # thousands for each training, of which the files that it is given are independent
    strokes.drawn = lambda each, *more: draws(min(each, 8), *more)
    reporter = Reporter()
    sandbox.subprocess = SimpleNamespace(
        Popen=reporter.popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    for line in sys.stdin:
        with contextlib.redirect_stdout(io.StringIO()):
            found = fed(json.loads(line), base, reporter)
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
