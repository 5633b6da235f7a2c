"""Points measured by NVIDIA's perf_analyzer, after a round of ours in which every answer is checked."""

from __future__ import annotations

import csv
import re
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gourmet.errors import GourmetError
from gourmet.measure import server_probe, stats, validity
from gourmet.measure.async_client import checked_traffic
from gourmet.measure.inputs import for_perf_analyzer
from gourmet.measure.results import Latency, LoadSpec, Point, Split, Window
from gourmet.measure.server_probe import ServerProbe
from gourmet.measure.task import Addresses, MeasureOptions, Workload
from gourmet.serving.perf_analyzer import binary, environment, keys


@dataclass(frozen=True)
class Measurement:
    """What one load came to; what Triton does not account for is the network."""

    batch: int
    rows_per_s: float
    latency_ms: Latency
    split_ms: Split
    # Its last three windows, and what the client took; a report alone does not say.
    windows: tuple[Window, ...] = ()
    requests: int = 0
    client_cores: float = 0.0

    @property
    def requests_per_s(self) -> float:
        return self.rows_per_s / self.batch


# The columns of its report, in microseconds there.
_COLUMNS: Final = (
    *("p50 latency", "p90 latency", "p95 latency", "p99 latency"),
    *("Client Send", "Network+Server Send/Recv", "Server Queue", "Server Compute Input"),
    *("Server Compute Infer", "Server Compute Output", "Client Recv"),
)
_PASS: Final = re.compile(r"Pass \[\d+\] throughput: ([\d.]+) infer/sec\. Avg latency: (\d+) usec")
_REQUESTS: Final = re.compile(r"Request count: (\d+)")
# A measurement is the mean of so many windows in a row, out of so many at most.
_WINDOWS: Final = 3
_MAX_WINDOWS: Final = 8
_TIMEOUT_S: Final = 600.0
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
        rows = for_perf_analyzer(workload.rows, Path(folder) / "rows.json")
        url = target.grpc_url if load.protocol == "grpc" else target.url
        got = profile(load, url, window_s, options.steadiness, rows, probe.look)
    rates = [window.requests_per_s for window in got.windows]
    return Point(
        arm="",
        load=load,
        client="perf_analyzer",
        rows_per_s=stats.interval([load.batch * each for each in rates]),
        latency_ms=got.latency_ms,
        # perf_analyzer's own split, which is of the same windows as its latency.
        split_ms=got.split_ms,
        batches=server_probe.batches(probe.counted),
        windows=got.windows,
        requests=got.requests,
        errors={},
        usage=probe.usage(got.client_cores),
        checks=(
            *checks,
            validity.steady(rates, 2 * options.steadiness),
            validity.rate_counted(
                probe.counted.rows / probe.seconds, got.rows_per_s, load.level, got.requests
            ),
            validity.littles_law(load.level, got.requests_per_s * got.latency_ms.mean / 1000),
        ),
        config={},
    )


def profile(
    load: LoadSpec,
    url: str,
    window_s: float,
    steadiness: float,
    rows: Path | None = None,
    look: Callable[[], None] = lambda: None,
) -> Measurement:
    """Put a closed loop on the server at `url` with the real perf_analyzer.

    It measures until three windows in a row differ by the share `steadiness` at most; without `rows` it
    sends noise. `look` is called when it begins to measure and when it has ended.
    """
    with tempfile.TemporaryDirectory(prefix="gourmet-perf-") as name:
        folder, report = Path(name), Path(name, "report.csv")
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        arguments = [
            *("-m", load.model, "-u", url, "-i", load.protocol, "-b", str(load.batch)),
            *("--concurrency-range", str(int(load.level)), "--input-data", str(rows or "random")),
            *(("--shared-memory", "system", *keys(url, load.protocol)) if load.shared_memory else ()),
            *("--measurement-interval", str(round(1000 * window_s)), "--max-trials", str(_MAX_WINDOWS)),
            *("--stability-percentage", str(100 * steadiness), "-v", "-f", str(report)),
        ]
        said = _run(arguments, folder, f"perf_analyzer on {load.model} at {url} with {load}", look)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        measured = parse(report.read_text(), load.batch)
    busy_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    requests = sum(map(int, _REQUESTS.findall(said)))
    cores = busy_s / (time.monotonic() - began)
    return replace(measured, windows=windows_of(said, load.batch), requests=requests, client_cores=cores)


def windows_of(said: str, batch: int) -> tuple[Window, ...]:
    """The windows that count of what perf_analyzer said of itself (-v)."""
    passes = [Window(float(rate) / batch, int(us) / 1000) for rate, us in _PASS.findall(said)]
    return tuple(passes[-_WINDOWS:])


def parse(report: str, batch: int) -> Measurement:
    """The only row of perf_analyzer's CSV report."""
    try:
        (row,) = csv.DictReader(report.splitlines())
        rate, ms = float(row["Inferences/Second"]), {name: float(row[name]) / 1000 for name in _COLUMNS}
    except (KeyError, TypeError, ValueError) as exc:
        raise GourmetError(
            f"perf_analyzer's report has not one whole row ({exc}), as the pinned tritonclient's has: "
            "run `make setup`"
        ) from exc
    phases = ("Queue", "Compute Input", "Compute Infer", "Compute Output")
    queue, given, infer, output = (ms[f"Server {phase}"] for phase in phases)
    network = ms["Network+Server Send/Recv"] + ms["Client Send"] + ms["Client Recv"]
    split = Split(queue, given, infer, output, network)
    percentiles = (ms[f"p{share} latency"] for share in (50, 90, 95, 99))
    return Measurement(batch, rate, Latency(sum(vars(split).values()), *percentiles), split)


def _run(arguments: Sequence[str], folder: Path, what: str, look: Callable[[], None]) -> str:
    """All that it said."""
    lines: list[str] = []
    with (
        (folder / "complaints").open("w+") as errors,
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
        late = threading.Timer(_TIMEOUT_S, ran.kill)
        late.start()
        try:
            for line in ran.stdout:
                lines.append(line)
                if line.lstrip().startswith(("Request concurrency", "Request count")):
                    look()
            status = ran.wait()
        finally:
            late.cancel()
            ran.kill()
        errors.seek(0)
        # A wrong argument is followed by the whole of its help.
        words = " ".join(errors.read().split("Usage:")[0].split())
    if any(disturbed in words for disturbed in _DISTURBED):
        raise validity.Disturbed(
            f"no {_WINDOWS} windows of {_MAX_WINDOWS} in a row agreed: something else runs here; wait, or "
            "use a longer --window"
        )
    if status:
        words = words.removeprefix("error: ").removeprefix("Error: ")
        raise GourmetError(f"{what}: {words or f'it ended with status {status}'}")
    return "".join(lines)
