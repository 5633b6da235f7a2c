"""NVIDIA's perf_analyzer, out of the tritonclient wheel, as a function from a load to a measurement."""

from __future__ import annotations

import csv
import os
import re
import resource
import signal
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

from gourmet.errors import GourmetError
from gourmet.measure.results import LoadSpec, Window
from gourmet.serving import api_keys, running_stack
from gourmet.serving.wheel import find_wheel

# The names under which perf_analyzer looks for two libraries that nvidia-pytriton carries under longer ones.
_LIBRARIES: Final = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


class PerfAnalyzerError(GourmetError):
    """perf_analyzer cannot be run, or gave up; in its own words where it has any."""


@dataclass(frozen=True)
class PerfLoad:
    """A closed loop on a served model at `url`, with which inputs, and for how long.

    A measurement is the mean of three windows in a row that differ by `stability_percent` at most.
    """

    demand: LoadSpec
    url: str
    input_data: Path | Literal["random", "zero"] = "random"
    window_ms: int = 5000
    max_windows: int = 10
    stability_percent: float = 10
    timeout_s: float = 600


def _column(name: str) -> Any:
    """A column of perf_analyzer's report, in microseconds there."""
    return field(metadata={"column": name})


@dataclass(frozen=True)
class Measurement:
    """What one load came to; the parts of the latency are means and add up to about the mean of it."""

    batch: int
    rows_per_s: float
    p50_ms: float = _column("p50 latency")
    p90_ms: float = _column("p90 latency")
    p95_ms: float = _column("p95 latency")
    p99_ms: float = _column("p99 latency")
    client_send_ms: float = _column("Client Send")
    network_ms: float = _column("Network+Server Send/Recv")
    queue_ms: float = _column("Server Queue")
    compute_input_ms: float = _column("Server Compute Input")
    compute_infer_ms: float = _column("Server Compute Infer")
    compute_output_ms: float = _column("Server Compute Output")
    client_receive_ms: float = _column("Client Recv")

    @property
    def requests_per_s(self) -> float:
        return self.rows_per_s / self.batch

    @property
    def server_ms(self) -> float:
        """The mean time of a request inside Triton."""
        return self.queue_ms + self.compute_input_ms + self.compute_infer_ms + self.compute_output_ms


@dataclass(frozen=True)
class Profile:
    """A measurement, its last three windows, their mean latency, and what the client took."""

    measured: Measurement
    windows: tuple[Window, ...]
    mean_ms: float
    requests: int
    client_cores: float


_PASS: Final = re.compile(r"Pass \[\d+\] throughput: ([\d.]+) infer/sec\. Avg latency: (\d+) usec")
_MEAN: Final = re.compile(r"Avg latency: (\d+) usec \(standard")
_REQUESTS: Final = re.compile(r"Request count: (\d+)")
# A measurement is the mean of so many windows in a row.
WINDOWS: Final = 3


def profile(load: PerfLoad, on_line: Callable[[str], None] = lambda _: None) -> Profile:
    """Put `load` on its server with the real perf_analyzer, which takes at least three windows.

    `on_line` is told what it says while it works.
    """
    with tempfile.TemporaryDirectory(prefix="gourmet-perf-") as name:
        folder, report = Path(name), Path(name, "report.csv")
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        said = _run([*arguments(load), "-v", "-f", str(report)], folder, load, on_line)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        measured = parse(report.read_text(), load.demand.batch)
    busy_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    passes = [Window(float(rate) / load.demand.batch, int(us) / 1000) for rate, us in _PASS.findall(said)]
    mean, requests = _MEAN.search(said), _REQUESTS.search(said)
    if not (passes and mean and requests):
        raise PerfAnalyzerError("perf_analyzer did not say its windows: run `make setup` for the pinned one")
    cores = busy_s / (time.monotonic() - began)
    return Profile(measured, tuple(passes[-WINDOWS:]), int(mean[1]) / 1000, int(requests[1]), cores)


def arguments(load: PerfLoad) -> list[str]:
    """The command line of a load, less the program and its report."""
    demand = load.demand
    return [
        *("-m", demand.model, "-u", load.url, "-i", demand.protocol, "-b", str(demand.batch)),
        *("--concurrency-range", str(int(demand.level)), "--input-data", str(load.input_data)),
        *(("--shared-memory", "system") if demand.shared_memory else ()),
        *(_keys(load.url, demand.protocol) if demand.shared_memory else ()),
        *("--measurement-interval", str(load.window_ms)),
        *("--max-trials", str(load.max_windows), "--stability-percentage", str(load.stability_percent)),
    ]


