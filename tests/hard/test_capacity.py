"""What `gourmet capacity` simulates against what a real Triton does: below its rate, near it and beyond it.

Of two models: one holds its instances for times that vary and computes nothing, so that the queue alone is
looked at, whatever else this machine does; the other is the photos' default, with one instance of one
thread, which computes on one processor while the client has another. That one wants a quiet machine. The
simulation is made from the same two runs as in the command, and its requests are due when the real ones
were.
"""

from __future__ import annotations

import re
import shutil
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.table import Keep, Row
from support.triton import some_models, triton_server

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
ALLOWED = 0.15
LASTS = MeasureOptions(window_s=12.0, windows=1, warm_up_s=0.0)


@dataclass(frozen=True)
class Served:
    """A model on a Triton of its own."""

    workload: Workload
    target: Addresses
    what: str


def holding(folder: Path) -> DataSource:
    """Add the model that computes nothing, with the times for which it holds an instance."""
    held_ms = np.random.default_rng(3).lognormal(np.log(55), 0.35, (ROWS, 1)).astype(np.float32)
    rows = folder / "rows.npz"
    np.savez(rows, MS=held_ms)
    shutil.copytree(HOLDING, folder / "models" / HOLDING.name)
    return DataSource(ROWS, folder=rows)


def food_classifier(folder: Path) -> DataSource:
    """Add the photos' default model with one instance of one thread."""
    config = some_models(folder / "models", "food_classifier") / "food_classifier" / "config.pbtxt"
    text, changed = re.subn(r"count: \d+", "count: 1", config.read_text())
    assert changed == 1, text
    thread = 'parameters { key: "intra_op_thread_count" value: { string_value: "1" } }'
    config.write_text(f"{text}\n{thread}\n")
    return DataSource(ROWS)


@pytest.fixture(
    scope="module",
    params=[
        (holding, "a model that holds its eight instances"),
        (food_classifier, "food_classifier, one instance of one thread"),
    ],
    ids=["holding", "food_classifier"],
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    add, what = request.param
    folder = tmp_path_factory.mktemp("capacity")
    data = add(folder)
    with triton_server(folder / "models") as server:
        server.wait_until_live(180)
        target = Addresses(server.options.http_url, server.options.grpc_url)
        (model,) = [path.name for path in (folder / "models").iterdir()]
        yield Served(sweep.prepare(model, target, data), target, what)


def measured(served: Served) -> Servers:
    """By the loads of the command."""
    options = MeasureOptions(window_s=3.0, windows=3, steadiness=0.3, client="gourmet")
    with connect(served.target.url) as triton:
        config = triton.config(served.workload.model)
    points, refused = sweep.run(served.workload, capacity.loads(config, "triton"), served.target, options)
    assert not refused
    return Servers(capacity.at_a_time(config), points[0].latency_ms, points[1].rows_per_s.value)


def test_the_simulated_queue_has_the_measured_median_and_p99_at_several_loads_and_beyond_the_rate(
    served: Served, table: Keep
) -> None:
    servers = measured(served)
    figures, asked = {"servers": float(servers.count), "rate": round(servers.rate_per_s, 1)}, 0
    held = []
    for share in SHARES:
        load = LoadSpec(served.workload.model, share * servers.rate_per_s, "poisson")
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
            held.append(abs(statistics.median(ratios) - 1) <= ALLOWED)
    row = Row(
        f"latency against load of {served.what}, simulated divided by measured",
        asked,
        asked,
        "nothing",
        all(held),
        TURNS,
        figures=figures,
    )
    table(row)
