"""Models of one Triton: looped by the client, by scripting, in process, streamed, and beside others."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import psutil

from generation.asking import DATA, FIRST_PIECE_MS, Exchange, Exchanged, measure_of
from generation.sentences import BenchExamples, Sentences
from gourmet import repository
from gourmet.client.address import Address
from gourmet.measure import sweep
from gourmet.measure.async_client import checked_traffic
from gourmet.measure.results import LoadSpec
from gourmet.measure.scenario import load_config, own_server, restored
from gourmet.measure.server_probe import memory_mib
from gourmet.measure.task import Addresses, Answers, MeasureOptions, Workload
from gourmet.measure.transports import RawReply, Request, Wire
from gourmet.runtime.decoding.room import CONTINUOUS_PARAMETER
from gourmet.serving.connect import connect
from gourmet.systems import registry
from gourmet.systems.translator import contract
from harness.load import BenchLoad, BenchWindow, CpuUsed, HttpClient
from harness.run import Contender, Measure

INSIDE: Final = "translator"
# What `translator_bls` asks.
_PARTS: Final = ("translator_encoder", "translator_decoder")

LOOP: Final = "loop in the client"
BLS: Final = "loop in BLS"
IN_PROCESS: Final = "loop in process"
STREAMED: Final = "loop in process, streamed"
BEAMS: Final = "loop in process, four beams"
JOINING: Final = "short ones beside long ones, joining"
NOT_JOINING: Final = "short ones beside long ones, not joining"
MIXED_LEVEL: Final = 8
# Of the processes of `translator`, after a window.
MEMORY_MIB: Final = "memory MiB"

_ASKED: Final = {
    LOOP: LoadSpec("onnx-model", through="loop"),
    BLS: LoadSpec("translator_bls"),
    IN_PROCESS: LoadSpec(INSIDE),
    STREAMED: LoadSpec("translator_stream"),
    BEAMS: LoadSpec(INSIDE),
    JOINING: LoadSpec(INSIDE),
    NOT_JOINING: LoadSpec(INSIDE),
}
_BEAMS: Final = 4
# Those beside whom somebody is measured go on for so much longer than that.
_LONGER_S: Final = 1.0
# Every fourth sentence is a long one; whether those that come later join between two steps.
CONTINUOUS: Final = {JOINING: "", NOT_JOINING: "off"}


def contender(sentences: Sentences) -> Contender:
    loads = [BenchLoad(arm, sentences.system, level) for arm in (LOOP, BLS, IN_PROCESS) for level in (1, 8)]
    loads += [BenchLoad(IN_PROCESS, sentences.system, 16)]
    loads += [BenchLoad(STREAMED, sentences.system, 1), BenchLoad(BEAMS, sentences.system, 8)]
    loads += [BenchLoad(arm, sentences.system, MIXED_LEVEL) for arm in CONTINUOUS]

    @contextmanager
    def start() -> Iterator[Measure]:
        models = {each.model for each in _ASKED.values()} | set(_PARTS)
        with own_server((repository.DEFAULT,), sorted(models)) as addresses:
            server, exchanges = GenerationServer(addresses, sentences, _ASKED), _exchanges()
            measures = dict[str, Measure]()

            def measure(load: BenchLoad) -> BenchWindow:
                if load.arm not in exchanges:
                    return server.window(load)
                if load.arm not in measures:
                    port = Address.of(addresses.url).port
                    # What a search says is not what the network says greedily.
                    agrees = load.arm != BEAMS
                    measures[load.arm] = measure_of(
                        load.arm, port, sentences, exchanges[load.arm], agrees=agrees
                    )
                return server.counted(load, measures[load.arm])

            yield measure

    return Contender("Triton", loads, start)


def _exchanges() -> dict[str, Exchange]:
    """How a text is asked for by one request, as the servers beside ours are asked."""
    found: dict[str, Exchange] = {arm: partial(_whole, _ASKED[arm].model, {}) for arm in (BLS, IN_PROCESS)}
    found[BEAMS] = partial(_whole, _ASKED[BEAMS].model, {contract.BEAMS: _BEAMS})
    found[STREAMED] = partial(_streamed, _ASKED[STREAMED].model)
    return found


def _whole(model: str, options: Mapping[str, int], client: HttpClient, text: str) -> Exchanged:
    body = json.dumps({contract.TEXT: text, **options}).encode()
    answer = client.request("POST", f"/v2/models/{model}/generate", body)
    return Exchanged(json.loads(answer)[contract.TRANSLATION], len(body) + len(answer))


def _streamed(model: str, client: HttpClient, text: str) -> Exchanged:
    body = json.dumps({contract.TEXT: text}).encode()
    began, first_ms, pieces, size = time.perf_counter(), 0.0, list[str](), len(body)
    for line in client.lines("POST", f"/v2/models/{model}/generate_stream", body):
        size += len(line)
        if line.startswith(DATA):
            first_ms = first_ms or 1000 * (time.perf_counter() - began)
            pieces.append(json.loads(line.removeprefix(DATA))[contract.TRANSLATION])
    return Exchanged("".join(pieces), size, first_ms)


def _processes_of(model: str) -> list[psutil.Process]:
    """Those of its instances, in the servers that were started here."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(Path(word).parts[-3:-2] == (model,) for word in process.cmdline()):
                found.append(process)
    return found


