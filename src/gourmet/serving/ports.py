"""Ports of loopback for servers that are started for a test or a measurement."""

from __future__ import annotations

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on; all are held open until all are known, so that they differ."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
