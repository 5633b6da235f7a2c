"""Observe a server during a measurement: Triton's counts, and the machine's CPU and memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

import psutil

from gourmet.bench.results import BatchSize, LoadSpec, Split, Usage
from gourmet.bench.workload import Addresses
from gourmet.stack.connect import connect
from gourmet.triton_client.address import LOOPBACK
from gourmet.triton_client.statistics import ModelStatistics

# Linux' name of the clock of another process's CPU time (clock_getcpuclockid(3)). It is finer than the
# hundredths of a second of /proc/<pid>/stat.
_CPU_CLOCK: Final = 2
# The kinds of a core's time in which it works, as psutil names them.
_BUSY: Final = ("user", "nice", "system", "irq", "softirq", "steal")
_THIS: Final = "this process"


class CpuMeter:
    """Measures the CPU time of processes between its first record and its last.

    `groups` has the first process of each group by name, or None for one that runs elsewhere. `own` are
    other processes that do not count as others, each with its descendants.
    """

    def __init__(self, groups: Mapping[str, int | None], own: Iterable[int] = ()) -> None:
        self.groups, self._own = groups, {f"process {pid}": pid for pid in own}
        self._cores = sorted(os.sched_getaffinity(0))
        self._records: list[tuple[float, float, dict[str, dict[int, float]]]] = []

    def record(self) -> None:
        times = psutil.cpu_times(percpu=True)
        busy_s = sum(getattr(times[core], name, 0.0) for core in self._cores for name in _BUSY)
        first = {**self.groups, **self._own, _THIS: os.getpid()}
        used_s = {name: cpu_s(tree(pid)) if pid else {} for name, pid in first.items()}
        self._records.append((time.monotonic(), busy_s, used_s))

    @property
    def seconds(self) -> float:
        return self._records[-1][0] - self._records[0][0]

    def cores(self, group: str) -> float | None:
        """Return the cores that a group used on average, or None if it does not run here."""
        before, after = (used_s[group] for _, _, used_s in (self._records[0], self._records[-1]))
        return spent_s(before, after) / self.seconds if after else None

    @property
    def others_cores(self) -> float:
        """The cores that others used: all but the groups, this process and its descendants."""
        before, after = (
            {pid: seconds for group in used_s.values() for pid, seconds in group.items()}
            for _, _, used_s in (self._records[0], self._records[-1])
        )
        busy_s = self._records[-1][1] - self._records[0][1]
        return max(0.0, busy_s - spent_s(before, after)) / self.seconds


class ServerProbe:
    """Records the server's counts when a measurement begins and when it ends."""

    def __init__(self, target: Addresses, load: LoadSpec, own: Iterable[int] = ()) -> None:
        self._triton, self._model = connect(target.url), load.model
        addresses = [target.url, target.app_url] if load.through == "app" else [target.url]
        self._cpu = CpuMeter({address: listener(address) for address in addresses}, own)
        self._counts: list[ModelStatistics] = []

    def record(self) -> None:
        self._cpu.record()
        self._counts.append(self._triton.total(self._model))

    @property
    def counted(self) -> ModelStatistics:
        return self._counts[-1].since(self._counts[0])

    def usage(self, client_cores: float) -> Usage:
        return usage(self._cpu, client_cores)


def usage(cpu: CpuMeter, client_cores: float) -> Usage:
    """Return what the groups of the meter used: of the server, then of the web app if there is one."""
    figures: list[float | None] = []
    for group, pid in cpu.groups.items():
        cores = cpu.cores(group)
        figures += [cores, memory_mib(tree(pid)) if pid and cores is not None else None]
    others = None if None in cpu.groups.values() else cpu.others_cores
    return replace(Usage(client_cores, *figures), others_cores=others)


def split(counted: ModelStatistics, mean_ms: float, requests: float = 1.0) -> Split:
    """Divide a mean latency of `mean_ms` into its parts.

    What Triton does not account for is the network.
    """
    phases = (counted.queue_ns, counted.input_ns, counted.infer_ns, counted.output_ns)
    queue, input_ms, infer, output = (requests * ns / max(1, counted.requests) / 1e6 for ns in phases)
    return Split(queue, input_ms, infer, output, max(0.0, mean_ms - queue - input_ms - infer - output))


def batches(counted: ModelStatistics) -> tuple[BatchSize, ...]:
    """Return how many executions had each number of rows, and their time."""
    return tuple(
        BatchSize(rows, count, counted.infer_ns_by_batch[rows] / count / 1e6)
        for rows, count in sorted(counted.executions_by_batch.items())
    )


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants that still live."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def cpu_s(processes: Iterable[psutil.Process]) -> dict[int, float]:
    """Return the CPU seconds of each process so far, without those that just ended."""
    seconds = {}
    for process in processes:
        with suppress(OSError):
            seconds[process.pid] = time.clock_gettime(~process.pid << 3 | _CPU_CLOCK)
    return seconds


def spent_s(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Return the CPU seconds between two looks, of the processes that still run."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def memory_mib(processes: Iterable[psutil.Process]) -> float:
    """Return the memory in use; memory that processes share counts once."""
    used = 0
    for process in processes:
        with suppress(psutil.Error):
            used += process.memory_full_info().pss
    return used / 2**20


def listener(address: str) -> int | None:
    """Return the oldest process that listens at host:port: of a server with workers, the master."""
    host, _, port = address.rpartition(":")
    if host not in LOOPBACK:
        return None
    with suppress(psutil.Error):
        listening = {
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
            and connection.laddr.port == int(port)
            and connection.pid
        }
        return min(listening, key=lambda pid: psutil.Process(pid).create_time(), default=None)
    return None
