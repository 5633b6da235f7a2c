"""What `gourmet capacity` simulates against what a real Triton does: below its rate, near it and beyond it.

Of two models: one holds its instances for times that vary and computes nothing, so that the queue alone is
looked at, whatever else this machine does; the other computes, in one instance of one thread and with inputs
in shared memory, so that a processor is left for the client, and wants a quiet machine. The simulation is
made from the same two runs as in the command, and its requests are due when the real ones were.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from support.checked_load import one_thread
from support.table import Keep, TableRow
from support.triton import triton_server

from gourmet.measure import async_client, capacity, queueing, sweep
from gourmet.measure.inputs import DataSource
from gourmet.measure.queueing import Servers
from gourmet.measure.results import LoadSpec
from gourmet.measure.task import Addresses, MeasureOptions, Workload
from gourmet.serving.connect import connect

HOLDING = Path(__file__).parents[1] / "support" / "models" / "holding"
ROWS = 64
# Of the rate with all instances busy. At the last the queue grows for as long as it lasts.
SHARES = (0.5, 0.8, 0.9, 1.5)
TURNS = 3
HELD = "a model that holds its eight instances"
COMPUTED = "food_classifier_onnx, one instance of one thread"
ALLOWED = 0.15
LASTS = MeasureOptions(window_s=12.0, windows=1, warm_up_s=0.0)


@dataclass(frozen=True)
class LoadedModel:
    """A model on a Triton of its own."""

    what: str
    workload: Workload
    target: Addresses
    shared_memory: bool


def holding(folder: Path) -> DataSource:
    """Add the model that computes nothing, with the times for which it holds an instance."""
    held_ms = np.random.default_rng(3).lognormal(np.log(55), 0.35, (ROWS, 1)).astype(np.float32)
    rows = folder / "rows.npz"
    np.savez(rows, MS=held_ms)
    shutil.copytree(HOLDING, folder / "models" / HOLDING.name)
    return DataSource(ROWS, folder=rows)


def computing(folder: Path) -> DataSource:
    """Add a model of photos with one instance of one thread."""
    one_thread(folder / "models", "food_classifier_onnx", 1)
    return DataSource(ROWS)


@pytest.fixture(scope="module", params=[HELD, COMPUTED])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    folder, computes = tmp_path_factory.mktemp("capacity"), request.param == COMPUTED
    data = computing(folder) if computes else holding(folder)
    with triton_server(folder / "models") as server:
        server.wait_until_live(180)
        target = Addresses(server.options.http_url, server.options.grpc_url)
        (model,) = (path.name for path in (folder / "models").iterdir())
        yield LoadedModel(request.param, sweep.prepare(model, target, data), target, computes)


def measured(served: LoadedModel) -> Servers:
    """By the loads of the command."""
    options = MeasureOptions(window_s=3.0, windows=3, steadiness=0.3, client="gourmet")
    with connect(served.target.url) as triton:
        config = triton.config(served.workload.model)
    loads = [replace(load, shared_memory=served.shared_memory) for load in capacity.loads(config, "triton")]
    points, refused = sweep.run(served.workload, loads, served.target, options)
    assert not refused
    return Servers(capacity.at_a_time(config), points[0].latency_ms, points[1].rows_per_s.value)


def test_the_simulated_queue_has_the_measured_median_and_p99_at_several_loads_and_beyond_the_rate(
    served: LoadedModel, table: Keep
) -> None:
    servers = measured(served)
    figures, asked = {"servers": float(servers.count), "rate": round(servers.rate_per_s, 1)}, 0
    held = []
    for share in SHARES:
        rate = share * servers.rate_per_s
        load = LoadSpec(served.workload.model, rate, "poisson", shared_memory=served.shared_memory)
        found: dict[int, list[float]] = {50: [], 99: []}
        for _ in range(TURNS):
            traffic, _ = async_client.checked_traffic(
                served.workload, load, served.target, LASTS, in_company=True
            )
            due, _, done = traffic.arrays()
            asked += len(due)
            simulated = queueing.latencies_ms(servers, np.sort(due) - due.min())
            for percent, ratios in found.items():
                ours, theirs = np.percentile(simulated, percent), np.percentile(done - due, percent)
                ratios.append(float(ours / (1000 * theirs)))
                figures[f"p{percent} ms at {share:g}, turn {len(ratios)}"] = round(1000 * float(theirs), 1)
        for percent, ratios in found.items():
            figures[f"p{percent} at {share:g} of it"] = round(statistics.median(ratios), 3)
            # Below its rate a computing model is slowed by what else runs, and a queue by far more than that.
            if share > 1 or not served.shared_memory:
                held.append(abs(statistics.median(ratios) - 1) <= ALLOWED)
    row = TableRow(
        f"latency against load of {served.what}, simulated divided by measured",
        asked,
        asked,
        "nothing",
        all(held),
        TURNS,
        figures=figures,
    )
    table(row)