class _Noting(Answers):
    """Expected answers that note which rows were answered, in this order."""

    def __init__(self, of: Workload) -> None:
        super().__init__(of.answers.expected, of.rows.batched, of.answers.source)
        self.answered: list[int] = []

    def check(self, wire: Wire, request: Request, reply: RawReply) -> None:
        super().check(wire, request, reply)
        self.answered.append(request.rows[0])


class GenerationServer:
    """A server that runs, and what each of its models answers every example alone."""

    def __init__(self, addresses: Addresses, examples: BenchExamples, asked: Mapping[str, LoadSpec]) -> None:
        """`asked` says what each arm is; the answers of those that are measured whole are compared."""
        self._addresses, self._examples, self._asked = addresses, examples, asked
        self._workloads: dict[str, Workload] = {}
        self._agreement: dict[str, dict[str, float]] = {}

    def window(self, load: BenchLoad) -> BenchWindow:
        """Every answer checked, and every request counted; beside long ones, of the short ones alone."""
        if load.arm not in CONTINUOUS:
            return self._measured(load)
        with restored(self._addresses, [INSIDE]) as running:
            config = running[INSIDE]
            continuous = {CONTINUOUS_PARAMETER: {"string_value": CONTINUOUS[load.arm]}}
            parameters = {**config["parameters"], **continuous}
            load_config(self._addresses, INSIDE, {**config, "parameters": parameters})
            return self._measured(load)

    def beside(self, load: BenchLoad, others: BenchLoad) -> BenchWindow:
        """While other clients are answered as `others` says, each answer of theirs checked as well."""
        options = self._examples.options
        longer = options.warm_up_s + options.measure_s + _LONGER_S
        asked = replace(self._asked[others.arm], level=others.level)
        workload = self._workload(others.arm)
        with ThreadPoolExecutor(1) as pool:
            theirs = MeasureOptions(window_s=longer, windows=1, warm_up_s=0.0)
            ask = partial(checked_traffic, in_company=True)
            answering = pool.submit(ask, workload, asked, self._addresses, theirs)
            found = self._measured(load, in_company=True)
            answering.result()
        return found

    def counted(self, load: BenchLoad, measure: Measure) -> BenchWindow:
        """What another client measures of a model, with what only the server and its processes tell."""
        models, figures = (self._asked[load.arm].model, *_PARTS), dict[str, float]()
        with connect(self._addresses.url) as triton:
            before = [triton.total(model) for model in models]
            found = measure(load)
            asked, *inner = (
                triton.total(model).since(each).requests for model, each in zip(models, before, strict=True)
            )
        figures["requests inside"] = sum(inner) / asked
        if load.arm == IN_PROCESS:
            figures[MEMORY_MIB] = memory_mib(_processes_of(INSIDE))
        return replace(found, figures={**found.figures, **figures})

    def _measured(self, load: BenchLoad, *, in_company: bool = False) -> BenchWindow:
        workload, looks = self._workload(load.arm), list[CpuUsed]()
        noting = _Noting(workload)
        traffic, _ = checked_traffic(
            replace(workload, answers=noting),
            replace(self._asked[load.arm], level=load.level),
            self._addresses,
            self._examples.options,
            lambda: looks.append(CpuUsed.now()),
            in_company=in_company,
        )
        due, _, done = traffic.arrays()
        held, answers, figures = traffic.holds(done), len(traffic.times), dict[str, float]()
        if load.arm in CONTINUOUS:
            sizes = np.array([len(example) for example in workload.rows.examples])
            held &= 2 * sizes[noting.answered] < sizes.max()
        else:
            figures = {
                "requests": traffic.requests_sent / answers,
                "bytes": traffic.transferred / answers,
                **self._agreement[load.arm],
            }
        if any(traffic.pieces):
            first = np.array([moments[0] for moments in traffic.pieces]) - due
            figures[FIRST_PIECE_MS] = 1000 * float(np.median(first[held]))
        seconds = traffic.ended - traffic.began
        foreign_cores = looks[1].foreign_since(looks[0]) / seconds
        took_ms = tuple((1000 * (done - due)[held]).tolist())
        return BenchWindow(load, seconds, took_ms, foreign_cores, figures=figures)

    def _workload(self, arm: str) -> Workload:
        if arm not in self._workloads:
            asked, examples = self._asked[arm], self._examples
            workload = sweep.prepare(
                asked.model,
                self._addresses,
                examples.source(arm),
                through=asked.through,
                stepped=examples.system if asked.through == "loop" else "",
            )
            self._agreement[arm] = {}
            if arm not in CONTINUOUS:
                info = workload.rows.info
                system = registry.generation(info.system or examples.system)
                answers = [system.generated(answer, info).text for answer in workload.answers.expected]
                self._agreement[arm] = examples.agreement(arm, answers)
            self._workloads[arm] = workload
        return self._workloads[arm]
