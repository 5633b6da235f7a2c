"""`python -P benchmarks/generation.py`: the translator's loop beside what a user would take instead of it.

Arms of one Triton (the loop in the client, in BLS, in process), the web app, the same loop in Python,
transformers' `generate`, and CTranslate2 behind FastAPI translate the same sentences.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import psutil
import torch
from ctranslate2.converters.transformers import BartLoader, MarianMTLoader

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gourmet import repository
from gourmet.bench import report, sweep
from gourmet.bench.inputs import DataSource
from gourmet.bench.results import Evidence, LoadSpec, Point
from gourmet.bench.server_probe import memory_mib
from gourmet.bench.sweep import restored
from gourmet.bench.transports import Http, RawReply, Request
from gourmet.bench.validity import WrongAnswers
from gourmet.bench.workload import Addresses, MeasureOptions, Workload, ask_each, prepare
from gourmet.commands.progress import bar
from gourmet.commands.values import FOUND, FOUND_FILE, FOUND_FOLDER, POSITIVE
from gourmet.errors import UsageError
from gourmet.export.checkpoints import Checkpoint
from gourmet.generation.answers import AnswerJob
from gourmet.generation.scheduler import CONTINUOUS_PARAMETER, GenerationRoom
from gourmet.served.instances import available_cpus
from gourmet.stack.connect import connect
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
    DocsPart,
    Goal,
    InPool,
    Measure,
    Row,
    goals_table,
    gourmet_up,
    headings,
    main,
    markdown,
    measure,
    own_triton,
    programs,
    ratio_goal,
    run,
    started,
    window_options,
)

PART: Final = DocsPart("make bench-generation", "loop.md")
PICTURE: Final = "generation.svg"
SERVERS: Final = Path(__file__).resolve().parent / "servers"

# The arms.
LOOP: Final = "loop in the client"
BLS: Final = "loop in BLS"
IN_PROCESS: Final = "loop in process"
STREAMED: Final = "loop in process, streamed"
BEAMS: Final = "loop in process, four beams"
JOINING: Final = "short ones beside long ones, joining"
NOT_JOINING: Final = "short ones beside long ones, not joining"
PYTHON: Final = "in Python, no server"
EAGER: Final = "transformers' generate, no server"
WEB: Final = "the web app's API, streamed"
FASTAPI: Final = "CTranslate2 behind FastAPI"
# CTranslate2's precisions: float32 keeps the network's words, int8 is faster.
FORMS: Final = ("float32", "int8")

# The concurrency of most goals, and a higher one.
MANY: Final = 8
MORE: Final = 16
# What is noted of a point beside its checks.
AGREES: Final = "the network's own answers"
INSIDE: Final = "requests inside Triton"
MEMORY: Final = "memory of its processes"


# --- the sentences

# Pieces of a sentence; longer ones do not fit `onnx-model`.
_LONGEST: Final = PLACES - 5
# CTranslate2's int8 rounds activations too, so one sentence in ten has other words. An arm that differs more
# often has another network.
_MIN_AGREEMENT: Final = 0.8
# The pieces of a long sentence, and the number of short ones before each.
_LONG: Final = 110
_SHORT: Final = 3


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

    @property
    def pieces(self) -> float:
        """The mean number of pieces of an answer."""
        answers = self.network_says
        return sum(len(self.checkpoint.tokenizer.encode_target(text)) for text in answers) / len(answers)

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
    def usual(self) -> DataSource:
        return self._written("usual", self.texts)

    @cached_property
    def mixed(self) -> DataSource:
        """Three short sentences before each long one."""
        short = itertools.cycle(sorted(self.texts, key=len)[: max(2, len(self.texts) // 3)])
        texts = [
            text for long in self._strung_together() for text in (*itertools.islice(short, _SHORT), long)
        ]
        return self._written("mixed", texts)

    def _written(self, name: str, texts: Sequence[str]) -> DataSource:
        folder = self.folder / name
        folder.mkdir()
        for number, text in enumerate(texts):
            (folder / f"{number:04}.txt").write_text(text, encoding="utf-8")
        return DataSource(len(texts), folder=folder)

    def _strung_together(self) -> Iterator[str]:
        """Yield sentences joined by commas, almost as long as the longest that is not cut."""
        clauses: list[str] = []
        for text in self.texts:
            clauses.append(text.rstrip(".!?… ").lower())
            if len(self.checkpoint.tokenizer.encode(", ".join(clauses))) > _LONG:
                yield ", ".join(clauses[:-1]).capitalize() + "."
                clauses = clauses[-1:]


def fitting(data: Path, checkpoint: Checkpoint, count: int) -> list[str]:
    """Return different texts that fit every arm: single sentences, since not all arms cut texts."""

    def size(text: str) -> int:
        return len(checkpoint.tokenizer.encode(text))

    different = dict.fromkeys(pair.text for pair in DATA.references(data, "test", count))
    texts = [text for text in different if split(text, size, _LONGEST) == [(text, True)]]
    if sum(map(size, texts)) < 2 * _LONG:
        raise UsageError(
            f"{data} has {len(texts)} single sentences of at most {_LONGEST} pieces among its first {count}, "
            "which is too few: name more with --sentences"
        )
    return texts


def same_as_alone(
    arm: str, alone: Sequence[object], read: Callable[[Any], object]
) -> Callable[[Request, RawReply], None]:
    """Return a check that raises WrongAnswers if an answer depends on other requests."""

    def check(request: Request, reply: RawReply) -> None:
        answer, expected = read(reply.body), alone[request.rows[0]]
        if answer != expected:
            raise WrongAnswers(f"{arm} answered {answer!r} where it answered {expected!r} alone")

    return check


# --- models of one Triton

_INSIDE: Final = "translator"
# The models that `translator_bls` calls.
_PARTS: Final = ("translator_encoder", "translator_decoder")
_LOADS: Final = {
    LOOP: LoadSpec("onnx-model", through="loop"),
    BLS: LoadSpec("translator_bls"),
    IN_PROCESS: LoadSpec(_INSIDE),
    STREAMED: LoadSpec("translator_stream"),
    BEAMS: LoadSpec(_INSIDE),
    JOINING: LoadSpec(_INSIDE),
    NOT_JOINING: LoadSpec(_INSIDE),
}
_BEAMS: Final = 4
# Every fourth sentence is a long one; whether those that come later join between two steps.
_CONTINUOUS: Final = {JOINING: "", NOT_JOINING: "off"}


def by_triton(sentences: Sentences) -> Contender:
    levels = {LOOP: (1, MANY), BLS: (1, MANY), IN_PROCESS: (1, MANY, MORE), STREAMED: (1,)}
    loads = [
        (arm, replace(spec, level=level))
        for arm, spec in _LOADS.items()
        for level in levels.get(arm, (MANY,))
    ]

    @contextmanager
    def start() -> Iterator[Measure]:
        models = {spec.model for spec in _LOADS.values()} | set(_PARTS)
        with own_triton((repository.DEFAULT,), sorted(models)) as addresses:
            yield GenerationServer(addresses, sentences).measure

    return Contender("Triton", loads, start)


class GenerationServer:
    """A running server, and the answers of its models to each sentence alone."""

    def __init__(self, addresses: Addresses, sentences: Sentences) -> None:
        self._addresses, self._sentences = addresses, sentences
        self._workloads: dict[str, tuple[Workload, tuple[Evidence, ...]]] = {}

    def measure(self, arm: str, load: LoadSpec) -> Point:
        """Measure a point; check every answer, count every request. Mixed loads time short texts only."""
        if arm not in _CONTINUOUS:
            return self._measured(arm, load)
        with restored(self._addresses, [_INSIDE]) as configs:
            config = configs.usual[_INSIDE]
            continuous = {CONTINUOUS_PARAMETER: {"string_value": _CONTINUOUS[arm]}}
            configs.serve(_INSIDE, {**config, "parameters": {**config["parameters"], **continuous}})
            return self._measured(arm, load)

    def _measured(self, arm: str, load: LoadSpec) -> Point:
        workload, notes = self._workload(arm)
        models, sizes = (load.model, *_PARTS), [len(example) for example in workload.rows.examples]

        def is_timed(sent: Request) -> bool:
            return arm not in _CONTINUOUS or 2 * sizes[sent.rows[0]] < max(sizes)

        with connect(self._addresses.url) as triton:
            before = [triton.total(model) for model in models]
            options = self._sentences.options
            point = sweep.measure(workload, load, self._addresses, options, arm, is_timed)
            outside, *inside = (
                triton.total(model).since(counts).requests
                for model, counts in zip(models, before, strict=True)
            )
        notes += (Evidence(INSIDE, f"{sum(inside) / outside:.1f}", ""),)
        if arm == IN_PROCESS:
            notes += (Evidence(MEMORY, f"{memory_mib(_processes_of(_INSIDE)):.0f} MiB", ""),)
        return replace(point, checks=point.checks + notes)

    def _workload(self, arm: str) -> tuple[Workload, tuple[Evidence, ...]]:
        """Return the workload of an arm, and how often its answers are the network's."""
        if arm not in self._workloads:
            spec = _LOADS[arm]
            data = self._sentences.mixed if arm in _CONTINUOUS else self._sentences.usual
            if arm == BEAMS:
                data = replace(data, options={"beams": _BEAMS})
            stepped = SYSTEM.name if spec.through == "loop" else ""
            workload = prepare(spec.model, self._addresses, data, through=spec.through, stepped=stepped)
            agreement: tuple[Evidence, ...] = ()
            # A beam search may find other words than the network's greedy answer.
            if arm not in (BEAMS, *_CONTINUOUS):
                info = workload.rows.info
                answers = [SYSTEM.generated(answer, info).text for answer in workload.answers.expected]
                agreement = (self._sentences.agreement(arm, answers),)
            self._workloads[arm] = workload, agreement
        return self._workloads[arm]


