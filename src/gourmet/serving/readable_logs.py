"""Triton's and gunicorn's lines as one log that a person can read."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Final

import click

# I1121 02:32:03.186922 6125 model_lifecycle.cc:472] "loading: food_classifier:1"
_TRITON_LINE: Final = re.compile(r"([IWEF])\d{4} (\d\d:\d\d:\d\d)\.\d+ \d+ ([\w.]+:\d+)\] \"?(.*?)\"?$")
_COLOURS: Final[dict[str, str | None]] = {"I": None, "W": "yellow", "E": "red", "F": "red"}

# [2026-11-21 03:02:09 +0000] [16830] [INFO] Listening at: http://127.0.0.1:5000 (16830)
_GUNICORN_LINE: Final = re.compile(r"\[\S+ (\d\d:\d\d:\d\d) \S+\] \[\d+\] \[([A-Z])\w+\] (.*)$")
_PROBE: Final = re.compile(r'"GET /(healthz|readyz|metrics|lab/figures) HTTP/1\.\d" 200 ')

# What is worth a line without --verbose; warnings and errors always are.
_TELLING: Final = re.compile(r"successfully (un)?loaded|^Started \w+ ?Service|^Waiting for in-flight")

# A machine without a GPU is not at fault, nor is Triton where it ends after the seconds that it was given,
# nor a version that `gourmet rollback` put aside.
_NOT_A_FAULT: Final = re.compile(
    r"CUDA driver version is insufficient|CudaDriverHelper has not been|DCGM unable to start|"
    r"Failed to initialize NVML|CUDA memory pool disabled|failed to load all models|"
    r"no CUDA-capable device|NVML_ERROR|Exit timeout expired|ignore version directory '\.withdrawn-"
)
# What the Python backend adds below the message of a model that could not load.
_TRACE: Final = re.compile(r"\s*At:$|  /\S+\(\d+\): \w+$")


class LogPrinter:
    """Prints lines of several processes, one whole line at a time, each with its origin."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._lock = threading.Lock()

    def say(self, origin: str, text: str, colour: str | None = None) -> None:
        with self._lock:
            prefix = click.style(f"{origin:>7} │ ", fg="cyan" if origin == "gourmet" else "bright_black")
            click.echo(prefix + click.style(text, fg=colour))

    def sink(self, origin: str) -> Callable[[str], None]:
        """A function that prints the lines of one process, as they come."""
        return self._triton_line if origin == "triton" else lambda line: self._gunicorn_line(origin, line)

    def _gunicorn_line(self, origin: str, line: str) -> None:
        if found := _GUNICORN_LINE.match(line):
            clock, level, message = found.groups()
            if self._verbose or level != "I":
                self.say(origin, f"{clock} {message}", _COLOURS.get(level, "red"))
        elif self._verbose or not _PROBE.search(line):
            self.say(origin, line)

    def _triton_line(self, line: str) -> None:
        found = _TRITON_LINE.match(line)
        if found is None:
            # The start-up tables, and the stubs' own output: keep what a model printed.
            if self._verbose or not _tells_nothing(line):
                self.say("triton", line)
            return
        level, clock, where, message = found.groups()
        if self._verbose:
            self.say("triton", f"{clock} {message}  ({where})", _COLOURS[level])
        elif not _NOT_A_FAULT.search(message) and (level != "I" or _TELLING.search(message)):
            self.say("triton", f"{clock} {message}", _COLOURS[level])


def _tells_nothing(line: str) -> bool:
    return not line.strip() or line[0] in "+|" or bool(_NOT_A_FAULT.search(line) or _TRACE.match(line))
