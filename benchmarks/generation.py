"""`python -P benchmarks/generation.py`: the translator's loop beside what a user would take instead of it.

Arms of one Triton (the loop in the client, in BLS, in process), the web app, the same loop in Python,
transformers' `generate`, and CTranslate2 behind FastAPI translate the same sentences.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import torch
from ctranslate2.converters.transformers import BartLoader, MarianMTLoader

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gourmet.bench import sweep
from gourmet.bench.inputs import DataSource
from gourmet.bench.results import Evidence, LoadSpec, Point
from gourmet.bench.transports import Http, RawReply, Request
from gourmet.bench.validity import WrongAnswers
from gourmet.bench.workload import Addresses, MeasureOptions, Workload, ask_each, prepare
from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND, FOUND_FILE, POSITIVE
from gourmet.errors import UsageError
from gourmet.export.checkpoints import Checkpoint
from gourmet.generation.answers import GrowingAnswer
from gourmet.generation.scheduler import DecodeScheduler
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.repository.versions import served_package
from gourmet.served.instances import available_cpus
from gourmet.stack.preflight import free_ports
from gourmet.systems.translator.client_loop import PLACES
from gourmet.systems.translator.contract import SYSTEM, TEXT
from gourmet.systems.translator.data import DATA
from gourmet.systems.translator.evaluate import translate
from gourmet.systems.translator.network import load as load_checkpoint
from gourmet.systems.translator.serving import SERVING
from gourmet.systems.translator.texts import split
from gourmet.systems.translator.tokenizer import END, PAD, UNKNOWN, VOCABULARY
from gourmet.training.run import data_of
from harness import (
    Contender,
    Goal,
    InPool,
    Measure,
    Row,
    main,
    measure,
    measure_in_turns,
    own_triton,
    programs,
    publish,
    ratio_goal,
    started,
    window_options,
)

SERVERS: Final = Path(__file__).resolve().parent / "servers"

# The arms.
LOOP: Final = "loop in the client"
BLS: Final = "loop in BLS"
IN_PROCESS: Final = "loop in process"
STREAMED: Final = "loop in process, streamed"
BEAMS: Final = "loop in process, four beams"
PYTHON: Final = "in Python, no server"
EAGER: Final = "transformers' generate, no server"
FASTAPI: Final = "CTranslate2 behind FastAPI"
# CTranslate2's precisions: float32 keeps the network's words, int8 is faster.
FORMS: Final = ("float32", "int8")

# The concurrency of most goals, and a higher one.
MANY: Final = 8
MORE: Final = 16
AGREES: Final = "the network's own answers"


# --- the sentences

# Pieces of a sentence; longer ones do not fit `onnx-model`.
_LONGEST: Final = PLACES - 5
# CTranslate2's int8 rounds activations too, so one sentence in ten has other words. An arm that differs more
# often has another network.
_MIN_AGREEMENT: Final = 0.8


@dataclass(frozen=True)
class Sentences:
    """Texts of a single sentence each, the network's answers, and the time for each arm."""

    checkpoint: Checkpoint
    texts: Sequence[str]
    options: MeasureOptions
    folder: Path

    @cached_property
    def network_says(self) -> list[str]:
        return translate(self.checkpoint.network, self.checkpoint.tokenizer, self.texts)

    def agreement(self, arm: str, answers: Sequence[str]) -> Evidence:
        """Return how often the arm says what the network says; raise WrongAnswers if too rarely."""
        same = sum(a == b for a, b in zip(answers, self.network_says, strict=False)) / len(answers)
        if same < _MIN_AGREEMENT:
            raise WrongAnswers(
                f"{arm} says what the network says to {same:.0%} of the sentences only: deploy the weights "
                f"that are compared with `gourmet deploy {SYSTEM.name} --format all --weights`"
            )
        return Evidence(AGREES, f"{100 * same:.1f} %", f"{100 * _MIN_AGREEMENT:.0f} %")

    @cached_property
    def data(self) -> DataSource:
        for number, text in enumerate(self.texts):
            (self.folder / f"{number:04}.txt").write_text(text, encoding="utf-8")
        return DataSource(len(self.texts), folder=self.folder)


