"""What a server did during a measurement: by Triton's own count, and of the machine's CPU and memory."""

from __future__ import annotations

import itertools
import time

from gourmet.measure.results import BatchSize, LoadSpec, Split, Usage
from gourmet.measure.usage import ServerProcesses, cores
from gourmet.runtime.statistics import ModelStatistics
from gourmet.serving.statistics import statistics_now


def split(counted: ModelStatistics, mean_ms: float) -> Split:
    """Where a mean latency of `mean_ms` went; what Triton does not account for is the network."""
    phases = (counted.queue_ns, counted.input_ns, counted.infer_ns, counted.output_ns)
    each = [ns / max(1, counted.requests) / 1e6 for ns in phases]
    queue, given, infer, output = each
    return Split(queue, given, infer, output, max(0.0, mean_ms - sum(each)))


def batches(counted: ModelStatistics) -> tuple[BatchSize, ...]:
    """How many rows went through the network at once, how often and for how long."""
    return tuple(
        BatchSize(rows, count, counted.infer_ns_by_batch.get(rows, 0) / count / 1e6)
        for rows, count in sorted(counted.executions_by_batch.items())
    )


class ServerProbe:
    """Looks at the server when a measurement begins and when it ends."""

    def __init__(self, url: str, app_url: str, demand: LoadSpec) -> None:
        self._url, self._model = url, demand.model
        asked = [url, app_url] if demand.through == "app" else [url]
        self._servers = [ServerProcesses(address) for address in asked]
        self._times: list[float] = []
        self._counts: list[ModelStatistics] = []
        self._cpu_s: list[list[dict[int, float]]] = []
        self._memory_mib: list[float | None] = []

    def look(self) -> None:
        self._times.append(time.monotonic())
        self._counts.append(statistics_now(self._url, self._model))
        self._cpu_s.append([server.cpu_s() for server in self._servers])
        if len(self._times) > 1:
            self._memory_mib = [server.memory_mib() for server in self._servers]

    @property
    def counted(self) -> ModelStatistics:
        return self._counts[-1].since(self._counts[0])

    @property
    def seconds(self) -> float:
        return self._times[-1] - self._times[0]

    def usage(self, client_cores: float) -> Usage:
        looks = zip(self._cpu_s[0], self._cpu_s[-1], self._memory_mib, strict=True)
        used = [(cores(before, after, self.seconds), memory) for before, after, memory in looks]
        return Usage(client_cores, *itertools.chain(*used))
