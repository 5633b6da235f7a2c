"""What ONNX Runtime does by itself on this machine, without a server: the bar a served model is held to.

Every arm runs in fresh processes that start together; arms take turns, so that a machine that gets
slower or busier in between wrongs none of them; and all arms must give the same answer.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.errors import GourmetError
from gourmet.systems.instances import available_cpus

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]

_WARM_UP_RUNS: Final = 10
# Two ways to share a product among threads round differently; more than this is a different answer.
_RELATIVE_TOLERANCE: Final = 1e-3
_ABSOLUTE_TOLERANCE: Final = 1e-4


class RawOnnxError(GourmetError):
    """The model cannot be run raw, or its answers depend on how it is run."""


@dataclass(frozen=True)
class Arm:
    """One way to use the machine: so many processes, each with one session of so many threads."""

    processes: int
    threads: int

    def __str__(self) -> str:
        return f"{_count(self.processes, 'session')} × {_count(self.threads, 'thread')}"


@dataclass(frozen=True)
class ArmResult:
    """How one arm did over all its turns; latencies are of single runs."""

    arm: Arm
    runs: int
    runs_per_s: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True)
class RawReport:
    """All arms, the first of them one session on one thread."""

    model: Path
    arms: tuple[ArmResult, ...]

    @property
    def single(self) -> ArmResult:
        return self.arms[0]

    @property
    def best(self) -> ArmResult:
        """The arm with the highest throughput."""
        return max(self.arms, key=lambda result: result.runs_per_s)


@dataclass(frozen=True)
class Turn:
    """What one process saw in one turn: when it began and ended, each run's seconds, its answer."""

    started: float
    ended: float
    latencies_s: Array
    answer: list[Array]


def usual_arms(cpus: int) -> tuple[Arm, ...]:
    """One session on one thread, one session on all CPUs, one session per CPU."""
    return (Arm(1, 1),) if cpus == 1 else (Arm(1, 1), Arm(1, cpus), Arm(cpus, 1))


def measure(
    model: Path,
    feeds: Feeds,
    *,
    seconds: float = 3.0,
    turns: int = 3,
    arms: Sequence[Arm] | None = None,
    on_turn: Callable[[Arm], None] = lambda _arm: None,
) -> RawReport:
    """Run `model` on `feeds` for `turns` turns of `seconds` in every arm; `on_turn` is told of each."""
    if not model.is_file():
        raise RawOnnxError(f"there is no ONNX file at {model}")
    chosen = tuple(arms or usual_arms(available_cpus()))
    seen: dict[Arm, list[list[Turn]]] = {arm: [] for arm in chosen}
    for _ in range(turns):
        for arm in chosen:
            on_turn(arm)
            seen[arm].append(_take_turn(model, feeds, arm, seconds))
    _check_answers(seen)
    return RawReport(model, tuple(summarise(arm, seen[arm]) for arm in chosen))


def summarise(arm: Arm, turns: Sequence[Sequence[Turn]]) -> ArmResult:
    """The result of an arm out of what its processes saw in each turn."""
    latencies_ms = 1000 * np.concatenate([seen.latencies_s for turn in turns for seen in turn])
    wall_s = sum(max(seen.ended for seen in turn) - min(seen.started for seen in turn) for turn in turns)
    p50, p95, p99 = (float(value) for value in np.percentile(latencies_ms, (50, 95, 99)))
    return ArmResult(
        arm, latencies_ms.size, latencies_ms.size / wall_s, float(latencies_ms.mean()), p50, p95, p99
    )


def _take_turn(model: Path, feeds: Feeds, arm: Arm, seconds: float) -> list[Turn]:
    # Spawned, not forked: the caller may hold threads and locks, and each arm shall start alike.
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        together = manager.Barrier(arm.processes)
        with ProcessPoolExecutor(arm.processes, mp_context=context) as pool:
            asked = [
                pool.submit(_work, model, dict(feeds), arm.threads, seconds, together)
                for _ in range(arm.processes)
            ]
            return [future.result() for future in asked]


def _work(model: Path, feeds: dict[str, Array], threads: int, seconds: float, together: Any) -> Turn:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # what goes wrong is raised
    try:
        session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        answer = [session.run(None, feeds) for _ in range(_WARM_UP_RUNS)][-1]
    except Exception as exc:
        together.abort()
        raise RawOnnxError(f"{model} cannot be run by ONNX Runtime: {exc}") from exc
    together.wait(timeout=120)
    latencies = []
    started = now = time.perf_counter()
    while now - started < seconds:
        session.run(None, feeds)
        before, now = now, time.perf_counter()
        latencies.append(now - before)
    return Turn(started, now, np.array(latencies), answer)


def _check_answers(seen: Mapping[Arm, Sequence[Sequence[Turn]]]) -> None:
    answers = [(arm, turn.answer) for arm, turns in seen.items() for turn_ in turns for turn in turn_]
    first, expected = answers[0]
    for arm, answer in answers[1:]:
        for ours, theirs in zip(answer, expected, strict=True):
            if not _same(ours, theirs):
                raise RawOnnxError(f"{arm} and {first} answer the same input differently: measure neither")


def _same(ours: Array, theirs: Array) -> bool:
    if not np.issubdtype(ours.dtype, np.number):
        return bool(np.array_equal(ours, theirs))
    return bool(np.allclose(ours, theirs, rtol=_RELATIVE_TOLERANCE, atol=_ABSOLUTE_TOLERANCE))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
