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
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import numpy.typing as npt
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gourmet import repository
from gourmet.bench import sweep
from gourmet.bench.inputs import DataSource
from gourmet.bench.results import LoadSpec, Point
from gourmet.bench.sweep import ServedConfigs, restored
from gourmet.bench.transports import RawReply, Request
from gourmet.bench.validity import WrongAnswers
from gourmet.bench.workload import Addresses, MeasureOptions, Workload, prepare
from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND_FOLDER, POSITIVE
from gourmet.repository.config_change import Change, changed
from gourmet.served.instances import FP32, TORCH, available_cpus
from gourmet.systems.food11.contract import SYSTEM as FOOD
from harness import (
    Contender,
    DocsPart,
    Goal,
    Measure,
    Row,
    compared,
    goals_table,
    headings,
    main,
    markdown,
    no_server,
    own_triton,
    ratio_goal,
    run,
    window_options,
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
_NO_SERVER: Final = "no server, "
ALONE: Final = f"{_NO_SERVER}1 × 1"


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return the goals whose arms were measured."""
    table = {(row.point.arm, row.point.load.level): row for row in rows}

    def added(name: str, arm: str, figure: Callable[[Point, Point], float]) -> list[Goal]:
        pair = table.get((arm, 1)), table.get((ALONE, 1))
        return compared(name, pair, 1.5, figure, at_most=True, unit="ms")

    def p50_ms(served: Point, alone: Point) -> float:
        return served.latency_ms.p50 - alone.latency_ms.p50

    def inside_ms(served: Point, alone: Point) -> float:
        return served.split_ms.server - alone.latency_ms.mean

    served = [row for row in rows if row.point.arm == SEVERAL]
    best = max(served, key=lambda row: row.point.rows_per_s.value, default=None)
    raw = [row for row in rows if row.point.arm.startswith(_NO_SERVER)]
    labs = table.get((LABS, MANY))
    return [
        *added("added inside Triton, one request at a time, mean", SINGLE, inside_ms),
        *added("added for gRPC, p50", GRPC, p50_ms),
        *added("added for HTTP, p50", SINGLE, p50_ms),
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
            names = (ONNX, PYTHON, LAB)
            with (
                own_triton((repository.DEFAULT, models), names) as server,
                restored(server, names) as configs,
            ):
                workloads = _prepared(server, configs)

                def measure(arm: str, load: LoadSpec) -> Point:
                    _, change, _ = ARMS[arm]
                    configs.serve(load.model, changed(configs.usual[load.model], change))
                    return sweep.measure(workloads[load.model], load, server, options)

                yield measure

    loads = [(arm, replace(spec, level=level)) for arm, (spec, _, levels) in ARMS.items() for level in levels]
    return Contender("Triton", loads, start)


def _prepared(server: Addresses, configs: ServedConfigs) -> dict[str, Workload]:
    """Return the workloads by model; raise WrongAnswers unless the labels agree."""
    configs.serve(PYTHON, changed(configs.usual[PYTHON], AS_IN_LABS))
    workloads = {model: prepare(model, server, _PHOTOS) for model in configs.usual}
    ours, labs = (workloads[model].answers.expected for model in (PYTHON, LAB))
    same = np.mean(
        [a["FOOD_LABEL"].item() == b["FOOD_LABEL"].item() for a, b in zip(ours, labs, strict=True)]
    )
    if same < _LEAST_AGREEMENT:
        raise WrongAnswers(f"the lab's model gives the label of ours for {same:.0%} of the photos only")
    return workloads


def without_server(sessions: int, threads: int, options: MeasureOptions) -> Contender:
    network = repository.newest(repository.DEFAULT / ONNX) / "model.onnx"
    arm = f"{_NO_SERVER}{sessions} × {threads}"

    def measure(_arm: str, _load: LoadSpec) -> Point:
        compute = opened(network, 1)
        right = [compute(photo) for photo in range(_PHOTOS.count)]

        def check(request: Request, reply: RawReply) -> None:
            for photo, answer in zip(request.body, reply.body, strict=True):
                if not np.allclose(answer, right[photo], _TOLERANCE, _TOLERANCE):
                    raise WrongAnswers(f"photo {photo} has another answer on {threads} threads")

        return no_server(sessions, options, check, _PHOTOS.count, opened, network, threads)

    return Contender(arm, [(arm, LoadSpec("", sessions))], lambda: nullcontext(measure))


def opened(path: Path, threads: int) -> Callable[[int], npt.NDArray[Any]]:
    """Open the network in this process, and return a function that computes a photo by its number."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session: Any = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (name,) = [model_input.name for model_input in session.get_inputs()]
    photos = FOOD.examples(_PHOTOS.count, _PHOTOS.seed)
    tensors = [FOOD.normalise(FOOD.pixels(photo))[np.newaxis] for photo in photos]
    return lambda photo: session.run(None, {name: tensors[photo]})[0]


@click.command(help=__doc__)
@click.option("--turns", default=3, show_default=True, type=POSITIVE, help="How often all is measured.")
@click.option("--window", "window_s", default=6.0, show_default=True, type=click.FloatRange(0.2, 60))
@click.option("--write", type=FOUND_FOLDER, help="Rewrite the part of this command in FOLDER/measuring.md.")
def foundation(turns: int, window_s: float, write: Path | None) -> None:
    options, cpus = window_options(window_s), available_cpus()
    layouts = dict.fromkeys([(1, 1), (1, cpus), (cpus, 1)])
    contenders = [without_server(*layout, options) for layout in layouts]
    with bar("foundation") as tick:
        rows, left_out = run([*contenders, in_triton(options)], turns, tick)
    words = goals_table(goals(rows)) + "\n" + markdown(headings("photos"), [row.cells() for row in rows])
    PART.publish(words, turns, window_s, left_out, write)


if __name__ == "__main__":
    main(foundation)
