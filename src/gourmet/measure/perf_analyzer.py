"""Points measured by NVIDIA's perf_analyzer, after a round of ours in which every answer is checked.

The program is the one in the tritonclient wheel.
"""

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
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal

from gourmet.errors import GourmetError
from gourmet.measure import server_probe, stats, validity
from gourmet.measure.async_client import checked_traffic
from gourmet.measure.inputs import for_perf_analyzer
from gourmet.measure.results import Latency, LoadSpec, Point, Split, Window
from gourmet.measure.server_probe import ServerProbe
from gourmet.measure.task import Addresses, MeasureOptions, Workload
from gourmet.serving import api_keys
from gourmet.serving.wheel import find_wheel

# The names under which perf_analyzer looks for two libraries that nvidia-pytriton carries under longer ones.
_LIBRARIES: Final = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


@dataclass(frozen=True)
class PerfLoad:
    """A closed loop on a served model at `url`, with which inputs, and for how long.

    A measurement is the mean of three windows in a row that differ by `stability_percent` at most.
    """

    load: LoadSpec
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

    @property
    def split_ms(self) -> Split:
        """Where the mean latency went; what Triton does not account for is the network."""
        server = (self.queue_ms, self.compute_input_ms, self.compute_infer_ms, self.compute_output_ms)
        return Split(*server, self.network_ms + self.client_send_ms + self.client_receive_ms)


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
_WINDOWS: Final = 3
# What perf_analyzer says where its windows disagree, or are shorter than a request.
_DISTURBED: Final = ("Failed to obtain stable measurement", "No valid requests recorded")
# A window holds at least so many latencies, unless that takes too long.
_LATENCIES: Final = 10
_LONGEST_S: Final = 10.0


def measure(workload: Workload, load: LoadSpec, target: Addresses, options: MeasureOptions) -> Point:
    """The point that perf_analyzer measures; raises Untrusted."""
    # perf_analyzer looks at no answer, so the same load comes from us first, every answer checked.
    first = replace(options, warm_up_s=0.0, windows=1, window_s=max(0.5, options.warm_up_s))
    traffic, checks = checked_traffic(workload, load, target, first)
    due, _, done = traffic.arrays()
    latency_s = float((done - due).mean()) if done.size else 0.0
    # As asked, and long enough that the requests that a window cuts through do not matter.
    window_s = max(options.measure_s / _WINDOWS, min(_LONGEST_S, _LATENCIES * latency_s))
    probe = ServerProbe(target, load)
    with tempfile.TemporaryDirectory(prefix="gourmet-bench-") as folder:
        run = PerfLoad(
            load,
            target.grpc_url if load.protocol == "grpc" else target.url,
            input_data=for_perf_analyzer(workload.rows, Path(folder) / "rows.json"),
            window_ms=round(1000 * window_s),
            max_windows=2 * _WINDOWS + 2,
            stability_percent=100 * options.steadiness,
        )
        got = profile(run, probe.look)
    counted = probe.counted
    measured = got.measured
    rates = [window.requests_per_s for window in got.windows]
    return Point(
        arm="",
        load=load,
        client="perf_analyzer",
        rows_per_s=stats.interval([load.batch * each for each in rates]),
        latency_ms=Latency(got.mean_ms, measured.p50_ms, measured.p90_ms, measured.p95_ms, measured.p99_ms),
        # perf_analyzer's own split, which is of the same windows as its latency.
        split_ms=measured.split_ms,
        batches=server_probe.batches(counted),
        windows=got.windows,
        requests=got.requests,
        errors={},
        usage=probe.usage(got.client_cores),
        checks=(
            *checks,
            validity.steady(got.windows, stats.unsteadiness(rates), 2 * options.steadiness),
            validity.rate_counted(
                counted.rows / probe.seconds, measured.rows_per_s, load.level, got.requests
            ),
            validity.littles_law(load.level, measured.requests_per_s * got.mean_ms / 1000),
        ),
        config={},
    )