def _processes_of(model: str) -> list[psutil.Process]:
    """Return the processes of the model's instances, in the servers that were started here."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(Path(word).parts[-3:-2] == (model,) for word in process.cmdline()):
                processes.append(process)
    return processes


# --- without a server

_MAX_ROWS: Final = 16
_WITHIN_S: Final = 60.0


def in_python(sentences: Sentences, threads: int) -> Contender:
    """Return the contender with Triton's package in this process."""
    arm = f"{PYTHON}, threads: {threads}"

    @contextmanager
    def start() -> Iterator[Measure]:
        network = SERVING.open(repository.served_package(SYSTEM.name), threads)
        room = GenerationRoom(network.engine, network.vocabulary, _MAX_ROWS)

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
            agreement = sentences.agreement(arm, alone)
            requests = [Request((number,), text) for number, text in enumerate(sentences.texts)]
            check = same_as_alone(arm, alone, str)

            def measure_load(_arm: str, load: LoadSpec) -> Point:
                with ThreadPoolExecutor(int(load.level)) as pool:
                    point = measure(load, InPool(pool, say), requests, check, sentences.options)
                return replace(point, checks=(*point.checks, agreement))

            yield measure_load
        finally:
            room.close()

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


# --- servers of JSON over HTTP


@contextmanager
def _measure_of(
    arm: str,
    sentences: Sentences,
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    http: Callable[[], Http],
    options: Mapping[str, bool],
    read: Callable[[bytes], str],
) -> Iterator[Measure]:
    """Start a server and yield the function that measures it.

    A request has a text and the `options`; `read` returns the text of an answer.
    """
    kind = {"Content-Type": "application/json"}
    requests = [
        Request((number,), json.dumps({"text": text, **options}).encode(), kind)
        for number, text in enumerate(sentences.texts)
    ]
    with started(arm, command, env, cwd, lambda: ask_each(http(), requests[:1])):
        alone = [read(reply.body) for reply in ask_each(http(), requests)]
        agreement, check = sentences.agreement(arm, alone), same_as_alone(arm, alone, read)

        def measure_load(_arm: str, load: LoadSpec) -> Point:
            point = measure(load, http(), requests, check, sentences.options)
            return replace(point, checks=(*point.checks, agreement))

        yield measure_load


