"""Measure what Triton adds to ONNX Runtime, and our model.py beside food_first, which is as labs write it.

    .venv/bin/python -P benchmarks/foundation.py

Everything is measured on the same cores and photos, in turns, and every answer is checked. The arms of ONNX
Runtime have the same file with Triton and without a server.
"""

from __future__ import annotations

import sys
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

from gourmet.bench import sweep
from gourmet.bench.inputs import DataSource
from gourmet.bench.results import LoadSpec, Point
from gourmet.bench.sweep import restored
from gourmet.bench.transports import RawReply, Request
from gourmet.bench.validity import WrongAnswers
from gourmet.bench.workload import MeasureOptions, prepare
from gourmet.commands.progress import bar
from gourmet.commands.values import POSITIVE
from gourmet.repository.config_change import Change, changed
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.repository.versions import newest_version
from gourmet.served.instances import available_cpus
from gourmet.systems.food11.contract import SYSTEM as FOOD
from harness import (
    Contender,
    Goal,
    Measure,
    Row,
    compared,
    main,
    measure_in_turns,
    no_server,
    own_triton,
    publish,
    ratio_goal,
    window_options,
)

ONNX: Final = "food_classifier_onnx"
MANY: Final = 8
_PHOTOS: Final = DataSource(32)
_ONE: Final = Change(instances=1, threads=1)
_UNBATCHED: Final = Change(dynamic_batching=False)
_TOLERANCE: Final = 1e-3

# The arms of Triton by name: the model, the change of its config, and the requests in flight.
SINGLE, GRPC, SEVERAL = "ONNX, one instance", "ONNX, one instance, gRPC", "ONNX"
OURS, LABS = "our model.py", "a model.py as labs write it"
ARMS: Final[dict[str, tuple[LoadSpec, Change, Sequence[int]]]] = {
    SINGLE: (LoadSpec(ONNX), _ONE.over(_UNBATCHED), (1,)),
    GRPC: (LoadSpec(ONNX, protocol="grpc"), _ONE.over(_UNBATCHED), (1,)),
    SEVERAL: (LoadSpec(ONNX), _UNBATCHED, (2, 4, MANY)),
    OURS: (LoadSpec("food_classifier"), Change(), (1, MANY)),
    LABS: (LoadSpec("food_first"), Change(), (1, MANY)),
}
_NO_SERVER: Final = "no server, "
ALONE: Final = f"{_NO_SERVER}1 × 1"


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return the goals whose arms were measured."""
    table = {(row.arm, row.load.level): row for row in rows}

    def added(name: str, arm: str, figure: Callable[[Point, Point], float]) -> list[Goal]:
        pair = table.get((arm, 1)), table.get((ALONE, 1))
        return compared(name, pair, 1.5, figure, at_most=True, unit="ms")

    def p50_ms(served: Point, alone: Point) -> float:
        return served.latency_ms.p50 - alone.latency_ms.p50

    def inside_ms(served: Point, alone: Point) -> float:
        return served.split_ms.server - alone.latency_ms.mean

    served = [row for row in rows if row.arm == SEVERAL]
    best = max(served, key=lambda row: row.point.rows_per_s.value, default=None)
    raw = [row for row in rows if row.arm.startswith(_NO_SERVER)]
    labs = table.get((LABS, MANY))
    return [
        *added("added inside Triton, one request at a time, mean", SINGLE, inside_ms),
        *added("added for gRPC, p50", GRPC, p50_ms),
        *added("added for HTTP, p50", SINGLE, p50_ms),
        *ratio_goal("best through Triton ÷ best without a server", best, raw, 0.88),
        *ratio_goal(f"our model.py ÷ one as labs write it, c={MANY}", table.get((OURS, MANY)), [labs], 2.0),
    ]


def in_triton(options: MeasureOptions) -> Contender:
    """Return the contender of all arms of one Triton."""

    @contextmanager
    def start() -> Iterator[Measure]:
        models = {spec.model for spec, *_ in ARMS.values()}
        with (
            own_triton((DEFAULT_REPOSITORY,), sorted(models)) as server,
            restored(server, models) as configs,
        ):
            workloads = {model: prepare(model, server, _PHOTOS) for model in models}

            def measure(arm: str, load: LoadSpec) -> Point:
                _, change, _ = ARMS[arm]
                configs.serve(load.model, changed(configs.usual[load.model], change))
                return sweep.measure(workloads[load.model], load, server, options)

            yield measure

    loads = [(arm, replace(spec, level=level)) for arm, (spec, _, levels) in ARMS.items() for level in levels]
    return Contender("Triton", loads, start)


def without_server(sessions: int, threads: int, options: MeasureOptions) -> Contender:
    network = newest_version(DEFAULT_REPOSITORY / ONNX) / "model.onnx"
    arm = f"{_NO_SERVER}{sessions} × {threads}"

    def measure(_arm: str, _load: LoadSpec) -> Point:
        compute = opened(network, 1)
        right = [compute(photo) for photo in range(_PHOTOS.count)]

        def check_reply(request: Request, reply: RawReply) -> None:
            for photo, answer in zip(request.body, reply.body, strict=True):
                if not np.allclose(answer, right[photo], _TOLERANCE, _TOLERANCE):
                    raise WrongAnswers(f"photo {photo} has another answer on {threads} threads")

        return no_server(sessions, options, check_reply, _PHOTOS.count, opened, network, threads)

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
def foundation(turns: int, window_s: float) -> None:
    options, cpus = window_options(window_s), available_cpus()
    layouts = dict.fromkeys([(1, 1), (1, cpus), (cpus, 1)])
    contenders = [without_server(*layout, options) for layout in layouts]
    with bar("foundation") as tick:
        rows, left_out = measure_in_turns([*contenders, in_triton(options)], turns, tick)
    publish("What Triton adds", f"{_PHOTOS.count} drawn photos", rows, goals(rows), left_out)


if __name__ == "__main__":
    main(foundation)
