"""What `gourmet capacity` simulates against what a real Triton does: below its rate, near it and beyond it.

The model holds its instances for times that vary, and computes nothing: what is looked at is the queue,
whatever else this machine does. The simulation is made from the same two runs as in the command, and its
requests are due when the real ones were.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.table import Keep, TableRow
from support.triton import triton_server

from gourmet.measure import async_client, capacity, queueing, sweep
from gourmet.measure.inputs import DataSource
from gourmet.measure.queueing import Servers
from gourmet.measure.results import LoadSpec
from gourmet.measure.task import Addresses, MeasureOptions, Workload
from gourmet.serving.connect import connect

MODELS = Path(__file__).parents[1] / "support" / "models"
MODEL = "holding"
ROWS = 64
# Of the rate with all instances busy. At the last the queue grows for as long as it lasts.
SHARES = (0.5, 0.8, 0.9, 1.5)
TURNS = 3
ALLOWED = 0.15
LASTS = MeasureOptions(window_s=12.0, windows=1, warm_up_s=0.0)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Workload, Addresses]]:
    held_ms = np.random.default_rng(3).lognormal(np.log(55), 0.35, (ROWS, 1)).astype(np.float32)
    rows = tmp_path_factory.mktemp("rows") / "rows.npz"
    np.savez(rows, MS=held_ms)
    repository = tmp_path_factory.mktemp("models")
    shutil.copytree(MODELS / MODEL, repository / MODEL)
    with triton_server(repository) as server:
        server.wait_until_live(180)
        target = Addresses(server.options.http_url, server.options.grpc_url)
        yield sweep.prepare(MODEL, target, DataSource(ROWS, folder=rows)), target


def measured(workload: Workload, target: Addresses) -> Servers:
    """By the loads of the command."""
    options = MeasureOptions(window_s=3.0, windows=3, steadiness=0.3, client="gourmet")
    with connect(target.url) as triton:
        config = triton.config(MODEL)
    points, refused = sweep.run(workload, capacity.loads(config, "triton"), target, options)
    assert not refused
    return Servers(capacity.at_a_time(config), points[0].latency_ms, points[1].rows_per_s.value)


def test_the_simulated_queue_has_the_measured_median_and_p99_at_several_loads_and_beyond_the_rate(
    served: tuple[Workload, Addresses], table: Keep
) -> None:
    workload, target = served
    servers = measured(workload, target)
    figures, asked = {"servers": float(servers.count), "rate": round(servers.rate_per_s, 1)}, 0
    held = []
    for share in SHARES:
        load = LoadSpec(MODEL, share * servers.rate_per_s, "poisson")
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(TURNS):
            traffic, _ = async_client.checked_traffic(workload, load, target, LASTS, in_company=True)
            due, _, done = traffic.arrays()
            asked += len(due)
            simulated = queueing.latencies_ms(servers, np.sort(due) - due.min())
            for found, share_of in zip(times, (50, 99), strict=True):
                ours, theirs = np.percentile(simulated, share_of), np.percentile(done - due, share_of)
                found.append(float(ours / (1000 * theirs)))
        for name, found in zip(("p50", "p99"), times, strict=True):
            figures[f"{name} at {share:g} of it"] = round(statistics.median(found), 3)
            held.append(abs(statistics.median(found) - 1) <= ALLOWED)
    row = TableRow(
        "latency against load, simulated divided by measured",
        asked,
        asked,
        "nothing",
        all(held),
        TURNS,
        figures=figures,
    )
    table(row)