def web_app(sentences: Sentences) -> Contender:
    """Return the contender of the whole way from the page to the network."""

    @contextmanager
    def start() -> Iterator[Measure]:
        with TemporaryDirectory(prefix="gourmet-web-") as home:
            (port,) = free_ports(1)
            http = partial(Http, f"127.0.0.1:{port}", "/api/v1/translate", streams=True)
            command, options = gourmet_up(port), {"stream": True}
            with _measure_of(WEB, sentences, command, {}, Path(home), http, options, _last_event) as of_web:
                yield of_web

    return Contender(WEB, [(WEB, LoadSpec("translate"))], start)


def _last_event(events: bytes) -> str:
    _, done, data = events.rpartition(b"event: done\ndata: ")
    if not done:
        raise ValueError("the answer has no end")
    return str(json.loads(data)["text"])


def _translation(body: bytes) -> str:
    return str(json.loads(body)["translation"])


def behind_fastapi(sentences: Sentences, form: str, workers: int, threads: int) -> Contender:
    """Return the contender with CTranslate2."""
    arm = f"{FASTAPI}, {form}, {workers} × {threads}"

    @contextmanager
    def start() -> Iterator[Measure]:
        with TemporaryDirectory(prefix="gourmet-ctranslate2-") as name:
            convert(sentences.checkpoint, Path(name), form)
            (port,) = free_ports(1)
            uvicorn = programs(SERVERS / "generation.txt") / "uvicorn"
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
            with _measure_of(arm, sentences, command, env, SERVERS, http, {}, _translation) as of_server:
                yield of_server

    return Contender(arm, [(arm, LoadSpec("", level)) for level in (1, MANY, MORE)], start)


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


