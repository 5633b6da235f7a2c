"""Translate the sentences without a server: the served loop in Python, and transformers' loop."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from generation.sentences import BenchExamples, Sentences, same_as_alone
from gourmet import repository
from gourmet.measure.async_client import Load
from gourmet.measure.results import LoadSpec
from gourmet.measure.transports import RawReply, Request
from gourmet.runtime.decoding.answers import AnswerJob, GenerationServing, Parts
from gourmet.runtime.decoding.engine import Engine
from gourmet.runtime.decoding.loop import Row
from gourmet.runtime.decoding.room import GenerationRoom
from gourmet.runtime.instances import available_cpus
from gourmet.systems.translator.contract import TEXT
from gourmet.systems.translator.evaluate import translate
from gourmet.systems.translator.serving import SERVING
from harness.run import Contender, Measure
from harness.windows import BenchLoad, BenchWindow, Meter, window

PYTHON: Final = "in Python, no server"
EAGER: Final = "transformers' generate, no server"
# What it takes to make rows of a request, to encode one, and to go a step.
READING_MS, ENCODER_MS, STEP_MS = "reading ms", "encoder ms", "step ms"

_LEVELS: Final = (1, 8)
_ROWS: Final = 16
_WITHIN_S: Final = 60.0
_STEPS: Final = 50
_SO_FAR: Final = 5  # words of the answer that is in the middle of a step


def contenders(sentences: Sentences) -> list[Contender]:
    cpus = available_cpus()
    return [
        *(
            in_python(sentences, threads, SERVING, repository.served_package("translator"), TEXT, _LEVELS)
            for threads in sorted({1, cpus})
        ),
        eager(sentences),
    ]


class InThreads:
    """Calls a function of this process in its own threads."""

    def __init__(self, answer: Callable[[Any], Any], threads: int) -> None:
        self._answer, self._pool = answer, ThreadPoolExecutor(threads)

    async def send(self, request: Request) -> RawReply:
        loop = asyncio.get_running_loop()
        return RawReply({}, await loop.run_in_executor(self._pool, self._answer, request.body))

    async def close(self) -> None:
        self._pool.shutdown()


def in_python(
    examples: BenchExamples,
    threads: int,
    serving: GenerationServing,
    files: Mapping[str, bytes],
    input_name: str,
    levels: Sequence[int],
) -> Contender:
    """Return the contender with Triton's package in this process; `input_name` is the example's input."""
    arm = f"{PYTHON}, threads: {threads}"

    @contextmanager
    def start() -> Iterator[Measure]:
        network = serving.open(files, threads)
        words = network.vocabulary
        room = GenerationRoom(network.engine, start=words.start, end=words.end, max_rows=_ROWS)

        def say(example: str | bytes) -> str:
            (parts,) = network.requested({input_name: [example]})
            done = threading.Event()
            job = AnswerJob(parts, network, lambda *_: done.set(), deadline=time.monotonic() + _WITHIN_S)
            room.submit(job.rows)
            done.wait()
            if job.error:
                raise job.error
            return job.whole().text

        try:
            alone = [*map(say, examples.examples)]
            middle = sorted(examples.examples, key=len)[len(examples.examples) // 2]
            read = partial(network.requested, {input_name: [middle]})
            figures = {**_parts_ms(network.engine, read), **examples.agreement(arm, alone)}
            requests = [Request((number,), example) for number, example in enumerate(examples.examples)]

            def check(request: Request, reply: RawReply) -> None:
                same_as_alone(arm, reply.body, alone[request.rows[0]])

            def measure(load: BenchLoad) -> BenchWindow:
                wire = InThreads(say, load.level)
                return window(load, wire, requests, check, examples.options, figures=figures)

            yield measure
        finally:
            room.close()

    return Contender(arm, [BenchLoad(arm, examples.system, level) for level in levels], start)


def eager(sentences: Sentences) -> Contender:
    """Return the contender with transformers' generate, on as many sentences at a time as clients."""
    network, tokenizer = sentences.checkpoint.network, sentences.checkpoint.tokenizer

    def measure(load: BenchLoad) -> BenchWindow:
        torch.set_num_threads(os.cpu_count() or 1)
        texts = sentences.texts
        groups = [texts[first : first + load.level] for first in range(0, len(texts), load.level)]
        right = [translate(network, tokenizer, group) for group in groups]

        def check(request: Request, reply: RawReply) -> None:
            for answer, alone in zip(reply.body, right[request.rows[0]], strict=True):
                same_as_alone(EAGER, answer, alone)

        agreement = sentences.agreement(EAGER, [text for group in right for text in group])
        requests = itertools.cycle([Request((number,), group) for number, group in enumerate(groups)])
        wire, meter = InThreads(partial(translate, network, tokenizer), 1), Meter()
        times = sentences.options.warm_up_s, sentences.options.measure_s
        traffic = Load(wire, requests, LoadSpec(EAGER), check, *times, meter.look).run()
        return meter.window(load, traffic, agreement, counts=lambda request: len(request.body))

    loads = [BenchLoad(EAGER, sentences.system, level) for level in _LEVELS]
    return Contender(EAGER, loads, lambda: nullcontext(measure))


def _parts_ms(engine: Engine, read: Callable[[], Sequence[Parts]]) -> dict[str, float]:
    """Return the times of the encoder and of a step for a single example, with the loop's minimum of rows."""
    (parts,) = read()
    source = next(part.source for part in parts if isinstance(part, Row))
    rows = engine.min_rows
    sources = [source] * min(rows, engine.max_sources)
    memory = np.stack([engine.encode(sources)[0]] * rows)
    mask = np.ones((rows, memory.shape[4]), np.int32)
    cache = np.zeros((*memory.shape[:4], 16, memory.shape[5]), np.float32)
    token, length = np.zeros(rows, np.int64), np.full(rows, _SO_FAR, np.int64)
    return {
        READING_MS: _median_ms(read),
        ENCODER_MS: _median_ms(lambda: engine.encode(sources)),
        STEP_MS: _median_ms(lambda: engine.step(token, length, cache, memory, mask)),
    }


def _median_ms(work: Callable[[], object]) -> float:
    moments = [time.perf_counter()]
    for _ in range(_STEPS):
        work()
        moments.append(time.perf_counter())
    return 1000 * float(np.median(np.diff(moments)))