def profile(run: PerfLoad, look: Callable[[], None] = lambda: None) -> Profile:
    """Put the load of `run` on its server with the real perf_analyzer, which takes at least three windows.

    `look` is called when it begins to measure and when it has ended.
    """
    with tempfile.TemporaryDirectory(prefix="gourmet-perf-") as name:
        folder, report = Path(name), Path(name, "report.csv")
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        said = _run([*arguments(run), "-v", "-f", str(report)], folder, run, look)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        measured = parse(report.read_text(), run.load.batch)
    busy_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    passes = [Window(float(rate) / run.load.batch, int(us) / 1000) for rate, us in _PASS.findall(said)]
    mean, requests = _MEAN.search(said), _REQUESTS.search(said)
    if not (passes and mean and requests):
        raise GourmetError("perf_analyzer did not say its windows: run `make setup` for the pinned one")
    cores = busy_s / (time.monotonic() - began)
    return Profile(measured, tuple(passes[-_WINDOWS:]), int(mean[1]) / 1000, int(requests[1]), cores)


def arguments(run: PerfLoad) -> list[str]:
    """The command line of a load, less the program and its report."""
    load = run.load
    return [
        *("-m", load.model, "-u", run.url, "-i", load.protocol, "-b", str(load.batch)),
        *("--concurrency-range", str(int(load.level)), "--input-data", str(run.input_data)),
        *(("--shared-memory", "system") if load.shared_memory else ()),
        *(keys(run.url, load.protocol) if load.shared_memory else ()),
        *("--measurement-interval", str(run.window_ms)),
        *("--max-trials", str(run.max_windows), "--stability-percentage", str(run.stability_percent)),
    ]


def keys(url: str, protocol: str) -> list[str]:
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
        raise GourmetError(
            f"perf_analyzer's report has not one whole row ({exc}), as the pinned tritonclient's has: "
            "run `make setup`"
        ) from exc


def _run(arguments: Sequence[str], folder: Path, run: PerfLoad, look: Callable[[], None]) -> str:
    """All that it said."""
    what = f"perf_analyzer on {run.load.model} at {run.url} with {run.load}"
    lines: list[str] = []
    complaints = folder / "complaints"
    with (
        complaints.open("w") as errors,
        subprocess.Popen(
            [str(binary()), *arguments],
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as ran,
    ):
        assert ran.stdout is not None
        late = threading.Timer(run.timeout_s, ran.kill)
        late.start()
        try:
            for line in ran.stdout:
                lines.append(line)
                if line.lstrip().startswith(("Request concurrency", "Request count")):
                    look()
            ran.wait()
        finally:
            late.cancel()
            ran.kill()
    if ran.returncode == -signal.SIGKILL:
        raise GourmetError(
            f"{what} did not end within {run.timeout_s:.0f} s: choose shorter windows or fewer of them"
        )
    if ran.returncode:
        # A wrong argument is followed by the whole of its help.
        words = " ".join(complaints.read_text().split("Usage:")[0].split())
        words = words or f"it ended with status {ran.returncode}"
        if any(disturbed in words for disturbed in _DISTURBED):
            raise validity.Disturbed(
                f"no {_WINDOWS} windows of {run.max_windows} in a row came within "
                f"{run.stability_percent:g}% of each other: something else runs here; wait, or use a longer "
                "--window"
            )
        raise GourmetError(f"{what}: {words.removeprefix('error: ').removeprefix('Error: ')}")
    return "".join(lines)


def binary() -> Path:
    binary = Path(sysconfig.get_path("scripts"), "perf_analyzer")
    if not binary.is_file():
        raise GourmetError(
            f"no perf_analyzer found at {binary}: the Linux wheel of tritonclient brings it; "
            "run `make setup`, or `pip install -r requirements/triton.txt`"
        )
    return binary


def environment(folder: Path) -> dict[str, str]:
    """Ours, with links in `folder` by which perf_analyzer finds its libraries in the wheel."""
    for name, pattern in _LIBRARIES.items():
        for found in sorted(find_wheel().libraries.glob(pattern))[-1:]:
            (folder / name).symlink_to(found)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}
