"""The same sentences without Triton: the served loop in Python, transformers' loop, and another server."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import torch

from generation.windows import Key, SentenceWindow, foreign
from gourmet import repository
from gourmet.measure.task import MeasureOptions
from gourmet.measure.validity import WrongAnswers
from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.answers import wait_for
from gourmet.runtime.decoding.room import GenerationRoom
from gourmet.systems.translator.network import Checkpoint
from gourmet.systems.translator.serving import SERVING, MarianEngine
from gourmet.systems.translator.translating import translate
from peers.processes import CpuUsed, spent

_ROWS: Final = 16
_WITHIN_S: Final = 60.0
_STEPS: Final = 50


def window(
    key: Key,
    effort: MeasureOptions,
    once: Callable[[int], int],
    askers: int,
    figures: Mapping[str, float],
) -> SentenceWindow:
    """`askers` threads that call `once` with 0, 1, 2 …; it says how many sentences were answered."""
    numbers, stop = itertools.count(), time.perf_counter() + effort.warm_up_s + effort.measure_s
    looks: list[tuple[float, CpuUsed]] = []
    seen: list[tuple[float, float]] = []

    def ask() -> None:
        while (sent := time.perf_counter()) < stop:
            count = once(next(numbers))
            seen.extend([(sent, time.perf_counter())] * count)

    with ThreadPoolExecutor(askers) as pool:
        asking = [pool.submit(ask) for _ in range(askers)]
        time.sleep(effort.warm_up_s)
        looks.append((time.perf_counter(), spent({}, os.getpid())))
        time.sleep(effort.measure_s)
        looks.append((time.perf_counter(), spent({}, os.getpid())))
        for each in asking:
            each.result()
    (began, before), (ended, after) = looks
    sent, done = np.array(seen).T
    inside = (done >= began) & (done < ended)
    seconds = ended - began
    return SentenceWindow.of(
        key, (done - sent)[inside], seconds, foreign([before, after], seconds), **figures
    )


class InPython:
    """The package that Triton serves, its loop in this process."""

    def __init__(self, model: str, threads: int) -> None:
        folder = repository.DEFAULT / model
        files = package.read(folder / str(repository.versions(folder)[-1]) / package.FILE)
        self._network = network = SERVING.open(files, threads)
        tokenizer = network.vocabulary
        self._room = GenerationRoom(network.engine, start=tokenizer.start, end=tokenizer.end, max_rows=_ROWS)

    def answer(self, text: str) -> str:
        return wait_for(self._network.parts(text), self._network, self._room, within_s=_WITHIN_S).text

    def close(self) -> None:
        self._room.close()

    def parts_ms(self, text: str) -> dict[str, float]:
        """What the encoder and a step take for this sentence alone."""
        return parts_ms(self._network.engine, self._network.vocabulary.encode(text))


def parts_ms(engine: MarianEngine, source: Sequence[int]) -> dict[str, float]:
    # Two rows, as the loop has them at least.
    sources = [source] * 2
    memory, mask = np.stack(engine.encode(sources)), np.ones((2, len(source)), np.int32)
    cache = np.zeros((*memory.shape[:4], 16, memory.shape[5]), np.float32)
    token, length = np.zeros(2, np.int64), np.full(2, len(source) // 2, np.int64)
    return {
        "encoder ms": _median_ms(lambda: engine.encode(sources)),
        "step ms": _median_ms(lambda: engine.step(token, length, cache, memory, mask)),
    }


def _median_ms(work: Callable[[], object]) -> float:
    moments = [time.perf_counter()]
    for _ in range(_STEPS):
        work()
        moments.append(time.perf_counter())
    return 1000 * float(np.median(np.diff(moments)))


def checked(said: Sequence[str], wanted: Sequence[str], who: str) -> None:
    """Raise WrongAnswers at the first that differs."""
    for found, right in zip(said, wanted, strict=True):
        if found != right:
            raise WrongAnswers(f"{who} answered {found!r} where it answered {right!r} alone")


class Eager:
    """transformers' generate, as many sentences at a time as clients would have under way."""

    def __init__(self, checkpoint: Checkpoint, texts: Sequence[str], at_once: int) -> None:
        torch.set_num_threads(os.cpu_count() or 1)
        self._checkpoint, self._groups = (
            checkpoint,
            [texts[first : first + at_once] for first in range(0, len(texts), at_once)],
        )
        self._right = [self._answer(group) for group in self._groups]

    @property
    def answers(self) -> list[str]:
        return [text for group in self._right for text in group]

    def once(self, number: int) -> int:
        place = number % len(self._groups)
        checked(self._answer(self._groups[place]), self._right[place], "generate")
        return len(self._groups[place])

    def _answer(self, texts: Sequence[str]) -> list[str]:
        return translate(self._checkpoint.network, self._checkpoint.tokenizer, texts)
