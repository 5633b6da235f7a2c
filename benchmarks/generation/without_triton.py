"""Translate the sentences without a server: the served loop in Python, and transformers' loop."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import torch

from generation.sentences import Sentences, same_as_alone
from gourmet import repository
from gourmet.measure.async_client import Load
from gourmet.measure.results import LoadSpec
from gourmet.measure.transports import RawReply, Request
from gourmet.runtime.decoding.answers import AnswerJob
from gourmet.runtime.decoding.room import GenerationRoom
from gourmet.systems.translator.contract import SYSTEM, TEXT
from gourmet.systems.translator.evaluate import translate
from gourmet.systems.translator.serving import SERVING
from harness.run import Contender, Measure
from harness.windows import BenchLoad, BenchWindow, Meter, window

PYTHON: Final = "in Python, no server"
EAGER: Final = "transformers' generate, no server"

_LEVELS: Final = (1, 8)
_ROWS: Final = 16
_WITHIN_S: Final = 60.0


class InThreads:
    """Calls a function of this process in its own threads."""

    def __init__(self, answer: Callable[[Any], Any], threads: int) -> None:
        self._answer, self._pool = answer, ThreadPoolExecutor(threads)

    async def send(self, request: Request) -> RawReply:
        loop = asyncio.get_running_loop()
        return RawReply({}, await loop.run_in_executor(self._pool, self._answer, request.body))

    async def close(self) -> None:
        self._pool.shutdown()


def in_python(sentences: Sentences, threads: int) -> Contender:
    """Return the contender with Triton's package in this process."""
    arm = f"{PYTHON}, threads: {threads}"

    @contextmanager
    def start() -> Iterator[Measure]:
        network = SERVING.open(repository.served_package(SYSTEM.name), threads)
        words = network.vocabulary
        room = GenerationRoom(network.engine, start=words.start, end=words.end, max_rows=_ROWS)

        def say(text: str) -> str:
            (parts,) = network.requested({TEXT: [text]})
            done = threading.Event()
            job = AnswerJob(parts, network, lambda *_: done.set(), deadline=time.monotonic() + _WITHIN_S)
            room.submit(job.rows)
            done.wait()
            if job.error:
                raise job.error
            return job.whole().text

        try:
            alone = [*map(say, sentences.texts)]
            figures = sentences.agreement(arm, alone)
            requests = [Request((number,), text) for number, text in enumerate(sentences.texts)]

            def check(request: Request, reply: RawReply) -> None:
                same_as_alone(arm, reply.body, alone[request.rows[0]])

            def measure(load: BenchLoad) -> BenchWindow:
                wire = InThreads(say, load.level)
                return window(load, wire, requests, check, sentences.options, figures=figures)

            yield measure
        finally:
            room.close()

    return Contender(arm, [BenchLoad(arm, SYSTEM.name, level) for level in _LEVELS], start)


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

    loads = [BenchLoad(EAGER, SYSTEM.name, level) for level in _LEVELS]
    return Contender(EAGER, loads, lambda: nullcontext(measure))
