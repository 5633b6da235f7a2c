"""Which engine turns the loop fastest, and how often its words are the network's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch

from generation import ctranslate2_model, openvino_engine
from gourmet.runtime.decoding.engine import Engine
from gourmet.runtime.instances import available_cpus
from gourmet.systems.translator import export
from gourmet.systems.translator.data import DATA
from gourmet.systems.translator.int8 import quantized
from gourmet.systems.translator.network import Checkpoint, load
from gourmet.systems.translator.serving import open_engine
from gourmet.systems.translator.translating import MAX_TOKENS, answered
from gourmet.training.task import Tick

# Sentences that are at work together, and how many are asked for one by one, each alone.
TOGETHER: Final = 16
_ALONE: Final = 100
_WARM_UP: Final = 16
# What a form must agree with the network's own greedy answers.
WANTED: Final = {"fp32": 1.0, "int8": 0.99}

Numbers = Sequence[Sequence[int]]
# Sources, and how many of them at a time.
Answer = Callable[[Numbers, int], list[list[int]]]


@dataclass(frozen=True)
class EngineForm:
    """An engine with the network in one form, and what it is called."""

    engine: str
    form: str
    open: Callable[[int], Answer]  # on so many threads
    mebibytes: float


@dataclass(frozen=True)
class EngineResult:
    engine: str
    form: str
    threads: int
    mebibytes: float
    alone_per_s: float
    together_per_s: float
    agrees: float  # of all sentences, the share with exactly the network's words
    as_alone: float  # of those asked alone as well, the share with the same words among others

    @property
    def ships(self) -> bool:
        return self.agrees >= WANTED[self.form]


@dataclass(frozen=True)
class EngineRun:
    results: Sequence[EngineResult]
    sentences: int
    tokens: float  # of an answer, on average
    about: str

    @property
    def best(self) -> EngineResult | None:
        """The fastest that agrees as often as is wanted."""
        agreeing = [result for result in self.results if result.ships]
        return max(agreeing, key=lambda result: result.together_per_s, default=None)


def measure(weights: Path, data: Path, limit: int, tick: Tick) -> EngineRun:
    """Every engine on every number of threads, on sentences that the network has not learned from."""
    checkpoint = load(weights)
    texts = [pair.text for pair in DATA.references(data, "test", limit)]
    sources = [checkpoint.tokenizer.encode(text) for text in texts]
    with TemporaryDirectory(prefix="gourmet-engines-") as name:
        tick(0.0, "the network's own answers")
        wanted = answered(checkpoint.network, checkpoint.tokenizer, sources)
        made = list(_contenders(checkpoint, Path(name)))
        plan = [(each, threads) for each in made for threads in sorted({1, available_cpus()})]
        results = []
        for place, (contender, threads) in enumerate(plan):
            tick(place / len(plan), f"{contender.engine} {contender.form}, {threads} threads")
            results.append(_measured(contender, threads, sources, wanted))
    tokens = sum(map(len, wanted)) / len(wanted)
    return EngineRun(results, len(texts), tokens, f"{weights.name}, epoch {checkpoint.about.get('epoch')}")


def _measured(form: EngineForm, threads: int, sources: Numbers, wanted: Numbers) -> EngineResult:
    answer = form.open(threads)
    answer(sources[:_WARM_UP], TOGETHER)
    began = time.perf_counter()
    found = answer(sources, TOGETHER)
    together_s = time.perf_counter() - began
    some = sources[:_ALONE]
    began = time.perf_counter()
    alone = [answer([source], 1)[0] for source in some]
    alone_s = time.perf_counter() - began
    return EngineResult(
        form.engine,
        form.form,
        threads,
        form.mebibytes,
        len(some) / alone_s,
        len(sources) / together_s,
        _share(found, wanted),
        _share(found[: len(some)], alone),
    )


def _share(found: Numbers, wanted: Numbers) -> float:
    return sum(a == b for a, b in zip(found, wanted, strict=True)) / len(wanted)


def _contenders(checkpoint: Checkpoint, folder: Path) -> Iterator[EngineForm]:
    network = checkpoint.network
    for form in WANTED:
        onnx, openvino = folder / f"onnx-{form}", folder / f"openvino-{form}"
        for each in (onnx, openvino):
            each.mkdir()
        for name, graph in export.graphs(quantized(network) if form == "int8" else network).items():
            graph.write(onnx / name)
        for name, graph in export.graphs(network).items():
            graph.write(openvino / name)
            if form == "int8":
                openvino_engine.compress(openvino / name, openvino / name)
        yield EngineForm("ONNX Runtime", form, partial(_looped, checkpoint, _onnx, onnx), _mebibytes(onnx))
        yield EngineForm(
            "OpenVINO",
            form,
            partial(_looped, checkpoint, openvino_engine.open_engine, openvino),
            _mebibytes(openvino),
        )
        theirs = folder / f"ctranslate2-{form}"
        ctranslate2_model.convert(checkpoint, theirs, {"fp32": "float32", "int8": "int8"}[form])
        yield EngineForm("CTranslate2", form, partial(_ctranslate2, checkpoint, theirs), _mebibytes(theirs))
    yield EngineForm("transformers", "fp32", partial(_eager, checkpoint), _mebibytes(checkpoint.folder))


def _mebibytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.glob("*")) / 2**20


def _onnx(folder: Path, threads: int, pad: int) -> Engine:
    return open_engine({path.name: path.read_bytes() for path in folder.iterdir()}, threads, pad)


def _looped(
    checkpoint: Checkpoint, make: Callable[[Path, int, int], Engine], folder: Path, threads: int
) -> Answer:
    """The served loop over an engine."""
    tokenizer = checkpoint.tokenizer
    return partial(export.served_answers, make(folder, threads, tokenizer.pad), tokenizer)


def _ctranslate2(checkpoint: Checkpoint, folder: Path, threads: int) -> Answer:
    return ctranslate2_model.CTranslate2Answers(folder, checkpoint, threads, MAX_TOKENS).answer


def _eager(checkpoint: Checkpoint, threads: int) -> Answer:
    def answer(sources: Numbers, at_once: int) -> list[list[int]]:
        with _torch_on(threads):
            return [
                found
                for first in range(0, len(sources), at_once)
                for found in answered(
                    checkpoint.network, checkpoint.tokenizer, sources[first : first + at_once]
                )
            ]

    return answer


@contextmanager
def _torch_on(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