def fitting(data: Path, checkpoint: Checkpoint, count: int) -> list[str]:
    """Return different texts that fit every arm: single sentences, since not all arms cut texts."""

    def size(text: str) -> int:
        return len(checkpoint.tokenizer.encode(text))

    different = dict.fromkeys(pair.text for pair in DATA.references(data, "test", count))
    texts = [text for text in different if split(text, size, _LONGEST) == [(text, True)]]
    if len(texts) < MORE:
        raise UsageError(
            f"{data} has {len(texts)} single sentences of at most {_LONGEST} pieces among its first {count}, "
            "which is too few: name more with --sentences"
        )
    return texts


def same_as_alone(
    arm: str, alone: Sequence[object], read: Callable[[Any], object]
) -> Callable[[Request, RawReply], None]:
    """Return a check that raises WrongAnswers if an answer depends on other requests."""

    def check_reply(request: Request, reply: RawReply) -> None:
        answer, expected = read(reply.body), alone[request.rows[0]]
        if answer != expected:
            raise WrongAnswers(f"{arm} answered {answer!r} where it answered {expected!r} alone")

    return check_reply


# --- models of one Triton

_LOADS: Final = {
    LOOP: LoadSpec("onnx-model", through="loop"),
    BLS: LoadSpec("translator_bls"),
    IN_PROCESS: LoadSpec("translator"),
    STREAMED: LoadSpec("translator_stream"),
    BEAMS: LoadSpec("translator"),
}
# The models that `translator_bls` calls.
_PARTS: Final = ("translator_encoder", "translator_decoder")
_LEVELS: Final = {
    LOOP: (1, MANY),
    BLS: (1, MANY),
    IN_PROCESS: (1, MANY, MORE),
    STREAMED: (1,),
    BEAMS: (MANY,),
}
_BEAMS: Final = 4


def by_triton(sentences: Sentences) -> Contender:
    loads = [
        (arm, replace(spec, level=level))
        for arm, spec in _LOADS.items()
        for level in _LEVELS.get(arm, (1, MANY))
    ]

    @contextmanager
    def start() -> Iterator[Measure]:
        models = {spec.model for spec in _LOADS.values()} | set(_PARTS)
        with own_triton((DEFAULT_REPOSITORY,), sorted(models)) as server:
            prepared = {arm: _prepared(sentences, server, arm) for arm in _LOADS}

            def measure_load(arm: str, load: LoadSpec) -> Point:
                workload, agreement = prepared[arm]
                point = sweep.measure(workload, load, server, sentences.options, arm)
                return replace(point, checks=point.checks + agreement)

            yield measure_load

    return Contender("Triton", loads, start)


def _prepared(sentences: Sentences, server: Addresses, arm: str) -> tuple[Workload, tuple[Evidence, ...]]:
    """Return the workload of an arm, and how often its answers are the network's."""
    spec = _LOADS[arm]
    data = replace(sentences.data, options={"beams": _BEAMS} if arm == BEAMS else {})
    stepped = SYSTEM.name if spec.through == "loop" else ""
    workload = prepare(spec.model, server, data, through=spec.through, stepped=stepped)
    if arm == BEAMS:  # a beam search may find other words than the network's greedy answer
        return workload, ()
    answers = [SYSTEM.generated(answer, workload.rows.info).text for answer in workload.answers.expected]
    return workload, (sentences.agreement(arm, answers),)


# --- without a server

_MAX_ROWS: Final = 16
_WITHIN_S: Final = 60.0


