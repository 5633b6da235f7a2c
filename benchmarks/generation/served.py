"""Sentences through models of one Triton: looped by the client, by scripting, in process, and streamed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from generation.windows import Key, SentenceWindow, foreign
from gourmet import repository
from gourmet.measure import sweep
from gourmet.measure.async_client import Load, checked_traffic
from gourmet.measure.inputs import DataSource
from gourmet.measure.results import LoadSpec
from gourmet.measure.scenario import load_config, restored
from gourmet.measure.scenarios.own_server import own_server
from gourmet.measure.task import Addresses, MeasureOptions, Workload, wire_for
from gourmet.measure.transports import RawReply, Request
from gourmet.runtime.decoding.room import CONTINUOUS_PARAMETER
from gourmet.serving.client import booked, statistics_now
from gourmet.systems.translator.contract import SYSTEM, TRANSLATION
from peers.processes import CpuUsed, spent

STEP: Final = "onnx-model"
INSIDE: Final = "translator"
# What `translator_bls` asks.
_PARTS: Final = ("translator_encoder", "translator_decoder")


@dataclass(frozen=True)
class ServedArm:
    """A way to the translation of a sentence, and what its clients ask."""

    name: str
    demand: LoadSpec
    levels: tuple[int, ...]


LOOP: Final = ServedArm("loop in the client", LoadSpec(STEP, through="loop"), (1, 8))
BLS: Final = ServedArm("loop in BLS", LoadSpec("translator_bls"), (1, 8))
IN_PROCESS: Final = ServedArm("loop in process", LoadSpec(INSIDE), (1, 8))
STREAMED: Final = ServedArm("loop in process, streamed", LoadSpec("translator_stream"), (1,))
ARMS: Final = (LOOP, BLS, IN_PROCESS, STREAMED)
# Every fourth sentence is a long one; whether those that come later join between two steps.
JOINING: Final = ("short ones beside long ones, joining", "")
NOT_JOINING: Final = ("short ones beside long ones, not joining", "off")
MIXED: Final = (JOINING, NOT_JOINING)
MIXED_LEVEL: Final = 8


@dataclass(frozen=True)
class Sentences:
    """Folders of files with a sentence each: usual ones, and short ones with a long one now and then."""

    usual: Path
    mixed: Path

    @staticmethod
    def source(folder: Path) -> DataSource:
        return DataSource(len(list(folder.iterdir())), folder=folder)


@contextmanager
def serving(sentences: Sentences, effort: MeasureOptions) -> Iterator[ServedBench]:
    with own_server((repository.DEFAULT,), [*(arm.demand.model for arm in ARMS), *_PARTS]) as addresses:
        yield ServedBench(addresses, sentences, effort)


class ServedBench:
    """A server that runs, and what each of its models answers every sentence alone."""

    def __init__(self, addresses: Addresses, sentences: Sentences, effort: MeasureOptions) -> None:
        self._addresses, self._sentences, self._effort = addresses, sentences, effort
        self._workloads: dict[str, Workload] = {}

    def answers(self, arm: ServedArm) -> list[str]:
        """What it says to every sentence when nothing else is asked."""
        expected = self._workload(arm).answers.expected
        return [answer[TRANSLATION].ravel()[0].decode() for answer in expected]

    def window(self, arm: ServedArm, key: Key) -> SentenceWindow:
        """Every answer checked, and every request counted."""
        workload, demand = self._workload(arm), replace(arm.demand, level=key.level)
        url = self._addresses.url
        looks: list[CpuUsed] = []
        before = {model: statistics_now(url, model) for model in _PARTS}
        traffic, _ = checked_traffic(
            workload, demand, self._addresses, self._effort, lambda: looks.append(spent({}, os.getpid()))
        )
        inner = sum(booked(url, m, before[m], lambda _: True).requests for m in _PARTS)
        answers = len(traffic.times)
        figures = {
            "requests": traffic.requests_sent / answers,
            "requests inside": inner / answers,
            "bytes": traffic.transferred / answers,
        }
        if any(traffic.pieces):
            due, _, done = traffic.arrays()
            first = np.array([moments[0] for moments in traffic.pieces]) - due
            figures["first piece ms"] = 1000 * float(np.median(first[traffic.holds(done)]))
        return _window(key, traffic, looks, np.ones(answers, bool), figures)

    def mixed(self, continuous: str, key: Key) -> SentenceWindow:
        """Of the short ones alone, with the model's parameter as it is given."""
        with restored(self._addresses, [INSIDE]) as running:
            config = running[INSIDE]
            parameters = {**config["parameters"], CONTINUOUS_PARAMETER: {"string_value": continuous}}
            load_config(self._addresses, INSIDE, {**config, "parameters": parameters})
            workload, demand = self._mixed_workload, LoadSpec(INSIDE, key.level)
            wire = wire_for(self._addresses, demand, workload.rows)
            looks: list[CpuUsed] = []
            answered: list[int] = []

            def check(request: Request, reply: RawReply) -> None:
                workload.answers.check(wire, request, reply)
                answered.append(request.rows[0])

            asked = itertools.cycle([wire.request((row,)) for row in range(len(workload.rows))])
            traffic = Load(
                wire,
                asked,
                demand,
                check,
                self._effort.warm_up_s,
                self._effort.measure_s,
                lambda: looks.append(spent({}, os.getpid())),
            ).run()
        longest = max(map(len, workload.rows.examples))
        short = np.array([2 * len(workload.rows.examples[row]) < longest for row in answered])
        return _window(key, traffic, looks, short, {})

    def _workload(self, arm: ServedArm) -> Workload:
        if arm.name not in self._workloads:
            through = arm.demand.through
            self._workloads[arm.name] = sweep.prepare(
                arm.demand.model,
                self._addresses,
                Sentences.source(self._sentences.usual),
                through=through,
                stepped=SYSTEM.name if through == "loop" else "",
            )
        return self._workloads[arm.name]

    @cached_property
    def _mixed_workload(self) -> Workload:
        return sweep.prepare(INSIDE, self._addresses, Sentences.source(self._sentences.mixed))


def _window(
    key: Key, traffic: Load, looks: list[CpuUsed], which: npt.NDArray[np.bool_], figures: dict[str, float]
) -> SentenceWindow:
    due, _, done = traffic.arrays()
    ours = traffic.holds(done) & which
    seconds = traffic.ended - traffic.began
    return SentenceWindow.of(key, (done - due)[ours], seconds, foreign(looks, seconds), **figures)
