"""The same sentences without Triton: the served loop in Python, transformers' loop, and another server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import torch

from generation import ctranslate2_model
from generation.sentences import Sentences, same_as_alone
from gourmet.runtime.decoding.answers import wait_for
from gourmet.runtime.decoding.room import GenerationRoom
from gourmet.runtime.instances import available_cpus
from gourmet.serving.preflight import free_ports
from gourmet.systems.translator.client_loop import served_files
from gourmet.systems.translator.evaluate import translate
from gourmet.systems.translator.serving import SERVING, MarianEngine
from harness.load import BenchLoad, BenchWindow, HttpClient, closed_loop, http_loop
from harness.run import Contender, Measure
from harness.server import started

PYTHON: Final = "in Python, no server"
EAGER: Final = "transformers' generate, no server"
FASTAPI: Final = "CTranslate2 behind FastAPI"
# Of its numbers: all bits, which say what the network says, and eight, which are faster.
FORMS: Final = ("float32", "int8")
ENCODER_MS, STEP_MS = "encoder ms", "step ms"

_SERVERS: Final = Path(__file__).resolve().parent / "servers"
_LEVELS: Final = (1, 8)
_ROWS: Final = 16
_WITHIN_S: Final = 60.0
_STEPS: Final = 50


def contenders(sentences: Sentences, programs: Callable[[], Path]) -> list[Contender]:
    """`programs` is the folder of those of CTranslate2's environment."""
    cpus = available_cpus()
    return [
        *(in_python(sentences, threads) for threads in sorted({1, cpus})),
        eager(sentences),
        *(
            # Workers and threads of each, by which CTranslate2 may use all processors.
            behind_fastapi(sentences, programs, form, workers, threads)
            for form in FORMS
            for workers, threads in sorted({(1, cpus), (cpus, 1)})
        ),
    ]


def in_python(sentences: Sentences, threads: int) -> Contender:
    """The package that Triton serves, its loop in this process."""
    arm = f"{PYTHON}, threads: {threads}"

    @contextmanager
    def start() -> Iterator[Measure]:
        network = SERVING.open(served_files(), threads)
        words = network.vocabulary
        room = GenerationRoom(network.engine, start=words.start, end=words.end, max_rows=_ROWS)

        def say(text: str) -> str:
            return wait_for(network.parts(text), network, room, within_s=_WITHIN_S).text

        try:
            alone = [*map(say, sentences.texts)]
            middle = sorted(sentences.texts, key=len)[len(sentences.texts) // 2]
            figures = {**_parts_ms(network.engine, words.encode(middle)), **sentences.agreement(arm, alone)}
            ask = partial(_ask, arm, sentences.texts, alone, say)
            yield lambda load: closed_loop(load, [ask] * load.level, sentences.options, figures=figures)
        finally:
            room.close()

    return Contender(arm, [BenchLoad(arm, "sentences", level) for level in _LEVELS], start)


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

    loads = [BenchLoad(EAGER, "sentences", level) for level in _LEVELS]
    return Contender(EAGER, loads, lambda: nullcontext(measure))


def behind_fastapi(
    sentences: Sentences, programs: Callable[[], Path], form: str, workers: int, threads: int
) -> Contender:
    arm = f"{FASTAPI}, {form}, {workers} × {threads}"

    @contextmanager
    def start() -> Iterator[Measure]:
        (port,) = free_ports(1)
        with TemporaryDirectory(prefix="gourmet-ctranslate2-") as name:
            ctranslate2_model.convert(sentences.checkpoint, Path(name), form)
            command = [str(programs() / "uvicorn"), "ctranslate2_app:app", "--host", "127.0.0.1"]
            command += ["--no-access-log", "--port", str(port)]
            env = {
                "MODEL": name,
                "TOKENIZER": str(sentences.checkpoint.folder.resolve()),
                "THREADS": str(threads),
                "WORKERS": str(workers),
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            with started(arm, command, env, _SERVERS, lambda: _exchanged(port, ["Чай."])):
                bodies, alone = _exchanged(port, sentences.texts)
                figures = {"requests": 1.0, "bytes": bodies, **sentences.agreement(arm, alone)}

                def ask(client: HttpClient, number: int) -> int:
                    return _ask(arm, sentences.texts, alone, lambda text: _translate(client, text)[0], number)

                yield lambda load: http_loop(
                    load, partial(_client, port), ask, sentences.options, figures=figures
                )

    return Contender(arm, [BenchLoad(arm, "sentences", level) for level in _LEVELS], start)


def _ask(arm: str, texts: Sequence[str], alone: Sequence[str], say: Callable[[str], str], number: int) -> int:
    """The answer has to be what the arm says when nothing else is asked."""
    place = number % len(texts)
    same_as_alone(arm, say(texts[place]), alone[place])
    return 1


def _client(port: int) -> HttpClient:
    return HttpClient(port, {"Content-Type": "application/json"})


def _translate(client: HttpClient, text: str) -> tuple[str, int]:
    """The translation, and how many bytes went both ways."""
    body = json.dumps({"text": text}).encode()
    answer = client.request("POST", "/translate", body)
    return json.loads(answer)["translation"], len(body) + len(answer)


def _exchanged(port: int, texts: Sequence[str]) -> tuple[float, list[str]]:
    """The bytes of an exchange on average, and the translation of each text asked alone."""
    with closing(_client(port)) as client:
        said, sizes = zip(*(_translate(client, text) for text in texts), strict=True)
    return float(np.mean(sizes)), list(said)


def _parts_ms(engine: MarianEngine, source: Sequence[int]) -> dict[str, float]:
    """What the encoder and a step take for a sentence alone; two rows, as the loop has them at least."""
    sources = [source] * 2
    memory, mask = np.stack(engine.encode(sources)), np.ones((2, len(source)), np.int32)
    cache = np.zeros((*memory.shape[:4], 16, memory.shape[5]), np.float32)
    token, length = np.zeros(2, np.int64), np.full(2, len(source) // 2, np.int64)
    return {
        ENCODER_MS: _median_ms(lambda: engine.encode(sources)),
        STEP_MS: _median_ms(lambda: engine.step(token, length, cache, memory, mask)),
    }


def _median_ms(work: Callable[[], object]) -> float:
    moments = [time.perf_counter()]
    for _ in range(_STEPS):
        work()
        moments.append(time.perf_counter())
    return 1000 * float(np.median(np.diff(moments)))
