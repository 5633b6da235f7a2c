"""Measure what Triton adds to ONNX Runtime, and our model.py beside one as labs write it, same weights.

    .venv/bin/python -P benchmarks/foundation.py --write docs

Everything is measured on the same cores and photos, in turns, and every answer is checked. The arms of ONNX
Runtime have the same file with Triton and without a server.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gourmet import repository
from gourmet.bench import sweep
from gourmet.bench.inputs import DataSource
from gourmet.bench.results import LoadSpec
from gourmet.bench.server_probe import CpuMeter, ServerProbe, split
from gourmet.bench.sweep import checked_traffic
from gourmet.bench.validity import WrongAnswers
from gourmet.bench.workload import Addresses, MeasureOptions, Workload, prepare
from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND_FOLDER, POSITIVE
from gourmet.repository.config_change import Change, changed
from gourmet.served.instances import FP32, TORCH
from gourmet.stack.connect import connect
from gourmet.systems.food11.contract import SYSTEM as FOOD
from harness import (
    BenchLoad,
    BenchRow,
    BenchWindow,
    Compute,
    Contender,
    DocsPart,
    Goal,
    Layout,
    Measure,
    full_layouts,
    goals_table,
    headings,
    main,
    markdown,
    no_server,
    own_triton,
    ratio_goal,
    run,
    window_of,
)

ONNX, PYTHON, LAB = "food_classifier_onnx", "food_classifier", "food_reference_lab"
PART: Final = DocsPart("make bench", "measuring.md")
MANY: Final = 8
_PHOTOS: Final = DataSource(32)
_ONE: Final = Change(instances=1, threads=1)
_UNBATCHED: Final = Change(dynamic_batching=False)
# The settings of the known labs.
AS_IN_LABS: Final = Change(engine=TORCH, precision=FP32, preferred_batches=(4,))
# The lab cuts its crop after shrinking: some photos between two labels get the other one.
_LEAST_AGREEMENT: Final = 0.9
_TOLERANCE: Final = 1e-3
# A window's value: the part of the mean latency that is spent inside Triton.
_INSIDE_MS: Final = "inside ms"

# The arms of Triton by name: the model, the change of its config, the protocol, and the requests in flight.
SINGLE, GRPC, SEVERAL = "ONNX, one instance", "ONNX, one instance, gRPC", "ONNX"
OURS, LABS = "our model.py, torch", "a lab's model.py, torch"
ARMS: Final[dict[str, tuple[LoadSpec, Change, Sequence[int]]]] = {
    SINGLE: (LoadSpec(ONNX), _ONE.over(_UNBATCHED), (1,)),
    GRPC: (LoadSpec(ONNX, protocol="grpc"), _ONE.over(_UNBATCHED), (1,)),
    SEVERAL: (LoadSpec(ONNX), _UNBATCHED, (2, 4, MANY)),
    OURS: (LoadSpec(PYTHON), AS_IN_LABS, (1, MANY)),
    LABS: (LoadSpec(LAB), Change(), (1, MANY)),
}
ALONE: Final = "no server, 1 × 1"

Figure = Callable[[BenchWindow], float]


def goals(rows: Sequence[BenchRow]) -> list[Goal]:
    """Return the goals whose arms were measured in every turn."""
    table = {(row.load.arm, row.load.level): row for row in rows}

    def p50_ms(window: BenchWindow) -> float:
        return window.latency.p50

    def mean_ms(window: BenchWindow) -> float:
        return window.latency.mean

    def inside_ms(window: BenchWindow) -> float:
        return window.figures[_INSIDE_MS]

    def added(what: str, arm: str, ours: Figure, raw: Figure) -> list[Goal]:
        served, alone = table.get((arm, 1)), table.get((ALONE, 0))
        if not served or not alone:
            return []
        turns = zip(served.windows, alone.windows, strict=True)
        figures = tuple(ours(mine) - raw(other) for mine, other in turns)
        disturbed = served.disturbed or alone.disturbed
        return [Goal(what, figures, 1.5, at_most=True, unit="ms", disturbed=disturbed)]

    served = [row for row in rows if row.load.arm == SEVERAL]
    best = max(served, key=lambda row: row.median, default=None)
    raw = [row for row in rows if row.load.level == 0]
    labs = table.get((LABS, MANY))
    return [
        *added("added inside Triton, one request at a time, mean", SINGLE, inside_ms, mean_ms),
        *added("added for gRPC, p50", GRPC, p50_ms, p50_ms),
        *added("added for HTTP, p50", SINGLE, p50_ms, p50_ms),
        *ratio_goal("best through Triton ÷ best without a server", best, raw, 0.88),
        *ratio_goal(f"our model.py ÷ a lab's, c={MANY}", table.get((OURS, MANY)), [labs], 3.0),
    ]


def in_triton(options: MeasureOptions) -> Contender:
    """Return the contender of all arms of a Triton that serves the lab's model beside ours."""

    @contextmanager
    def start() -> Iterator[Measure]:
        with tempfile.TemporaryDirectory(prefix="gourmet-bench-") as name:
            models = shutil.copytree(Path(__file__).with_name("models"), Path(name) / "models")
            shutil.copy2(repository.newest(repository.DEFAULT / PYTHON) / "model.pt", models / LAB / "1")
            with own_triton((repository.DEFAULT, models), (ONNX, PYTHON, LAB)) as server:
                yield partial(_measure, *_prepared(server), options, server)

    loads = [BenchLoad(arm, level) for arm, (*_, levels) in ARMS.items() for level in levels]
    return Contender("Triton", loads, start)


