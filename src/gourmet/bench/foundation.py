"""What serving costs and what it gains: our backend against raw ONNX Runtime, our model.py against a lab's.

Everything is measured in the same run on the same cores, in turns, so that a machine that gets busier
in between wrongs nobody; the ratios are taken turn by turn. No figure is reported unless the models
gave the right answers first.
"""

from __future__ import annotations

import base64
import json
import shutil
import statistics
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import tritonclient.http as triton_http

from gourmet import repository
from gourmet.bench import perf_analyzer, raw_onnx
from gourmet.bench.perf_analyzer import Load, Measurement
from gourmet.bench.trust import WrongAnswers
from gourmet.config_change import Change, as_json, as_pbtxt, changed
from gourmet.serving.asking import triton
from gourmet.serving.ports import free_ports
from gourmet.serving.triton_server import TritonOptions, TritonServer
from gourmet.systems.food11 import contract
from gourmet.systems.food11.drawn_photos import photos
from gourmet.systems.openvino_network import ONNX_RUNTIME

BASELINES: Final = Path(__file__).resolve().parents[3] / "benchmarks" / "models"
OURS: Final = "food_classifier"
LAB: Final = "food_reference_lab"
ONNX: Final = "food_classifier_onnx"
ONE: Final = "food_onnx_one_instance"
OURS_ALONE: Final = "food_classifier_one_by_one"
ONNX_DYNAMIC: Final = "food_onnx_dynamic"
# Copies of a served model under another name, each with one thing changed.
_VARIANTS: Final = {
    # What our backend adds shows only beside the same engine.
    ONE: (ONNX, Change(instances=1, threads=1, engine=ONNX_RUNTIME)),
    OURS_ALONE: (OURS, Change(dynamic_batching=False)),
    ONNX_DYNAMIC: (ONNX, Change(dynamic_batching=True, delay_us=0, engine=ONNX_RUNTIME)),
}
_SEED: Final = 5
_PHOTOS: Final = 64
# The lab's crop is cut after shrinking and not before, so a photo between two classes may go either way.
_LEAST_AGREEMENT: Final = 0.95


@dataclass(frozen=True)
class Goal:
    """A figure per turn, and what it should reach."""

    what: str
    per_turn: tuple[float, ...]
    wanted: float
    at_most: bool = False
    unit: str = "×"

    @property
    def median(self) -> float:
        return statistics.median(self.per_turn)

    @property
    def met(self) -> bool:
        return self.median <= self.wanted if self.at_most else self.median >= self.wanted


@dataclass(frozen=True)
class Results:
    """Every measurement of every turn, by the arm's name."""

    raw: tuple[raw_onnx.RawReport, ...]
    arms: dict[str, tuple[Measurement, ...]]
    label_agreement: float

    def _added_ms(self) -> dict[str, tuple[float, ...]]:
        """What one instance adds to a raw call: inside Triton, and as seen by two kinds of client."""
        http, shared = self.arms[f"{ONE} http c=1"], self.arms[f"{ONE} grpc c=1 shared memory"]
        raw = [report.single for report in self.raw]

        def added(served: Iterable[float], raw_ms: Iterable[float]) -> tuple[float, ...]:
            return tuple(ours - theirs for ours, theirs in zip(served, raw_ms, strict=True))

        return {
            "added inside Triton, mean": added((m.server_ms for m in http), (r.mean_ms for r in raw)),
            "added for gRPC with shared memory, p50": added(
                (m.p50_ms for m in shared), (r.p50_ms for r in raw)
            ),
            "added for HTTP, p50": added((m.p50_ms for m in http), (r.p50_ms for r in raw)),
        }

    def goals(self) -> list[Goal]:
        best = [
            max(self.arms[name][turn].rows_per_s for name in self.arms if name.startswith(f"{ONNX} "))
            for turn in range(len(self.raw))
        ]
        raw_best = [raw.best.runs_per_s for raw in self.raw]
        ours, lab = (self.arms[f"{model} http c=8"] for model in (OURS, LAB))
        return [
            *(
                Goal(f"one instance, concurrency 1: {where}", added_ms, 1.5, at_most=True, unit="ms")
                for where, added_ms in self._added_ms().items()
            ),
            Goal("best through Triton ÷ best raw", _ratios(best, raw_best), 0.88),
            Goal(
                "food_classifier ÷ reference lab, concurrency 8",
                _ratios([m.rows_per_s for m in ours], [m.rows_per_s for m in lab]),
                3.0,
            ),
        ]


def measure(
    turns: int, window_ms: int, on_step: Callable[[str], None], models: Path = repository.DEFAULT
) -> Results:
    """Run all arms `turns` times, one after another; `on_step` is told what begins."""
    pictures = photos(_PHOTOS, width=400, height=300, seed=_SEED)
    weights = models / ONNX / str(repository.versions(models / ONNX)[-1]) / "model.onnx"
    feeds = {"input": contract.encode(pictures[0], "FP32")}
    with (
        tempfile.TemporaryDirectory(prefix="gourmet-bench-") as name,
        _serving(models, Path(name)) as options,
    ):
        on_step("checking the answers")
        agreement = _check_answers(options.http_url, pictures)
        data = _input_file(Path(name) / "photos.json", pictures)
        loads = _loads(options, data, window_ms)
        raw: list[raw_onnx.RawReport] = []
        arms: dict[str, list[Measurement]] = {arm: [] for arm in loads}
        for turn in range(turns):
            on_step(f"turn {turn + 1} of {turns}: raw onnxruntime")
            raw.append(raw_onnx.measure(weights, feeds, turns=1))
            for arm, load in loads.items():
                on_step(f"turn {turn + 1} of {turns}: {arm}")
                arms[arm].append(perf_analyzer.measure(load))
    return Results(tuple(raw), {arm: tuple(measured) for arm, measured in arms.items()}, agreement)


