"""Connections that come at once are shared among the workers."""

from __future__ import annotations

import contextlib
import socket
import time

import psutil
from support.web_app import StartWeb


def connections(worker: psutil.Process, port: int) -> int:
    return sum(
        each.status == psutil.CONN_ESTABLISHED and each.laddr.port == port
        for each in worker.net_connections("tcp")
    )


def test_no_worker_takes_all_that_come_at_once(start: StartWeb) -> None:
    web = start("127.0.0.1:9", WEB_CONCURRENCY="2")
    workers = psutil.Process(web.process.pid).children()
    taken = [0, 0]
    for _ in range(3):
        with contextlib.ExitStack() as held:
            for _ in range(6):
                held.enter_context(socket.create_connection(("127.0.0.1", web.port)))
            deadline = time.monotonic() + 5
            while sum(now := [connections(worker, web.port) for worker in workers]) < 6:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            taken = [before + more for before, more in zip(taken, now, strict=True)]
        time.sleep(0.5)  # until the workers know that these have gone
    assert min(taken) >= 3, taken
