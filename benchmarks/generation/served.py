"""Sentences through models of one Triton: looped by the client, by scripting, in process, and streamed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from generation.sentences import Sentences
from gourmet import repository
from gourmet.measure import sweep
from gourmet.measure.async_client import Load, checked_traffic
from gourmet.measure.results import LoadSpec
from gourmet.measure.scenario import load_config, restored
from gourmet.measure.scenarios.own_server import own_server
from gourmet.measure.task import Addresses, Workload, wire_for
from gourmet.measure.transports import RawReply, Request
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
}
# Every fourth sentence is a long one; whether those that come later join between two steps.
_CONTINUOUS: Final = {JOINING: "", NOT_JOINING: "off"}


def contender(sentences: Sentences) -> Contender:
    loads = [BenchLoad(arm, "sentences", level) for arm in (LOOP, BLS, IN_PROCESS) for level in (1, 8)]
    loads += [BenchLoad(STREAMED, "sentences", 1)]
    loads += [BenchLoad(arm, "sentences", MIXED_LEVEL) for arm in _CONTINUOUS]

    @contextmanager
    def start() -> Iterator[Measure]:
        with own_server((repository.DEFAULT,), [*(each.model for each in _ASKED.values()), *_PARTS]) as at:
            server = _Server(at, sentences)
            yield lambda load: (server.mixed if load.arm in _CONTINUOUS else server.window)(load)

    return Contender("Triton", loads, start)


class _Server:
    """A server that runs, and what each of its models answers every sentence alone."""

    def __init__(self, addresses: Addresses, sentences: Sentences) -> None:
        self._addresses, self._sentences, self._options = addresses, sentences, sentences.options
        self._workloads: dict[str, Workload] = {}
        self._agreement: dict[str, dict[str, float]] = {}

    def window(self, load: BenchLoad) -> BenchWindow:
        """Every answer checked, and every request counted."""
        workload, demand = self._workload(load.arm), replace(_ASKED[load.arm], level=load.level)
        looks: list[CpuUsed] = []
        with connect(self._addresses.url) as triton:
            before = {model: triton.total(model) for model in _PARTS}
            traffic, _ = checked_traffic(
                workload, demand, self._addresses, self._options, lambda: looks.append(CpuUsed.now())
            )
            inner = sum(triton.total(model).since(before[model]).requests for model in _PARTS)
        answers = len(traffic.times)
        figures = {
            "requests": traffic.requests_sent / answers,
            "requests inside": inner / answers,
            "bytes": traffic.transferred / answers,
            **self._agreement[load.arm],
        }
        if any(traffic.pieces):
            due, _, done = traffic.arrays()
            first = np.array([moments[0] for moments in traffic.pieces]) - due
            figures[FIRST_PIECE_MS] = 1000 * float(np.median(first[traffic.holds(done)]))
        return _window(load, traffic, looks, np.ones(answers, bool), figures)

    def mixed(self, load: BenchLoad) -> BenchWindow:
        """Of the short ones alone, with the model's parameter as the arm has it."""
        with restored(self._addresses, [INSIDE]) as running:
            config = running[INSIDE]
            continuous = {CONTINUOUS_PARAMETER: {"string_value": _CONTINUOUS[load.arm]}}
            load_config(
                self._addresses, INSIDE, {**config, "parameters": {**config["parameters"], **continuous}}
            )
            workload, demand = self._mixed_workload, LoadSpec(INSIDE, load.level)
            wire = wire_for(self._addresses, demand, workload.rows)
            looks: list[CpuUsed] = []
            answered: list[int] = []

            def check(request: Request, reply: RawReply) -> None:
                workload.answers.check(wire, request, reply)
                answered.append(request.rows[0])

            traffic = Load(
                wire,
                itertools.cycle([wire.request((row,)) for row in range(len(workload.rows))]),
                demand,
                check,
                self._options.warm_up_s,
                self._options.measure_s,
                lambda: looks.append(CpuUsed.now()),
            ).run()
        longest = max(map(len, workload.rows.examples))
        short = np.array([2 * len(workload.rows.examples[row]) < longest for row in answered])
        return _window(load, traffic, looks, short, {})

    def _workload(self, arm: str) -> Workload:
        if arm not in self._workloads:
            asked = _ASKED[arm]
            workload = sweep.prepare(
                asked.model,
                self._addresses,
                self._sentences.usual,
                through=asked.through,
                stepped=SYSTEM.name if asked.through == "loop" else "",
            )
            said = [answer[TRANSLATION].ravel()[0].decode() for answer in workload.answers.expected]
            self._agreement[arm] = self._sentences.agreement(arm, said)
            self._workloads[arm] = workload
        return self._workloads[arm]

    @cached_property
    def _mixed_workload(self) -> Workload:
        return sweep.prepare(INSIDE, self._addresses, self._sentences.mixed)


def _window(
    load: BenchLoad,
    traffic: Load,
    looks: list[CpuUsed],
    which: npt.NDArray[np.bool_],
    figures: dict[str, float],
) -> BenchWindow:
    due, _, done = traffic.arrays()
    took_ms = 1000 * (done - due)[traffic.holds(done) & which]
    seconds = traffic.ended - traffic.began
    before, after = looks
    foreign_cores = after.foreign_since(before) / seconds
    return BenchWindow(load, seconds, tuple(took_ms.tolist()), foreign_cores, figures=figures)
