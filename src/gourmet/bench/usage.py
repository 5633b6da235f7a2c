"""CPU and memory of a server on this machine, found by the port it listens on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

_LOOPBACK = {"localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0"}  # noqa: S104 - compared


@dataclass(frozen=True)
class Spent:
    """CPU seconds of a process and of each under it up to a moment."""

    at: float
    cpu_s: Mapping[int, float]


class ServerProcesses:
    """The processes behind an address, if they are on this machine and may be looked at."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._root = _listener(int(port)) if host in _LOOPBACK else None

    def spent(self) -> Spent | None:
        tree = self._tree()
        if not tree:
            return None
        seconds = {}
        for process in tree:
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            seconds[process.pid] = times.user + times.system
        return Spent(time.monotonic(), seconds)

    def cores(self, before: Spent | None, after: Spent | None) -> float | None:
        """How many cores were kept busy between two looks."""
        if before is None or after is None or after.at <= before.at:
            return None
        # A process that ended in between, such as an instance of the config before, takes its count along.
        spent = sum(seconds - before.cpu_s.get(pid, 0.0) for pid, seconds in after.cpu_s.items())
        return spent / (after.at - before.at)

    def memory_mib(self) -> float | None:
        """Memory in use; what processes share counts once."""
        sizes = [_proportional_kib(process.pid) for process in self._tree()]
        return sum(sizes) / 1024 if sizes else None

    def _tree(self) -> list[psutil.Process]:
        if self._root is None:
            return []
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return []


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


def _proportional_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
