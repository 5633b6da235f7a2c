"""What a process and all under it use, and what else goes on on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Spent:
    """CPU seconds up to a moment: of each group of processes, of the bench and all it started, of all."""

    groups: dict[str, float]
    bench: float
    machine: float


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that descend from it, as far as they still live."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def spent(groups: Mapping[str, int], bench: int) -> Spent:
    """Look now; `groups` are named by the process at their top, `bench` is the one above everything."""
    busy = psutil.cpu_times()
    return Spent(
        {name: _cpu_s(tree(pid)) for name, pid in groups.items()},
        _cpu_s(tree(bench)),
        busy.user + busy.nice + busy.system,
    )


def memory_mib(groups: Mapping[str, int]) -> dict[str, float]:
    """Memory in use by group; what processes share counts once."""
    return {
        name: sum(_proportional_kib(each.pid) for each in tree(pid)) / 1024 for name, pid in groups.items()
    }


def _cpu_s(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def _proportional_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
