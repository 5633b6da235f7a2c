"""Print Triton's and gunicorn's output as one log: readable lines, or JSON lines."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import click

from gourmet.errors import echo, printable

# I1121 02:32:03.186922 6125 model_lifecycle.cc:472] "loading: food_classifier:1"
_TRITON_LINE: Final = re.compile(
    r"(?P<level>[IWEF])\d{4} (?P<clock>\d\d:\d\d:\d\d)\.\d+ \d+ (?P<where>[\w.]+:\d+)\] \"?(?P<words>.*?)\"?$"
)
# [2026-11-21 03:02:09 +0000] [16830] [INFO] Listening at: http://127.0.0.1:5000 (16830)
_GUNICORN_LINE: Final = re.compile(
    r"\[\S+ (?P<clock>\d\d:\d\d:\d\d) \S+\] \[(?P<where>\d+)\] \[(?P<level>[A-Z])\w+\] (?P<words>.*)$"
)
_COLOURS: Final[dict[str, str | None]] = {"I": None, "W": "yellow"}  # all others are red
_LEVELS: Final = {"yellow": "warning", "red": "error"}

# Info lines that are shown without --verbose. Warnings and errors are always shown.
_SHOWN: Final = re.compile(r"successfully (un)?loaded|^Started \w+ ?Service|^Waiting for in-flight")

# Warnings that mean no fault: a machine has no GPU, Triton ended after its drain timeout, or `gourmet
# rollback` put a version aside.
_NOT_A_FAULT: Final = re.compile(
    r"CUDA driver version is insufficient|CudaDriverHelper has not been|DCGM unable to start|"
    r"Failed to initialize NVML|CUDA memory pool disabled|failed to load all models|"
    r"no CUDA-capable device|NVML_ERROR|Exit timeout expired|ignore version directory '\.withdrawn-"
)
# Tables, health probes, and the Python backend's traceback below the message of a model that did not load.
_NOISE: Final = re.compile(
    r"^\s*$|^[+|]|^\s*At:$|^  /\S+\(\d+\): \w+$|"
    r'"GET /(healthz|readyz|metrics|lab/figures) HTTP/1\.\d" 200 '
)


class LogPrinter:
    """Print lines of several processes, one whole line at a time, each with its origin."""

    def __init__(self, *, verbose: bool = False, as_json: bool = False) -> None:
        """Prepare to print; with `as_json`, all lines have the fields of the web app's JSON logs."""
        self._verbose, self._as_json = verbose, as_json
        self._lock = threading.Lock()

    def say(self, origin: str, text: str, colour: str | None = None) -> None:
        with self._lock:
            if self._as_json:
                echo(json_line(origin, text, _LEVELS.get(colour or "", "info")))
                return
            prefix = click.style(f"{origin:>7} │ ", fg="cyan" if origin == "gourmet" else "bright_black")
            click.echo(prefix + click.style(printable(text), fg=colour))  # noqa: TID251

    def sink(self, origin: str) -> Callable[[str], None]:
        """Return a function that prints a line of one process."""
        pattern = _TRITON_LINE if origin.startswith("triton") else _GUNICORN_LINE

        def take(line: str) -> None:
            if self._as_json and _is_json(line):
                with self._lock:
                    echo(line)
            elif match := pattern.match(line):
                level, words = match["level"], match["words"]
                is_shown = level != "I" or _SHOWN.search(words)
                where = f"  ({match['where']})" if self._verbose else ""
                if self._verbose or (is_shown and not _NOT_A_FAULT.search(words)):
                    self.say(origin, f"{match['clock']} {words}{where}", _COLOURS.get(level, "red"))
            # The start-up tables and the stubs' output: show the lines that a model printed.
            elif self._verbose or not (_NOISE.search(line) or _NOT_A_FAULT.search(line)):
                self.say(origin, line)

        return take


def wants_json(env: Mapping[str, str]) -> bool:
    return env.get("LOG_FORMAT", "").strip() == "json"


def json_line(origin: str, text: str, level: str) -> str:
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": time, "level": level, "logger": origin, "message": text})


def _is_json(line: str) -> bool:
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(line), dict)
    return False
