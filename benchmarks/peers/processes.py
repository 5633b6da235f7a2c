"""What a process and all under it use, and what else goes on on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from gourmet.measure import server_probe


@dataclass(frozen=True)
class CpuUsed:
    """CPU seconds up to a moment: of each group of processes, of the bench and all it started, of all."""

    groups: dict[str, float]
    bench: float
    machine: float


def spent(groups: Mapping[str, int], bench: int) -> CpuUsed:
    """Look now; `groups` are named by the process at their top, `bench` is the one above everything."""
    busy = psutil.cpu_times()
    return CpuUsed(
        {name: cpu_s(pid) for name, pid in groups.items()},
        cpu_s(bench),
        busy.user + busy.nice + busy.system,
    )


def memory_mib(groups: Mapping[str, int]) -> dict[str, float]:
    """Memory in use by group; what processes share counts once."""
    return {name: server_probe.memory_mib(server_probe.tree(pid)) for name, pid in groups.items()}


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and of all under it."""
    return sum(server_probe.cpu_s(server_probe.tree(pid)).values())
