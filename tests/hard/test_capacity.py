"""What `gourmet capacity` simulates against what a real stack does: below its rate, near it and beyond it.

Right before each load are the two runs that its simulation is made from, as the pace of a machine that others
use too may change by a half within minutes. The simulated requests are due when the real ones were.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
from support.table import Keep, Row
from support.web_app import StartWeb

from gourmet.measure import async_client, capacity, queueing, sweep
from gourmet.measure.inputs import DataSource
from gourmet.measure.queueing import Servers
from gourmet.measure.results import LoadSpec, Through
from gourmet.measure.task import Addresses, MeasureOptions, Workload

MODEL = "food_classifier"
SHARES = (0.5, 0.8, 1.5)  # of the rate with all instances busy; the last for as long as it lasts
TURNS = 5
ALLOWED = 0.15
OPTIONS = MeasureOptions(window_s=1.0, windows=4, steadiness=0.5, client="gourmet")
LASTS = MeasureOptions(window_s=2.0, windows=4, warm_up_s=1.0)


def calibrated(workload: Workload, target: Addresses, through: Through) -> Servers:
    config = {"name": MODEL, "instance_group": [{"count": 2}]}
    points, refused = sweep.run(workload, capacity.loads(config, through), target, OPTIONS)
    assert not refused
    alone, full = points
    return Servers(capacity.at_a_time(config), alone.latency_ms, full.rows_per_s.value)


@pytest.mark.parametrize("through", ["triton", "app"])
def test_the_simulated_queue_has_the_measured_median_and_p99_at_several_loads(
    through: Any, start: StartWeb, triton: Any, table: Keep
) -> None:
    web = start(triton.http_url, FOOD11_MODEL_NAME=MODEL, MAX_AT_WORK="8")
    target = Addresses(triton.http_url, triton.grpc_url, f"127.0.0.1:{web.port}")
    workload = sweep.prepare(MODEL, target, DataSource(), through=through)
    figures, held, asked = {}, True, 0
    # Beyond its rate the web app refuses, as it should.
    for share in SHARES if through == "triton" else SHARES[:2]:
        ratios: tuple[list[float], list[float]] = ([], [])
        for _ in range(TURNS):
            servers = calibrated(workload, target, through)
            load = LoadSpec(MODEL, round(share * servers.rate_per_s), "poisson", through=through)
            traffic, _ = async_client.checked_traffic(workload, load, target, LASTS, in_company=True)
            due, _, done = traffic.arrays()
            simulated = queueing.latencies_ms(servers, np.sort(due) - due.min())
            asked += len(due)
            measured = np.percentile(1000 * (done - due), (50, 99))
            for found, ours, theirs in zip(ratios, np.percentile(simulated, (50, 99)), measured, strict=True):
                found.append(float(ours / theirs))
        for name, found in zip(("p50", "p99"), ratios, strict=True):
            figures[f"{name} at {share:g}"] = round(statistics.median(found), 3)
            held &= abs(statistics.median(found) - 1) <= ALLOWED
    row = Row(
        f"latency against load, simulated ÷ measured, of {through}",
        asked,
        asked,
        "nothing",
        held,
        TURNS,
        figures=figures,
    )
    table(row)
