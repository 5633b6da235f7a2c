"""The same sentences without Triton: the served loop in Python, transformers' loop, and another server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import torch

from generation import ctranslate2_model
from generation.asking import Exchange, Exchanged, answers, asked, measure_of
from generation.sentences import BenchExamples, Sentences, same_as_alone
from gourmet import repository
from gourmet.runtime.decoding.answers import GenerationServing, Parts, wait_for
from gourmet.runtime.decoding.engine import Engine
from gourmet.runtime.decoding.loop import Row
from gourmet.runtime.decoding.room import GenerationRoom
from gourmet.runtime.instances import available_cpus
from gourmet.serving.preflight import free_ports
from gourmet.systems.translator.contract import TEXT
from gourmet.systems.translator.evaluate import translate
from gourmet.systems.translator.serving import SERVING
from harness.load import BenchLoad, BenchWindow, HttpClient, closed_loop
from harness.run import Contender, Measure
from harness.server import started

PYTHON: Final = "in Python, no server"
EAGER: Final = "transformers' generate, no server"
FASTAPI: Final = "CTranslate2 behind FastAPI"
# Of its numbers: all bits, which say what the network says, and eight, which are faster.
FORMS: Final = ("float32", "int8")
# What it takes to make rows of a request, to encode one, and to go a step.
READING_MS, ENCODER_MS, STEP_MS = "reading ms", "encoder ms", "step ms"

_SERVERS: Final = Path(__file__).resolve().parent / "servers"
_LEVELS: Final = (1, 8)
_SERVED_LEVELS: Final = (1, 8, 16)
_ROWS: Final = 16
_WITHIN_S: Final = 60.0
_STEPS: Final = 50
_SO_FAR: Final = 5  # words of the answer that is in the middle of a step


def contenders(sentences: Sentences, programs: Callable[[], Path]) -> list[Contender]:
    """`programs` is the folder of those of CTranslate2's environment."""
    cpus = available_cpus()
    return [
        *(
            in_python(sentences, threads, SERVING, repository.served_package("translator"), TEXT, _LEVELS)
            for threads in sorted({1, cpus})
        ),
        eager(sentences),
        *(
            # Workers and threads of each, by which CTranslate2 may use all processors.
            behind_fastapi(sentences, programs, form, workers, threads)
            for form in FORMS
            for workers, threads in sorted({(1, cpus), (cpus, 1)})
        ),
    ]


def in_python(
    examples: BenchExamples,
    threads: int,
    serving: GenerationServing,
    files: Mapping[str, bytes],
    given: str,
    levels: Sequence[int],
) -> Contender:
    """The package that Triton serves, its loop in this process; `given` is the input that has an example."""
    arm = f"{PYTHON}, threads: {threads}"

    @contextmanager
    def start() -> Iterator[Measure]:
        network = serving.open(files, threads)
        words = network.vocabulary
        room = GenerationRoom(network.engine, start=words.start, end=words.end, max_rows=_ROWS)

        def say(example: str | bytes) -> str:
            (answer,) = wait_for(network.requested({given: [example]}), network, room, within_s=_WITHIN_S)
            return answer.text

        try:
            alone = [*map(say, examples.examples)]
            middle = sorted(examples.examples, key=len)[len(examples.examples) // 2]
            read = partial(network.requested, {given: [middle]})
            figures = {**_parts_ms(network.engine, read), **examples.agreement(arm, alone)}
            ask = partial(asked, arm, examples.examples, alone, say)
            yield lambda load: closed_loop(load, [ask] * load.level, examples.options, figures=figures)
        finally:
            room.close()

    return Contender(arm, [BenchLoad(arm, examples.system, level) for level in levels], start)


def eager(sentences: Sentences) -> Contender:
    """transformers' generate, as many sentences at a time as clients would have under way."""
    network, tokenizer = sentences.checkpoint.network, sentences.checkpoint.tokenizer

    def measure(load: BenchLoad) -> BenchWindow:
        torch.set_num_threads(os.cpu_count() or 1)
        texts = sentences.texts
        groups = [texts[first : first + load.level] for first in range(0, len(texts), load.level)]
        right = [translate(network, tokenizer, group) for group in groups]

        def ask(number: int) -> int:
            place = number % len(groups)
            for found, alone in zip(translate(network, tokenizer, groups[place]), right[place], strict=True):
                same_as_alone(EAGER, found, alone)
            return len(groups[place])

        agreement = sentences.agreement(EAGER, [text for group in right for text in group])
        return closed_loop(load, [ask], sentences.options, figures=agreement)

    loads = [BenchLoad(EAGER, sentences.system, level) for level in _LEVELS]
    return Contender(EAGER, loads, lambda: nullcontext(measure))


def behind_fastapi(
    sentences: Sentences, programs: Callable[[], Path], form: str, workers: int, threads: int
) -> Contender:
    arm = f"{FASTAPI}, {form}, {workers} × {threads}"

    @contextmanager
    def start() -> Iterator[Measure]:
        with TemporaryDirectory(prefix="gourmet-ctranslate2-") as name:
            ctranslate2_model.convert(sentences.checkpoint, Path(name), form)
            command = [str(programs() / "uvicorn"), "ctranslate2_app:app"]
            env = {
                "MODEL": name,
                "TOKENIZER": str(sentences.checkpoint.folder.resolve()),
                "THREADS": str(threads),
                "WORKERS": str(workers),
            }
            with behind_uvicorn(arm, sentences, command, env, _translate) as measure:
                yield measure

    return Contender(arm, [BenchLoad(arm, sentences.system, level) for level in _SERVED_LEVELS], start)


@contextmanager
def behind_uvicorn(
    arm: str, examples: BenchExamples, command: Sequence[str], env: Mapping[str, str], exchange: Exchange
) -> Iterator[Measure]:
    """An application on a port of its own, every answer compared with the one that it gives alone."""
    (port,) = free_ports(1)
    whole = [*command, "--host", "127.0.0.1", "--no-access-log", "--port", str(port)]
    clean = {**env, "PYTHONDONTWRITEBYTECODE": "1"}
    with started(arm, whole, clean, _SERVERS, lambda: answers(port, examples.examples[0], exchange)):
        yield measure_of(arm, port, examples, exchange)


def _translate(client: HttpClient, text: str) -> Exchanged:
    body = json.dumps({"text": text}).encode()
    answer = client.request("POST", "/translate", body)
    return Exchanged(json.loads(answer)["translation"], len(body) + len(answer))


def _parts_ms(engine: Engine, read: Callable[[], Sequence[Parts]]) -> dict[str, float]:
    """What the encoder and a step take for an example alone, in as many rows as the loop has at least."""
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