# --- the page


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return the goals whose arms were all measured in every turn."""
    table = {(row.point.arm, row.at_a_time): row for row in rows}

    def ahead(words: str, begin: str, level: int, wanted: float) -> list[Goal]:
        """Compare the loop in process with the best arm whose name begins with `begin`."""
        others = [
            row for (arm, at_a_time), row in table.items() if at_a_time == level and arm.startswith(begin)
        ]
        return ratio_goal(
            f"{IN_PROCESS} ÷ {words}, c={level}", table.get((IN_PROCESS, level)), others, wanted
        )

    behind = [f"{FASTAPI}, {form}" for form in FORMS]
    greedy, beams, joining, waiting = (
        table.get((arm, MANY)) for arm in (IN_PROCESS, BEAMS, JOINING, NOT_JOINING)
    )
    tail = "p99 of short sentences beside long ones: joining ÷ not joining"
    return [
        *ahead(LOOP, LOOP, 1, 5.0),
        *ahead(LOOP, LOOP, MANY, 10.0),
        *ahead(BLS, BLS, MANY, 2.0),
        *ahead(f"{PYTHON}, best threads", PYTHON, MANY, 0.85),
        *ahead(EAGER, EAGER, MANY, 1.0),
        *(goal for arm in behind for goal in ahead(f"{arm}, best layout", arm, MANY, 1.0)),
        *ahead(f"{behind[-1]}, best layout", behind[-1], MORE, 1.3),
        *ahead(f"{behind[-1]}, best layout", behind[-1], 1, 0.8),
        *ratio_goal(f"four beams ÷ greedy, c={MANY}", beams, [greedy], 0.35),
        *ratio_goal(tail, joining, [waiting], 0.3, lambda point: point.latency_ms.p99, at_most=True),
    ]


def as_markdown(rows: Sequence[Row]) -> str:
    """Return the goals, the rows at the load of the goals, and single figures."""
    lines = []
    for row in rows:
        if stream := row.point.stream:
            lines.append(f"- {row.point.arm}: first piece after {stream.first_ms.p50:.2f} ms\n")
        if row.at_a_time == MANY and (memory := _note(row.point, MEMORY)) != "–":
            lines.append(f"- {row.point.arm}: its processes have {memory}\n")
    above = headings("answers", "requests inside Triton", "kB on the wire", "the network's own answers")
    table = markdown(above, [_cells(row) for row in rows if row.at_a_time == MANY])
    picture = f"![Sentences per second at {MANY} at a time]({PICTURE})\n\n"
    return f"{picture}{goals_table(goals(rows))}\n{table}\n" + "".join(lines)


def _note(point: Point, name: str) -> str:
    return next((check.found for check in point.checks if check.name == name), "–")


def _cells(row: Row) -> tuple[str, ...]:
    kilobytes = row.point.transferred / 1000
    return (
        *row.cells(),
        _note(row.point, INSIDE),
        f"{kilobytes:.1f}" if kilobytes else "–",
        _note(row.point, AGREES),
    )


def _kind(arm: str) -> str:
    if arm.startswith(FASTAPI):
        return "another server"
    return "no server" if arm.startswith((PYTHON, EAGER)) else "Triton"


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
@click.option("--write", type=FOUND_FOLDER, help="Rewrite the part of this command in FOLDER/loop.md.")
def generation(
    weights: Path, data: Path | None, count: int, turns: int, window_s: float, write: Path | None
) -> None:
    """The same sentences looped by the client, by BLS and in process, and by what a user would take instead.

    Starts and stops everything itself on free ports, one after another, with the models of triton/models,
    which have to be of --weights. Every answer is checked. All in its default takes ten to fifteen minutes.
    """
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
            web_app(sentences),
            *(in_python(sentences, threads) for threads in sorted({1, cpus})),
            eager(sentences),
            *(behind_fastapi(sentences, form, *layout) for form in FORMS for layout in layouts),
        ]
        rows, left_out = run(contenders, turns, tick)
    shown = [row.point for row in rows if row.at_a_time == MANY and row.point.arm not in _CONTINUOUS]
    title = f"Sentences per second, {MANY} at a time"
    picture = {PICTURE: report.throughput(title, shown, {point.arm: _kind(point.arm) for point in shown})}
    words = f"{len(texts)} sentences, {sentences.pieces:.1f} pieces an answer.\n\n{as_markdown(rows)}"
    PART.publish(words, turns, window_s, left_out, write, picture)


if __name__ == "__main__":
    main(generation)
