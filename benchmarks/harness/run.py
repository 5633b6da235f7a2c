"""Measure contenders under all their loads, in turns: A B C … A B C …; each with its own server."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import psutil

from gourmet.errors import GourmetError
from gourmet.measure.server_probe import tree
from gourmet.measure.task import Addresses
from gourmet.measure.transports import RequestFailed
from gourmet.serving.preflight import free_ports
from gourmet.serving.processes import Child, wait_until
from gourmet.serving.triton_server import ALL, TritonOptions, TritonServer
from gourmet.training.task import Tick
from harness.windows import BenchLoad, BenchWindow

# A window in which other processes took more cores than this is measured again, up to _TRIES times.
QUIET_CORES: Final = 0.1
_TRIES: Final = 3

_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 12.0
_INSTALL_TIMEOUT_S: Final = 900.0
_LOG_LINES: Final = 30

Measure = Callable[[BenchLoad], BenchWindow]


class DidNotStart(GourmetError):
    """A server did not answer in time; its last lines say why."""


@dataclass(frozen=True)
class Contender:
    """A server, or an arm without one, and its loads; `start` yields the function that measures a load."""

    words: str
    loads: Sequence[BenchLoad]
    start: Callable[[], AbstractContextManager[Measure]]


@dataclass(frozen=True)
class Outcome:
    """Every window, and the contenders left out, with the reasons."""

    windows: Sequence[BenchWindow]
    left_out: dict[str, str]


def run(contenders: Sequence[Contender], turns: int, tick: Tick) -> Outcome:
    """Measure each contender in turn; leave out one whose server does not start in the first turn."""
    windows: list[BenchWindow] = []
    left_out: dict[str, str] = {}
    steps = turns * sum(len(contender.loads) for contender in contenders)
    # The run must also end on a machine that is never quiet.
    repeats = steps // 3
    for turn in range(turns):
        for contender in contenders:
            if contender.words in left_out:
                continue
            step = f"turn {turn + 1} of {turns}: {contender.words}"
            tick(len(windows) / steps, step)
            try:
                with contender.start() as measure:
                    for load in contender.loads:
                        tick(len(windows) / steps, f"{step}, {load.inputs}, {load.level or 'all'} at a time")
                        tried = [measure(load)]
                        while tried[-1].foreign_cores > QUIET_CORES and len(tried) < _TRIES and repeats:
                            repeats -= 1
                            tried.append(measure(load))
                        windows.append(min(tried, key=lambda window: window.foreign_cores))
            except DidNotStart as exc:
                if turn:
                    raise
                left_out[contender.words] = str(exc)
    return Outcome(windows, left_out)


@contextlib.contextmanager
def started(
    words: str, command: Sequence[str], env: Mapping[str, str], cwd: Path, ask: Callable[[], object]
) -> Iterator[int]:
    """Start a server and yield its process id when `ask` succeeds.

    Until then, `ask` raises OSError, ValueError or RequestFailed.
    """
    lines: deque[str] = deque(maxlen=_LOG_LINES)
    child = Child(command, env={**os.environ, **env}, cwd=cwd, on_line=lines.append)

    def answers() -> bool:
        if (status := child.exit_status()) is not None:
            raise TimeoutError(f"ended with status {status}")
        with contextlib.suppress(OSError, ValueError, RequestFailed):
            ask()
            return True
        return False

    try:
        try:
            wait_until(answers, _START_TIMEOUT_S, "did not answer", poll_s=0.1)
        except TimeoutError as exc:
            last = " | ".join([line.strip() for line in lines if line.strip()][-5:])
            raise DidNotStart(f"{words} {exc}; its last lines: {last}") from exc
        yield child.pid
    finally:
        # BentoML's workers leave the child's session.
        below = tree(child.pid)[1:]
        child.stop(_STOP_TIMEOUT_S)
        for process in psutil.wait_procs(below, timeout=2)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def gourmet_up(port: int) -> list[str]:
    """Return the command that runs our product with the web app on a port."""
    command = [str(Path(sysconfig.get_path("scripts"), "gourmet")), "up", "--port", str(port)]
    for option, other in zip(("--http-port", "--grpc-port", "--metrics-port"), free_ports(3), strict=True):
        command += [option, str(other)]
    return command


@contextlib.contextmanager
def own_triton(repositories: Sequence[Path], models: Sequence[str] = ALL) -> Iterator[Addresses]:
    """Run a Triton that serves these models, or all, on free ports."""
    http, grpc, metrics = free_ports(3)
    options = TritonOptions(tuple(repositories), http_port=http, grpc_port=grpc, metrics_port=metrics)
    server = TritonServer(options, deque[str](maxlen=_LOG_LINES).append)
    try:
        server.start(models)
        server.wait_until_live()
        yield Addresses(options.http_url, options.grpc_url)
    finally:
        server.close()


def programs(requirements: Path) -> Path:
    """Return the programs of an environment with these packages; make it at the first use, in a minute."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gourmet"
    name = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    home = cache / f"peers-{name}"
    if not (home / ".ready").exists():
        click.echo(f"installing other servers into {home}, once", err=True)
        shutil.rmtree(home, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--python"]
        pip += [str(home / "bin" / "python"), "install", "--quiet", "--requirement", str(requirements)]
        try:
            # Our pip installs the packages: another pip would take ten seconds more.
            for command in ([sys.executable, "-m", "venv", "--without-pip", str(home)], pip):
                subprocess.run(
                    command, check=True, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S
                )
        except subprocess.SubprocessError as exc:
            shutil.rmtree(home, ignore_errors=True)
            reason = str(getattr(exc, "stderr", None) or exc)[-500:]
            raise GourmetError(f"{requirements} cannot be installed: {reason}") from exc
        (home / ".ready").touch()
    return home / "bin"


def main(command: click.Command) -> None:
    """Run the command line; print an expected error as one sentence."""
    try:
        command()
    except GourmetError as exc:
        click.echo(f"Error: {exc}", err=True)
        sys.exit(exc.exit_code)
