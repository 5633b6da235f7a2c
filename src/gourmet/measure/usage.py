"""CPU and memory of a server on this machine, found by the port it listens on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import psutil

_LOOPBACK = {"localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0"}  # noqa: S104 - compared


class ServerProcesses:
    """The processes behind an address, if they are on this machine and may be looked at."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._root = _listener(int(port)) if host in _LOOPBACK else None

    def cpu_s(self) -> dict[int, float]:
        return cpu_s(self._tree())

    def memory_mib(self) -> float | None:
        found = self._tree()
        return memory_mib(found) if found else None

    def _tree(self) -> list[psutil.Process]:
        return [] if self._root is None else tree(self._root.pid)


def cores(before: Mapping[int, float], after: Mapping[int, float], seconds: float) -> float | None:
    """How many cores processes kept busy between two looks at their CPU seconds."""
    if not before or not after or not seconds:
        return None
    # A process that ended in between, such as an instance of the config before, takes its count along.
    return sum(spent - before.get(pid, 0.0) for pid, spent in after.items()) / seconds


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that descend from it, as far as they still live."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def cpu_s(processes: Iterable[psutil.Process]) -> dict[int, float]:
    """CPU seconds of each so far; one that has just ended is left out."""
    seconds = {}
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            seconds[process.pid] = times.user + times.system
    return seconds


def memory_mib(processes: Iterable[psutil.Process]) -> float:
    """Memory in use; what processes share counts once."""
    used = 0
    for process in processes:
        with suppress(psutil.Error):
            used += process.memory_full_info().pss
    return used / 2**20


def _listener(port: int) -> psutil.Process | None:
    """The oldest process that listens on the port: a server's master, where its workers listen too."""
    try:
        sockets = psutil.net_connections("tcp")
    except psutil.Error:
        return None
    pids = {
        each.pid
        for each in sockets
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid
    }
    try:
        return min((psutil.Process(pid) for pid in pids), key=lambda each: each.create_time(), default=None)
    except psutil.Error:
        return None
