"""Cost and gain of serving: our backend against plain ONNX Runtime, our model.py against a lab's.

Everything is measured in the same run on the same cores, in turns; the goals' ratios are taken turn by turn,
so that a machine that gets busier in between does no arm an injustice.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from gourmet import repository
from gourmet.contracts import Array
from gourmet.measure import without_server
from gourmet.measure.comparison import goals_by_turn
from gourmet.measure.inputs import InputRows
from gourmet.measure.results import LoadSpec, Point, Requirement, Statement, median_and_range
from gourmet.measure.scenario import Arm, Points, Scenario, in_flight, own_server
from gourmet.measure.task import Addresses, Workload
from gourmet.measure.validity import WrongAnswers
from gourmet.measure.without_server import LayoutResult
from gourmet.repository.config_change import AS_IN_LABS, Change
from gourmet.runtime.files import shipped
from gourmet.systems import registry

# The models that only this repository has: those of known labs.
BASELINES: Final = shipped("benchmarks/models")
# The lab cuts its crop after shrinking, and ours runs in eight bits: where two labels are as close as this,
# the models may choose either. Measured on 256 drawings: fp32 and int8 differ up to a lead of 0.18.
_NEAR_TIE: Final = 0.2
_LEAST_AGREEMENT: Final = 0.95

ONE: Final = "one instance"
ONNX: Final = "ONNX"
DYNAMIC: Final = "ONNX, dynamic batching"
OURS: Final = "ours"
ALONE: Final = "ours, one row at a time"
LAB: Final = "reference lab"

_ABOUT: Final = (
    "What Triton adds to ONNX Runtime, and our model.py beside that of a reference lab with the same "
    "weights, on the same pictures. The ONNX arms and the raw runs have one engine, ONNX Runtime; “one "
    "instance” has one thread."
)


def scenario(name: str, python: str, onnx: str, lab: str) -> Scenario:
    """`python` and `onnx` serve the same weights; `lab` is a model of BASELINES that gets them too."""
    grpc = LoadSpec(onnx, protocol="grpc", shared_memory=True)
    alone = (LoadSpec(onnx), grpc)
    several = (
        *in_flight(onnx, 2, 4, 8),
        LoadSpec(onnx, 4, protocol="grpc"),
        replace(grpc, level=4),
        replace(grpc, level=4, batch=4),
    )
    one_instance = Change(instances=1, threads=1)
    dynamic = Change(dynamic_batching=True, delay_us=0)
    arms = (
        Arm(ONE, one_instance, alone),
        Arm(ONNX, Change(), several),
        Arm(DYNAMIC, dynamic, in_flight(onnx, 2, 8)),
        Arm(OURS, None, in_flight(python, 1, 2, 8)),
        Arm(LAB, None, in_flight(lab, 1, 2, 8)),
        Arm(ALONE, Change(), in_flight(python, 1, 2, 8)),
    )
    return Scenario(
        name,
        "The foundation",
        _ABOUT,
        arms,
        forms={python: AS_IN_LABS},
        notes=_raw_runs,
        goals=lambda points: _goals(points, alone, several),
        check=lambda workloads: _answers_agree(*(workloads[model] for model in (python, onnx, lab))),
        server=lambda: _serving(python, lab),
        beside=lambda arm, workloads: _raw(onnx, workloads[onnx].rows) if arm is arms[0] else [],
    )


def _raw_runs(points: Points) -> list[Statement]:
    """Describe the runs without a server, as a baseline."""
    statements = []
    for same in zip(*points.beside, strict=True):
        rate, p50 = ([getattr(result, name) for result in same] for name in ("runs_per_s", "p50_ms"))
        figures = f"{median_and_range(rate, '.0f')} runs/s, p50 {median_and_range(p50, '.1f')} ms"
        statements.append(Statement(f"Without a server, {same[0].layout}: {figures}."))
    return statements


def _goals(
    points: Points, alone: tuple[LoadSpec, LoadSpec], several: tuple[LoadSpec, ...]
) -> list[Requirement]:
    """Return the goals for the turns that were measured; a turn with a rejected point has no baseline."""

    def whole(arm: str, load: LoadSpec) -> list[Point]:
        turns = points.turns(arm, load)
        return turns if len(turns) == len(points.beside) else []

    raw = [layouts[0] for layouts in points.beside]
    raw_best = [max(item.runs_per_s for item in layouts) for layouts in points.beside]
    http, memory = (whole(ONE, item) for item in alone)
    served = filter(None, (whole(ONNX, item) for item in several))
    best = [max(point.rows_per_s.value for point in turn) for turn in zip(*served, strict=True)]
    ours, lab = ([p.rows_per_s.value for p in whole(arm, LoadSpec("", 8))] for arm in (OURS, LAB))
    added = {
        "added inside Triton, mean": map(lambda p, r: p.split_ms.server - r.mean_ms, http, raw),
        "added for gRPC with shared memory, p50": map(_added, memory, raw),
        "added for HTTP, p50": map(_added, http, raw),
    }
    milliseconds = [
        Requirement(f"one instance, concurrency 1: {where}", tuple(ms), 1.5, at_most=True, unit="ms")
        for where, ms in added.items()
    ]
    return [
        *(goal for goal in milliseconds if goal.per_turn),
        *goals_by_turn("best through Triton ÷ best raw", best, raw_best, wanted=0.88),
        *goals_by_turn("ours ÷ reference lab, concurrency 8", ours, lab, wanted=3.0),
    ]


def _added(served: Point, raw: LayoutResult) -> float:
    return served.latency_ms.p50 - raw.p50_ms


def _raw(onnx: str, rows: InputRows) -> list[LayoutResult]:
    """Measure one turn of every layout of ONNX Runtime without a server."""
    folder = repository.DEFAULT / onnx
    weights = folder / str(repository.versions(folder)[-1]) / "model.onnx"
    return without_server.measure(weights, {spec.name: rows.tensor(spec, (0,)) for spec in rows.inputs})


@contextmanager
def _serving(python: str, lab: str) -> Iterator[Addresses]:
    """Run a Triton with the product's models and the lab's, which gets the weights of `python`."""
    newest = repository.DEFAULT / python
    with tempfile.TemporaryDirectory(prefix="gourmet-bench-") as name:
        baselines = Path(name) / "models"
        shutil.copytree(BASELINES, baselines)
        shutil.copy2(newest / str(repository.versions(newest)[-1]) / "model.pt", baselines / lab / "1")
        with own_server((repository.DEFAULT, baselines)) as addresses:
            yield addresses


def _answers_agree(python: Workload, onnx: Workload, lab: Workload) -> str:
    """Return how often the three models give the same label; raise if they clearly disagree."""
    ours = _probabilities(python)
    labels = list(registry.classification(python.rows.info.system).labels_of(python.rows.info))
    answers = lab.answers.expected
    (name,) = [name for name in answers[0] if answers[0][name].dtype == np.object_]
    of_lab = np.array([labels.index(answer[name].item().decode()) for answer in answers])
    shares = []
    for other, chosen in ((onnx, _probabilities(onnx).argmax(axis=1)), (lab, of_lab)):
        lead = ours.max(axis=1) - ours[np.arange(len(ours)), chosen]
        shares.append(float(np.mean(lead == 0)))
        if (agreed := float(np.mean(lead < _NEAR_TIE))) < _LEAST_AGREEMENT:
            raise WrongAnswers(
                f"{other.model} agrees with {python.model} on {agreed:.0%} of the pictures, with near ties; "
                f"{_LEAST_AGREEMENT:.0%} are needed: deploy both from the same weights"
            )
    return (
        f"The answers were checked first: {onnx.model} gave the label of {python.model} for {shares[0]:.0%} "
        f"of the pictures, and the reference lab's model for {shares[1]:.0%}; other labels were near ties."
    )


def _probabilities(workload: Workload) -> Array:
    """Return the probability of each label for every row."""
    info = workload.rows.info
    outputs = {
        name: np.stack([answer[name] for answer in workload.answers.expected])
        for name in workload.answers.expected[0]
    }
    probabilities: Array = registry.classification(info.system).probabilities(outputs, info)
    return probabilities