def _prepared(server: Addresses) -> tuple[dict[str, Workload], dict[str, Any]]:
    """Return the workloads and the configs by model; raise WrongAnswers unless the labels agree."""
    with connect(server.url) as triton:
        usual = {model: triton.config(model) for model in (ONNX, PYTHON, LAB)}
    sweep.load_config(server, PYTHON, changed(usual[PYTHON], AS_IN_LABS))
    workloads = {model: prepare(model, server, _PHOTOS) for model in usual}
    ours, labs = (workloads[model].answers.expected for model in (PYTHON, LAB))
    same = np.mean(
        [a["FOOD_LABEL"].item() == b["FOOD_LABEL"].item() for a, b in zip(ours, labs, strict=True)]
    )
    if same < _LEAST_AGREEMENT:
        raise WrongAnswers(f"the lab's model gives the label of ours for {same:.0%} of the photos only")
    return workloads, usual


def _measure(
    workloads: dict[str, Workload],
    usual: dict[str, Any],
    options: MeasureOptions,
    server: Addresses,
    load: BenchLoad,
) -> BenchWindow:
    spec, change, _ = ARMS[load.arm]
    spec, meter = replace(spec, level=load.level), CpuMeter({})
    sweep.load_config(server, spec.model, changed(usual[spec.model], change))
    probe = ServerProbe(server, spec)

    def look() -> None:
        meter.look()
        probe.look()

    traffic, _ = checked_traffic(workloads[spec.model], spec, server, options, look)
    return window_of(load, traffic, meter, {_INSIDE_MS: split(probe.counted, 0.0).server})


def without_server(layout: Layout, options: MeasureOptions) -> Contender:
    network = repository.newest(repository.DEFAULT / ONNX) / "model.onnx"
    arm = f"no server, {layout}"

    def measure(load: BenchLoad) -> BenchWindow:
        return no_server(load, layout, options, _network, network)

    return Contender(arm, [BenchLoad(arm, 0)], lambda: nullcontext(measure))


def _network(path: Path, threads: int) -> Compute:
    """Open the network in this process, and return a function that computes a photo by its number."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session: Any = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (name,) = [model_input.name for model_input in session.get_inputs()]
    photos = FOOD.examples(_PHOTOS.count, _PHOTOS.seed)
    tensors = [FOOD.normalise(FOOD.pixels(photo))[np.newaxis] for photo in photos]
    right = [session.run(None, {name: tensor})[0] for tensor in tensors]

    def compute(number: int) -> None:
        photo = number % len(tensors)
        (answer,) = session.run(None, {name: tensors[photo]})
        if not np.allclose(answer, right[photo], _TOLERANCE, _TOLERANCE):
            raise WrongAnswers(f"photo {photo} has another answer on {threads} threads than before")

    return compute


@click.command(help=__doc__)
@click.option("--turns", default=3, show_default=True, type=POSITIVE, help="How often all is measured.")
@click.option("--window", "window_s", default=6.0, show_default=True, type=click.FloatRange(0.2, 60))
@click.option("--write", type=FOUND_FOLDER, help="Rewrite the part of this command in FOLDER/measuring.md.")
def foundation(turns: int, window_s: float, write: Path | None) -> None:
    options = MeasureOptions(window_s=window_s, windows=1)
    layouts = [Layout(1, 1), *full_layouts()]
    contenders = [without_server(layout, options) for layout in dict.fromkeys(layouts)]
    with bar("foundation") as tick:
        rows, left_out = run([*contenders, in_triton(options)], turns, tick)
    words = goals_table(goals(rows)) + "\n" + markdown(headings("photos"), [row.cells() for row in rows])
    PART.publish(words, turns, window_s, left_out, write)


if __name__ == "__main__":
    main(foundation)
