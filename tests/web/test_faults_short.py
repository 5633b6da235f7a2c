"""Short forms of tests/hard's faults: a worker that dies, the way to Triton cut and slow."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
from hard.proxy import Proxy

from gourmet.serving.waiting import wait_until

MODEL = "food_classifier_onnx"


def test_a_cut_connection_costs_nothing_and_a_slow_one_no_more_than_the_deadline(
    start: Callable[..., Any], triton: Any, sample: bytes
) -> None:
    with Proxy(triton.http_url) as proxy:
        web = start(proxy.address, FOOD11_MODEL_NAME=MODEL, REQUEST_DEADLINE_S="3")
        for _ in range(4):
            assert web.predict(sample).status == 200
            proxy.cut()
        proxy.delay_s = 10.0
        reply = web.predict(sample)
        assert (reply.status, reply.json["error"]["code"]) == (504, "triton_too_slow")
        assert web.request("GET", "/healthz").status == 200
        proxy.delay_s = 0.0
        proxy.cut()
        wait_until(lambda: web.predict(sample).status == 200, 30, "it does not answer again")
        web.stop()


def test_a_worker_that_dies_is_replaced(start: Callable[..., Any], triton: Any, sample: bytes) -> None:
    web = start(triton.http_url, FOOD11_MODEL_NAME=MODEL)
    workers = {child.pid for child in psutil.Process(web.process.pid).children()}
    dies = min(workers)
    os.kill(dies, signal.SIGKILL)

    def replaced() -> bool:
        now = {child.pid for child in psutil.Process(web.process.pid).children()}
        return dies not in now and len(now) == len(workers)

    wait_until(replaced, 60, "no other worker was started")
    assert {web.predict(sample).status for _ in range(4)} == {200}
    web.stop()
