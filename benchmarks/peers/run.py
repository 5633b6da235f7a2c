"""All contenders on all photos at all concurrencies, in turns: A B C … A B C …"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from gourmet import repository
from gourmet.measure.without_server import usual_layouts
from gourmet.pictures.classifier import Floats
from gourmet.runtime.instances import available_cpus
from gourmet.runtime.openvino_network import ONNX_RUNTIME
from gourmet.systems.food11 import contract
from peers import contenders, expected, limit, venv, windows
from peers.contenders import Contender
from peers.expected import Model
from peers.photo_sets import PhotoSet, draw
from peers.traffic import ClosedLoop, Endpoint, Recording, drive
from peers.windows import ContenderWindow

# A window in which others took more of the machine than this is measured again, at most so many times.
QUIET_CORES: Final = 0.1
_TRIES: Final = 3

Step = Callable[[float, str], None]


@dataclass(frozen=True)
class _Way:
    """How an answer comes about, which decides what is right."""

    model: str
    plainly: bool  # decoded at full size
    engine: str

    @classmethod
    def of(cls, arm: Contender, models: Path) -> _Way:
        served = Model.served(arm.model, models)
        return cls(arm.model, arm.decodes_plainly, served.engine if arm.role == "ours" else ONNX_RUNTIME)


_Rows = dict[tuple[str, _Way], Floats]  # by what the photos are called


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    arms: tuple[str, ...] = tuple(contenders.CONTENDERS)
    photos: tuple[str, ...] = ("small", "phone")
    concurrencies: tuple[int, ...] = (1, 8, 32)
    turns: int = 3
    window_s: float = 3.0
    warm_up_s: float = 0.7
    models: Path = repository.DEFAULT

    @property
    def steps(self) -> int:
        """How many times `measure` says what begins."""
        limits = sum(contenders.CONTENDERS[key].role == "limit" for key in self.arms)
        return 2 + self.turns * len(self.photos) * (
            (len(self.arms) - limits) * len(self.concurrencies) + limits
        )


@dataclass(frozen=True)
class Comparison:
    """Every window, what the photos were, and who could not take part and why."""

    plan: Plan
    photos: tuple[str, ...]
    windows: tuple[ContenderWindow, ...]
    left_out: dict[str, str]
    decoding: tuple[str, ...]


def measure(plan: Plan, on_step: Step) -> Comparison:
    """Run the plan; raise WrongAnswers if a single answer of anybody is wrong."""
    return _Bench(plan, on_step).run()


class _Bench:
    def __init__(self, plan: Plan, on_step: Step) -> None:
        self._plan, self._on_step, self._done = plan, on_step, 0
        self._windows: list[ContenderWindow] = []
        self._left_out: dict[str, str] = {}
        self._programs: Path | None = None
        # On a machine that is never quiet the run has to end all the same.
        self._repeats = plan.steps // 3

    def run(self) -> Comparison:
        chosen = [contenders.CONTENDERS[key] for key in self._plan.arms]
        if any(arm.role == "peer" for arm in chosen):
            self._programs = venv.ensure(lambda words: self._on_step(0.0, words))
        self._step("drawing photos")
        sets = draw(self._plan.photos)
        self._step("what each photo's answer must be")
        rows = _expected(chosen, sets, self._plan.models)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context, initializer=_keep, initargs=(sets,)) as client:
            for turn in range(self._plan.turns):
                for arm in chosen:
                    if arm.key not in self._left_out:
                        self._take_turn(arm, turn, sets, rows, client)
        return Comparison(
            self._plan,
            tuple(str(drawn) for drawn in sets.values()),
            tuple(self._windows),
            self._left_out,
            tuple(_differences(rows)),
        )

    def _take_turn(
        self, arm: Contender, turn: int, sets: dict[str, PhotoSet], rows: _Rows, client: ProcessPoolExecutor
    ) -> None:
        way = _Way.of(arm, self._plan.models)
        if arm.role == "limit":
            for name, drawn in sets.items():
                self._step(f"turn {turn + 1} of {self._plan.turns}: {arm.words}, {name} photos")
                self._windows.append(self._limit(arm, turn, drawn, rows[name, way]))
            return
        self._on_step(self._done / self._plan.steps, f"turn {turn + 1}: starting {arm.words}")
        try:
            with contenders.serving(arm, self._programs, self._plan.models) as endpoint:
                for name in sets:
                    right = rows[name, way]
                    for concurrency in self._plan.concurrencies:
                        self._step(f"turn {turn + 1}: {arm.words}, {name} photos, {concurrency} at a time")
                        load = ClosedLoop(concurrency, self._plan.warm_up_s, self._plan.window_s)
                        self._windows.append(self._quietest(arm, turn, name, endpoint, load, right, client))
        except contenders.DidNotStart as exc:
            if turn:
                raise
            self._left_out[arm.key] = str(exc)

    def _quietest(
        self,
        arm: Contender,
        turn: int,
        photos: str,
        endpoint: Endpoint,
        load: ClosedLoop,
        right: Floats,
        client: ProcessPoolExecutor,
    ) -> ContenderWindow:
        """The window that others disturbed least, of as many as it takes until one was quiet."""
        tried: list[ContenderWindow] = []
        while True:
            traffic = client.submit(_drive, photos, endpoint, load, os.getpid()).result()
            tried.append(windows.summarise(arm, photos, turn, load, traffic, right))
            best = min(tried, key=lambda window: window.foreign_cores)
            if best.foreign_cores <= QUIET_CORES or len(tried) == _TRIES or not self._repeats:
                return best
            self._repeats -= 1

    def _limit(self, arm: Contender, turn: int, drawn: PhotoSet, right: Floats) -> ContenderWindow:
        model = Model.served(arm.model, self._plan.models)
        ways = [way for way in usual_layouts(available_cpus()) if way.sessions * way.threads > 1]
        runs = [
            limit.measure(model, drawn.photos, right, way, self._plan.window_s, os.getpid())
            for way in ways or usual_layouts(1)
        ]
        best = max(runs, key=lambda run: run.photos_per_s)
        return ContenderWindow(
            arm.key,
            drawn.name,
            best.layout.sessions,
            turn,
            len(best.latencies_s) / best.photos_per_s,
            best.latencies_s,
            cpu_ms={"process": 1000 * best.cpu_s_per_photo},
            foreign_cores=best.foreign_cores,
            how=f"best of {', '.join(f'{run.layout}: {run.photos_per_s:.0f}/s' for run in runs)}",
        )

    def _step(self, words: str) -> None:
        self._on_step(self._done / self._plan.steps, words)
        self._done += 1


def _expected(chosen: Sequence[Contender], sets: dict[str, PhotoSet], models: Path) -> _Rows:
    """The right answers of everybody's way, and of ONNX Runtime on our decoding to tell them from."""
    plain = expected.plain_decode()
    wanted = {_Way.of(arm, models) for arm in chosen}
    wanted |= {_Way(arm.model, False, ONNX_RUNTIME) for arm in chosen}
    return {
        (name, way): expected.rows(
            Model.served(way.model, models),
            drawn.photos,
            plain if way.plainly else contract.SYSTEM.pixels,
            way.engine,
        )
        for name, drawn in sets.items()
        for way in sorted(wanted, key=str)
    }


def _differences(rows: _Rows) -> list[str]:
    """How far our decoding, and our engine, change answers."""
    said = []
    for (name, way), theirs in rows.items():
        usual = _Way(way.model, False, ONNX_RUNTIME)
        if way == usual:
            continue
        ours = rows[name, usual]
        same = int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
        apart = np.abs(ours - theirs).max(axis=1)
        what = "decoded plainly" if way.plainly else f"run by {way.engine}"
        said.append(
            f"{name} photos, {way.model}, {what}: the same label for {same} of {len(ours)}; probabilities "
            f"apart by {np.median(apart):.4f} in the median and {apart.max():.4f} at most"
        )
    return said


_sets: dict[str, PhotoSet] = {}


def _keep(sets: dict[str, PhotoSet]) -> None:
    """In the client's process, once: photos of megabytes are not to be handed over for every window."""
    _sets.update(sets)


def _drive(photos: str, endpoint: Endpoint, load: ClosedLoop, bench: int) -> Recording:
    return drive(endpoint, _sets[photos].photos, load, bench)