def in_python(sentences: Sentences, threads: int) -> Contender:
    """Return the contender with Triton's package in this process."""
    arm = f"{PYTHON}, threads: {threads}"

    @contextmanager
    def start() -> Iterator[Measure]:
        network = SERVING.open(served_package(SYSTEM.name), threads)
        scheduler = DecodeScheduler(network.engine, network.vocabulary, _MAX_ROWS)

        def say(text: str) -> str:
            (parts,) = network.requested({TEXT: [text]})
            done = threading.Event()
            answer = GrowingAnswer(parts, network)
            for row in answer.rows:
                row.deadline = time.monotonic() + _WITHIN_S
                row.on_tokens = lambda _row: done.set() if all(row.finished for row in answer.rows) else None
            scheduler.submit(answer.rows)
            done.wait()
            if answer.error:
                raise answer.error
            return answer.whole().text

        try:
            alone = [*map(say, sentences.texts)]
            agreement = sentences.agreement(arm, alone)
            requests = [Request((number,), text) for number, text in enumerate(sentences.texts)]
            check_reply = same_as_alone(arm, alone, str)

            def measure_load(_arm: str, load: LoadSpec) -> Point:
                with ThreadPoolExecutor(int(load.level)) as pool:
                    point = measure(load, InPool(pool, say), requests, check_reply, sentences.options)
                return replace(point, checks=(*point.checks, agreement))

            yield measure_load
        finally:
            scheduler.close()

    return Contender(arm, [(arm, LoadSpec("", level)) for level in (1, MANY)], start)


def eager(sentences: Sentences) -> Contender:
    """Return the contender with transformers' generate, on as many sentences at a time as clients."""
    network, tokenizer = sentences.checkpoint.network, sentences.checkpoint.tokenizer

    def measure_load(_arm: str, load: LoadSpec) -> Point:
        torch.set_num_threads(os.cpu_count() or 1)
        texts, size = sentences.texts, load.batch
        groups = [texts[first : first + size] for first in range(0, len(texts) - size + 1, size)]
        right = [translate(network, tokenizer, group) for group in groups]
        agreement = sentences.agreement(EAGER, [text for group in right for text in group])
        requests = [Request((number,), group) for number, group in enumerate(groups)]
        with ThreadPoolExecutor(1) as pool:
            wire = InPool(pool, partial(translate, network, tokenizer))
            point = measure(load, wire, requests, same_as_alone(EAGER, right, list), sentences.options)
        return replace(point, checks=(*point.checks, agreement))

    loads = [(EAGER, LoadSpec("", batch=size)) for size in (1, MANY)]
    return Contender(EAGER, loads, lambda: nullcontext(measure_load))


# --- another server


