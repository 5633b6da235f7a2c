"""Which engine turns the loop fastest, and how often its words are the network's own: a part of the docs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch

from generation import ctranslate2_model
from gourmet.reports.table import markdown
from gourmet.runtime.decoding.engine import onnx_graph
from gourmet.runtime.instances import available_cpus
from gourmet.systems.translator import export
from gourmet.systems.translator.data import DATA
from gourmet.systems.translator.evaluate import MAX_TOKENS, answered
from gourmet.systems.translator.network import Checkpoint, load
from gourmet.systems.translator.serving import DECODER, ENCODER, MarianEngine
from gourmet.tasks.generation.int8 import quantized
from gourmet.training.task import Tick
from harness.report import DocsPart, about_line

# Sentences that are at work together, and how many are asked for one by one, each alone.
TOGETHER: Final = 16
_ALONE: Final = 100
_WARM_UP: Final = 16
_MEASURED: Final = 500
# How often each form must have the words of the network's own greedy answers.
WANTED: Final = {"fp32": 1.0, "int8": 0.9}
PART: Final = DocsPart("gourmet bench generation engines", "generation.md", "Generation", "to here: engines")
HEADINGS: Final = (
    *("engine", "form", "threads", "MiB", "sentences/s, one alone", f"{TOGETHER} at a time"),
    *("the network's own words", "same words as alone"),
)

Numbers = Sequence[Sequence[int]]
# Sources, and how many of them at a time.
Answer = Callable[[Numbers, int], list[list[int]]]
# Engine, form, its files, and how it is opened on so many threads.
Form = tuple[str, str, Path, Callable[[int], Answer]]


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

    def verdict(self) -> str:
        wanted = ", ".join(f"{form} {100 * share:g} %" for form, share in WANTED.items())
        best = self.best
        found = f"{best.engine}, {best.form}, threads: {best.threads}" if best else "none"
        return f"The fastest of those that have the network's words often enough ({wanted}): {found}."

    def rows(self) -> list[tuple[str, ...]]:
        return [
            (
                f"**{each.engine}**" if each is self.best else each.engine,
                each.form,
                str(each.threads),
                *(f"{value:.1f}" for value in (each.mebibytes, each.alone_per_s, each.together_per_s)),
                f"{100 * each.agrees:.1f} %" + ("" if each.ships else " (too few)"),
                f"{100 * each.as_alone:.1f} %",
            )
            for each in self.results
        ]

    def write(self, folder: Path) -> Path:
        words = (
            f"{about_line(PART.command)}; {self.about}.\n\n{self.sentences} sentences of the test split, "
            f"{self.tokens:.1f} pieces an answer. {self.verdict()}\n\n"
        )
        return PART.write(folder, words + markdown(HEADINGS, self.rows()))[0]


def measure(weights: Path, data: Path, limit: int, tick: Tick) -> EngineRun:
    """Every engine on one thread and on all, on sentences that the network has not learned from."""
    checkpoint = load(weights)
    texts = [pair.text for pair in DATA.references(data, "test", limit)]
    sources = [checkpoint.tokenizer.encode(text) for text in texts]
    with TemporaryDirectory() as name:
        tick(0.0, "the network's own answers")
        wanted = answered(checkpoint.network, checkpoint.tokenizer, sources)
        others = [
            checkpoint.tokenizer.encode(pair.text) for pair in DATA.references(data, "validation", _MEASURED)
        ]
        forms = list(_forms(checkpoint, others, Path(name)))
        plan = [(form, threads) for form in forms for threads in sorted({1, available_cpus()})]
        results = []
        for place, ((engine, form, _, _), threads) in enumerate(plan):
            tick(place / len(plan), f"{engine} {form}, {threads} threads")
            results.append(_measured(plan[place][0], threads, sources, wanted))
    tokens = sum(map(len, wanted)) / len(wanted)
    return EngineRun(results, len(texts), tokens, f"{weights.name}, epoch {checkpoint.about.get('epoch')}")


def _measured(made: Form, threads: int, sources: Numbers, wanted: Numbers) -> EngineResult:
    engine, form, folder, open_ = made
    answer = open_(threads)
    answer(sources[:_WARM_UP], TOGETHER)
    began = time.perf_counter()
    found = answer(sources, TOGETHER)
    together_per_s = len(sources) / (time.perf_counter() - began)
    some = sources[:_ALONE]
    began = time.perf_counter()
    alone = [answer([source], 1)[0] for source in some]
    alone_per_s = len(some) / (time.perf_counter() - began)
    size = sum(path.stat().st_size for path in folder.glob("*")) / 2**20
    shares = _share(found, wanted), _share(found[: len(some)], alone)
    return EngineResult(engine, form, threads, size, alone_per_s, together_per_s, *shares)


def _share(found: Numbers, wanted: Numbers) -> float:
    return sum(a == b for a, b in zip(found, wanted, strict=True)) / len(wanted)


def _forms(checkpoint: Checkpoint, others: Numbers, folder: Path) -> Iterator[Form]:
    """`others`: sentences that say what goes into the products, of which none is translated here."""
    plain, small = folder / "plain", folder / "small"

    def eight_bits_of(network: torch.nn.Module) -> None:
        answered(network, checkpoint.tokenizer, others)

    for form, graphs, network in (
        ("fp32", plain, checkpoint.network),
        ("int8", small, quantized(checkpoint.network, eight_bits_of)),
    ):
        graphs.mkdir()
        for name, graph in export.graphs(network).items():
            graph.write(graphs / name)
        yield "ONNX Runtime", form, graphs, partial(_looped, checkpoint, graphs)
        converted = folder / f"ctranslate2-{form}"
        ctranslate2_model.convert(checkpoint, converted, form.replace("fp", "float"))
        answers = partial(ctranslate2_model.open_model, converted, checkpoint, MAX_TOKENS)
        yield "CTranslate2", form, converted, answers
    yield "transformers", "fp32", checkpoint.folder, partial(_eager, checkpoint)


def _looped(checkpoint: Checkpoint, folder: Path, threads: int) -> Answer:
    """The served loop, on ONNX Runtime."""
    encoder, decoder = (onnx_graph((folder / name).read_bytes(), threads) for name in (ENCODER, DECODER))
    engine = MarianEngine(encoder, decoder, checkpoint.tokenizer.pad)
    engine.fit((folder / DECODER).read_bytes())
    return partial(export.served_answers, engine, checkpoint.tokenizer)


def _eager(checkpoint: Checkpoint, threads: int) -> Answer:
    torch.set_num_threads(threads)

    def answer(sources: Numbers, at_once: int) -> list[list[int]]:
        groups = [sources[first : first + at_once] for first in range(0, len(sources), at_once)]
        network, tokenizer = checkpoint.network, checkpoint.tokenizer
        return [found for group in groups for found in answered(network, tokenizer, group)]

    return answer