def run_as_is(arguments: Sequence[str]) -> int:
    """Run perf_analyzer with somebody's own arguments in their terminal; its exit status."""
    with tempfile.TemporaryDirectory(prefix="gourmet-perf-") as folder:
        arguments = [*arguments, *_address_for(arguments)]
        command = [str(_binary()), *arguments, *_keys_for(arguments)]
        return subprocess.run(command, env=_environment(Path(folder)), check=False).returncode


def _address_for(arguments: Sequence[str]) -> list[str]:
    """Where the running stack is, for somebody's own arguments that do not say whom to ask."""
    if any(word == "-u" or word.startswith("--url") for word in arguments) or "--help" in arguments:
        return []
    grpc = _protocol(arguments) == "grpc"
    named = "" if grpc else os.environ.get("TRITON_SERVER_URL", "")
    stack = running_stack()
    found = (stack.grpc_url if grpc else stack.http_url) if stack else ""
    return ["-u", named or found] if named or found else []


def _keys_for(arguments: Sequence[str]) -> list[str]:
    """The keys that somebody's own arguments need, where they go to a Triton that we have them for."""
    if not any(word.startswith("--shared-memory") for word in arguments):
        return []
    return _keys(dict(pairwise(arguments)).get("-u", "localhost:8000"), _protocol(arguments))


def _protocol(arguments: Sequence[str]) -> str:
    return dict(pairwise(arguments)).get("-i", "http").lower()


def _keys(url: str, protocol: str) -> list[str]:
    headers = api_keys.headers_for(url, grpc=protocol == "grpc")
    return [word for name, key in headers.items() for word in ("-H", f"{name}:{key}")]


def parse(report: str, batch: int) -> Measurement:
    """The only row of perf_analyzer's CSV report."""
    try:
        (row,) = csv.DictReader(report.splitlines())
        columns = {each.name: each.metadata["column"] for each in fields(Measurement) if each.metadata}
        milliseconds = {name: float(row[column]) / 1000 for name, column in columns.items()}
        return Measurement(batch, float(row["Inferences/Second"]), **milliseconds)
    except (KeyError, TypeError, ValueError) as exc:
        raise PerfAnalyzerError(
            f"perf_analyzer's report has not one whole row ({exc}), as the pinned tritonclient's has: "
            "run `make setup`"
        ) from exc


def _run(arguments: Sequence[str], folder: Path, load: PerfLoad, on_line: Callable[[str], None]) -> str:
    """All that it said."""
    what = f"perf_analyzer on {load.demand.model} at {load.url} with {load.demand}"
    lines: list[str] = []
    complaints = folder / "complaints"
    with (
        complaints.open("w") as errors,
        subprocess.Popen(
            [str(_binary()), *arguments],
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as ran,
    ):
        assert ran.stdout is not None
        late = threading.Timer(load.timeout_s, ran.kill)
        late.start()
        try:
            for line in ran.stdout:
                lines.append(line)
                on_line(line)
            ran.wait()
        finally:
            late.cancel()
            ran.kill()
    if ran.returncode == -signal.SIGKILL:
        raise PerfAnalyzerError(
            f"{what} did not end within {load.timeout_s:.0f} s: choose shorter windows or fewer of them"
        )
    if ran.returncode:
        # A wrong argument is followed by the whole of its help.
        words = " ".join(complaints.read_text().split("Usage:")[0].split())
        words = words or f"it ended with status {ran.returncode}"
        raise PerfAnalyzerError(f"{what}: {words.removeprefix('error: ').removeprefix('Error: ')}")
    return "".join(lines)


def _binary() -> Path:
    binary = Path(sysconfig.get_path("scripts"), "perf_analyzer")
    if not binary.is_file():
        raise PerfAnalyzerError(
            f"no perf_analyzer found at {binary}: the Linux wheel of tritonclient brings it; "
            "run `make setup`, or `pip install -r requirements/triton.txt`"
        )
    return binary


def _environment(folder: Path) -> dict[str, str]:
    """Ours, with links in `folder` by which perf_analyzer finds its libraries in the wheel."""
    for name, pattern in _LIBRARIES.items():
        for found in sorted(find_wheel().libraries.glob(pattern))[-1:]:
            (folder / name).symlink_to(found)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}