def behind_fastapi(uvicorn: Path, sentences: Sentences, form: str, workers: int, threads: int) -> Contender:
    """Return the contender with CTranslate2."""
    arm = f"{FASTAPI}, {form}, {workers} × {threads}"

    @contextmanager
    def start() -> Iterator[Measure]:
        with TemporaryDirectory(prefix="gourmet-ctranslate2-") as name:
            convert(sentences.checkpoint, Path(name), form)
            (port,) = free_ports(1)
            command = [str(uvicorn), "ctranslate2_app:app", "--host", "127.0.0.1"]
            command += ["--no-access-log", "--port", str(port)]
            env = {
                "MODEL": name,
                "TOKENIZER": str(sentences.checkpoint.folder.resolve()),
                "THREADS": str(threads),
                "WORKERS": str(workers),
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            http = partial(Http, f"127.0.0.1:{port}", "/translate")
            kind = {"Content-Type": "application/json"}
            requests = [
                Request((number,), json.dumps({"text": text}).encode(), kind)
                for number, text in enumerate(sentences.texts)
            ]
            with started(arm, command, env, SERVERS, lambda: ask_each(http(), requests[:1])) as pid:
                alone = [_translation(reply.body) for reply in ask_each(http(), requests)]
                agreement, check_reply = (
                    sentences.agreement(arm, alone),
                    same_as_alone(arm, alone, _translation),
                )

                def measure_load(_arm: str, load: LoadSpec) -> Point:
                    point = measure(load, http(), requests, check_reply, sentences.options, {"server": pid})
                    return replace(point, checks=(*point.checks, agreement))

                yield measure_load

    return Contender(arm, [(arm, LoadSpec("", level)) for level in (1, MANY, MORE)], start)


def _translation(body: bytes) -> str:
    return str(json.loads(body)["translation"])


class _Loader(MarianMTLoader):  # type: ignore[misc]
    """Loads a network whose pad is any word of the vocabulary, not the last one as in Marian."""

    def set_decoder(self, spec: Any, decoder: Any) -> None:
        BartLoader.set_decoder(self, spec, decoder)

    def _remove_pad_weights(self, spec: Any) -> None:
        pass


def convert(checkpoint: Checkpoint, folder: Path, form: str) -> None:
    """Write the network for CTranslate2, which runs the whole loop itself; `form` is one of its own."""
    # A copy, since the spec shares the network's memory, and makes its numbers eight bits there.
    spec = _Loader().get_model_spec(copy.deepcopy(checkpoint.network))
    numbers = json.loads((checkpoint.folder / VOCABULARY).read_text(encoding="utf-8"))
    pieces = sorted(numbers, key=numbers.__getitem__)
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.eos_token, spec.config.unk_token, spec.config.decoder_start_token = END, UNKNOWN, PAD
    spec.config.bos_token = PAD
    spec.validate()
    spec.optimize(quantization=form)
    spec.save(str(folder))


# --- goals


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return the goals whose arms were all measured in every turn."""
    table = {(row.arm, row.at_a_time): row for row in rows}

    def ahead(words: str, begin: str, level: int, wanted: float) -> list[Goal]:
        """Compare the loop in process with the best arm whose name begins with `begin`."""
        others = [
            row for (arm, at_a_time), row in table.items() if at_a_time == level and arm.startswith(begin)
        ]
        return ratio_goal(
            f"{IN_PROCESS} ÷ {words}, c={level}", table.get((IN_PROCESS, level)), others, wanted
        )

    behind, greedy = [f"{FASTAPI}, {form}" for form in FORMS], table.get((IN_PROCESS, MANY))
    return [
        *ahead(LOOP, LOOP, 1, 5.0),
        *ahead(LOOP, LOOP, MANY, 10.0),
        *ahead(BLS, BLS, MANY, 2.0),
        *ahead(f"{PYTHON}, best threads", PYTHON, MANY, 0.85),
        *ahead(EAGER, EAGER, MANY, 1.0),
        *(goal for arm in behind for goal in ahead(f"{arm}, best layout", arm, MANY, 1.0)),
        *ahead(f"{behind[-1]}, best layout", behind[-1], MORE, 1.3),
        *ahead(f"{behind[-1]}, best layout", behind[-1], 1, 0.8),
        *ratio_goal(f"four beams ÷ greedy, c={MANY}", table.get((BEAMS, MANY)), [greedy], 0.35),
    ]


@click.command()
@click.option(
    "--weights",
    type=FOUND_FILE,
    default=Path("runs/translator/best.safetensors"),
    help="scripts/translator_checkpoint.py writes the served ones.",
    show_default=True,
)
@click.option(
    "--data", type=FOUND, help="Sentences with a test part.  [default: those the weights were trained on]"
)
@click.option("--sentences", "count", default=200, type=POSITIVE, help="Number at most.", show_default=True)
@click.option("--turns", default=3, type=POSITIVE, help="How often all is measured.", show_default=True)
@click.option("--window", "window_s", default=4.0, show_default=True, type=click.FloatRange(0.2, 60))
def generation(weights: Path, data: Path | None, count: int, turns: int, window_s: float) -> None:
    """The same sentences looped by the client, by BLS and in process, and by what a user would take instead.

    Starts and stops everything itself on free ports, one after another, with the models of triton/models,
    which have to be of --weights. Every answer is checked. All in its default takes ten to fifteen minutes.
    """
    uvicorn = programs("generation") / "uvicorn"
    read, cpus = data or data_of(weights), available_cpus()
    with bar("generation") as tick, TemporaryDirectory(prefix="gourmet-generation-") as folder:
        tick(0.0, "the network's own answers")
        checkpoint = load_checkpoint(weights)
        texts = fitting(read, checkpoint, count)
        sentences = Sentences(checkpoint, texts, window_options(window_s), Path(folder))
        # Workers and threads of each, by which CTranslate2 may use all processors.
        layouts = sorted({(1, cpus), (cpus, 1)})
        contenders = [
            by_triton(sentences),
            *(in_python(sentences, threads) for threads in sorted({1, cpus})),
            eager(sentences),
            *(behind_fastapi(uvicorn, sentences, form, *layout) for form in FORMS for layout in layouts),
        ]
        rows, left_out = measure_in_turns(contenders, turns, tick)
    publish("One sentence at a time, in five ways", f"{len(texts)} sentences", rows, goals(rows), left_out)


if __name__ == "__main__":
    main(generation)