def steps(turns: int) -> int:
    """How many times `measure` calls on_step."""
    return 1 + turns * (1 + len(_loads(TritonOptions(()), Path(), 0)))


def _loads(options: TritonOptions, data: Path, window_ms: int) -> dict[str, Load]:
    def load(model: str, protocol: Any, concurrency: int, **more: Any) -> tuple[str, Load]:
        url = options.http_url if protocol == "http" else options.grpc_url
        name = f"{model} {protocol} c={concurrency}"
        name += " shared memory" if "shared_memory" in more else ""
        name += f" b={more['batch']}" if "batch" in more else ""
        # A busy machine's windows may never agree; the spread over the turns says how much they differ.
        return name, Load(
            model,
            url,
            protocol,
            concurrency,
            window_ms=window_ms,
            max_windows=8,
            stability_percent=30,
            **more,
        )

    return dict(
        [
            load(ONE, "http", 1),
            load(ONE, "grpc", 1, shared_memory=True),
            load(ONNX, "http", 2),
            load(ONNX, "http", 4),
            load(ONNX, "http", 8),
            load(ONNX, "grpc", 4),
            load(ONNX, "grpc", 4, shared_memory=True),
            load(ONNX, "grpc", 4, shared_memory=True, batch=4),
            *(load(ONNX_DYNAMIC, "http", c) for c in (2, 8)),
            *(load(model, "http", c, input_data=data) for c in (1, 2, 8) for model in (OURS, LAB)),
            *(load(OURS_ALONE, "http", c, input_data=data) for c in (1, 2, 8)),
        ]
    )


@contextmanager
def _serving(models: Path, folder: Path) -> Iterator[TritonOptions]:
    """A Triton with the product's models, the variants of them, and the lab's."""
    baselines = folder / "baselines"
    shutil.copytree(BASELINES, baselines)
    newest = models / OURS / str(repository.versions(models / OURS)[-1])
    shutil.copy2(newest / "model.pt", baselines / LAB / "1")
    for name, (model, change) in _VARIANTS.items():
        shutil.copytree(models / model, baselines / name)
        config = changed(as_json(repository.read_config(models / model)), change)
        (baselines / name / "config.pbtxt").write_text(as_pbtxt({**config, "name": name}))
    http, grpc, metrics = free_ports(3)
    options = TritonOptions((models, baselines), http_port=http, grpc_port=grpc, metrics_port=metrics)
    log: list[str] = []
    with TritonServer(options, log.append) as server:
        server.wait_until_live()
        yield options


def _check_answers(url: str, pictures: list[bytes]) -> float:
    """How often the lab's model and ours give the same label; raise where they clearly should and do not."""
    with triton(url) as client:
        ours = [_food(client, OURS, picture) for picture in pictures]
        labs = [_food(client, LAB, picture) for picture in pictures]
        logits = np.concatenate([_logits(client, picture) for picture in pictures])
        temperature = float(client.get_model_config(ONNX)["parameters"]["temperature"]["string_value"])
    onnx = contract.softmax(logits, temperature)
    if [label for label, _ in ours] != [contract.LABELS[best] for best in onnx.argmax(axis=1)]:
        raise WrongAnswers(f"{OURS} and {ONNX} give different labels: deploy both from the same weights")
    agreement = float(np.mean([mine[0] == theirs[0] for mine, theirs in zip(ours, labs, strict=True)]))
    if agreement < _LEAST_AGREEMENT:
        raise WrongAnswers(f"{OURS} and {LAB} agree on {agreement:.0%} of the photos only: measure neither")
    return agreement


def _food(client: Any, model: str, picture: bytes) -> tuple[str, float]:
    tensor = triton_http.InferInput("INPUT_IMAGE", [1, 1], "BYTES")
    tensor.set_data_from_numpy(contract.encode(picture, "BYTES"))
    answer = client.infer(model, [tensor])
    return answer.as_numpy("FOOD_LABEL")[0, 0].decode(), float(answer.as_numpy("PROBABILITY")[0, 0])


def _logits(client: Any, picture: bytes) -> contract.Floats:
    values = contract.encode(picture, "FP32")
    tensor = triton_http.InferInput("input", list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    return np.asarray(client.infer(ONNX, [tensor]).as_numpy("output"))


def _input_file(path: Path, pictures: list[bytes]) -> Path:
    """The photos as perf_analyzer takes them: a string tensor as Triton lays it out, length before bytes."""
    laid_out = [struct.pack("<I", len(picture)) + picture for picture in pictures]
    rows = [{"INPUT_IMAGE": {"b64": base64.b64encode(blob).decode()}} for blob in laid_out]
    path.write_text(json.dumps({"data": rows}))
    return path


def _ratios(ours: list[float], theirs: list[float]) -> tuple[float, ...]:
    return tuple(mine / their for mine, their in zip(ours, theirs, strict=True))
