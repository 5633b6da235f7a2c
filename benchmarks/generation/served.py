"""Sentences through models of one Triton: looped by the client, by scripting, in process, and streamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np

from generation.sentences import Sentences
from gourmet import repository
from gourmet.measure import sweep
from gourmet.measure.async_client import checked_traffic
from gourmet.measure.results import LoadSpec
from gourmet.measure.scenario import load_config, own_server, restored
from gourmet.measure.task import Addresses, Answers, Workload
from gourmet.measure.transports import RawReply, Request, Wire
from gourmet.runtime.decoding.room import CONTINUOUS_PARAMETER
from gourmet.serving.connect import connect
from gourmet.systems.translator.contract import SYSTEM, TRANSLATION
from harness.load import BenchLoad, BenchWindow, CpuUsed
from harness.run import Contender, Measure

INSIDE: Final = "translator"
# What `translator_bls` asks.
_PARTS: Final = ("translator_encoder", "translator_decoder")

LOOP: Final = "loop in the client"
BLS: Final = "loop in BLS"
IN_PROCESS: Final = "loop in process"
STREAMED: Final = "loop in process, streamed"
JOINING: Final = "short ones beside long ones, joining"
NOT_JOINING: Final = "short ones beside long ones, not joining"
MIXED_LEVEL: Final = 8
FIRST_PIECE_MS: Final = "first piece ms"

_ASKED: Final = {
    LOOP: LoadSpec("onnx-model", through="loop"),
    BLS: LoadSpec("translator_bls"),
    IN_PROCESS: LoadSpec(INSIDE),
    STREAMED: LoadSpec("translator_stream"),
    JOINING: LoadSpec(INSIDE),
    NOT_JOINING: LoadSpec(INSIDE),
}
# Every fourth sentence is a long one; whether those that come later join between two steps.
_CONTINUOUS: Final = {JOINING: "", NOT_JOINING: "off"}


def contender(sentences: Sentences) -> Contender:
    loads = [BenchLoad(arm, "sentences", level) for arm in (LOOP, BLS, IN_PROCESS) for level in (1, 8)]
    loads += [BenchLoad(STREAMED, "sentences", 1)]
    loads += [BenchLoad(arm, "sentences", MIXED_LEVEL) for arm in _CONTINUOUS]

    @contextmanager
    def start() -> Iterator[Measure]:
        models = {each.model for each in _ASKED.values()} | set(_PARTS)
        with own_server((repository.DEFAULT,), sorted(models)) as addresses:
            yield _Server(addresses, sentences).window

    return Contender("Triton", loads, start)


class _Noting(Answers):
    """Expected answers that note which rows were answered, in this order."""

    def __init__(self, of: Workload) -> None:
        super().__init__(of.answers.expected, of.rows.batched, of.answers.source)
        self.answered: list[int] = []

    def check(self, wire: Wire, request: Request, reply: RawReply) -> None:
        super().check(wire, request, reply)
        self.answered.append(request.rows[0])


class _Server:
    """A server that runs, and what each of its models answers every sentence alone."""

    def __init__(self, addresses: Addresses, sentences: Sentences) -> None:
        self._addresses, self._sentences = addresses, sentences
        self._workloads: dict[str, Workload] = {}
        self._agreement: dict[str, dict[str, float]] = {}

    def window(self, load: BenchLoad) -> BenchWindow:
        """Every answer checked, and every request counted; beside long ones, of the short ones alone."""
        if load.arm not in _CONTINUOUS:
            return self._measured(load)
        with restored(self._addresses, [INSIDE]) as running:
            config = running[INSIDE]
            continuous = {CONTINUOUS_PARAMETER: {"string_value": _CONTINUOUS[load.arm]}}
            parameters = {**config["parameters"], **continuous}
            load_config(self._addresses, INSIDE, {**config, "parameters": parameters})
            return self._measured(load)

    def _measured(self, load: BenchLoad) -> BenchWindow:
        workload, looks = self._workload(load.arm), list[CpuUsed]()
        noting = _Noting(workload)
        with connect(self._addresses.url) as triton:
            before = {model: triton.total(model) for model in _PARTS}
            traffic, _ = checked_traffic(
                replace(workload, answers=noting),
                replace(_ASKED[load.arm], level=load.level),
                self._addresses,
                self._sentences.options,
                lambda: looks.append(CpuUsed.now()),
            )
            inner = sum(triton.total(model).since(before[model]).requests for model in _PARTS)
        due, _, done = traffic.arrays()
        held, answers, figures = traffic.holds(done), len(traffic.times), dict[str, float]()
        if load.arm in _CONTINUOUS:
            sizes = np.array([len(example) for example in workload.rows.examples])
            held &= 2 * sizes[noting.answered] < sizes.max()
        else:
            figures = {
                "requests": traffic.requests_sent / answers,
                "requests inside": inner / answers,
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
            asked, mixed = _ASKED[arm], arm in _CONTINUOUS
            workload = sweep.prepare(
                asked.model,
                self._addresses,
                self._sentences.mixed if mixed else self._sentences.usual,
                through=asked.through,
                stepped=SYSTEM.name if asked.through == "loop" else "",
            )
            if not mixed:
                answers = [answer[TRANSLATION].ravel()[0].decode() for answer in workload.answers.expected]
                self._agreement[arm] = self._sentences.agreement(arm, answers)
            self._workloads[arm] = workload
        return self._workloads[arm]
