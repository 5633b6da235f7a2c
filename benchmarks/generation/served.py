"""Measure models of one Triton: the loop in the client, in scripting, in process, and streamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from generation.sentences import Sentences
from gourmet import repository
from gourmet.measure import sweep
from gourmet.measure.async_client import checked_traffic
from gourmet.measure.results import LoadSpec
from gourmet.measure.server_probe import memory_mib
from gourmet.measure.sweep import load_config, restored
from gourmet.measure.task import Addresses, Workload
from gourmet.runtime.decoding.room import CONTINUOUS_PARAMETER
from gourmet.serving.connect import connect
from gourmet.systems.translator.contract import SYSTEM
from harness.run import Contender, Measure, own_triton
from harness.windows import BenchLoad, BenchWindow, Meter

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

_LOADS: Final = {
    LOOP: LoadSpec("onnx-model", through="loop"),
    BLS: LoadSpec("translator_bls"),
    IN_PROCESS: LoadSpec(INSIDE),
    STREAMED: LoadSpec("translator_stream"),
    BEAMS: LoadSpec(INSIDE),
    JOINING: LoadSpec(INSIDE),
    NOT_JOINING: LoadSpec(INSIDE),
}
_BEAMS: Final = 4
# Every fourth sentence is a long one; whether those that come later join between two steps.
CONTINUOUS: Final = {JOINING: "", NOT_JOINING: "off"}


def contender(sentences: Sentences) -> Contender:
    loads = [BenchLoad(arm, SYSTEM.name, level) for arm in (LOOP, BLS, IN_PROCESS) for level in (1, 8)]
    loads += [BenchLoad(IN_PROCESS, SYSTEM.name, 16)]
    loads += [BenchLoad(STREAMED, SYSTEM.name, 1), BenchLoad(BEAMS, SYSTEM.name, 8)]
    loads += [BenchLoad(arm, SYSTEM.name, MIXED_LEVEL) for arm in CONTINUOUS]

    @contextmanager
    def start() -> Iterator[Measure]:
        models = {spec.model for spec in _LOADS.values()} | set(_PARTS)
        with own_triton((repository.DEFAULT,), sorted(models)) as addresses:
            yield GenerationServer(addresses, sentences).window

    return Contender("Triton", loads, start)


def _processes_of(model: str) -> list[psutil.Process]:
    """Return the processes of the model's instances, in the servers that were started here."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(Path(word).parts[-3:-2] == (model,) for word in process.cmdline()):
                processes.append(process)
    return processes


class GenerationServer:
    """A running server, and the answers of its models to each sentence alone."""

    def __init__(self, addresses: Addresses, sentences: Sentences) -> None:
        self._addresses, self._sentences = addresses, sentences
        self._workloads: dict[str, Workload] = {}
        self._agreement: dict[str, dict[str, float]] = {}

    def window(self, load: BenchLoad) -> BenchWindow:
        """Measure a window; check every answer, count every request. Mixed loads count short texts only."""
        if load.arm not in CONTINUOUS:
            return self._measured(load)
        with restored(self._addresses, [INSIDE]) as running:
            config = running[INSIDE]
            continuous = {CONTINUOUS_PARAMETER: {"string_value": CONTINUOUS[load.arm]}}
            parameters = {**config["parameters"], **continuous}
            load_config(self._addresses, INSIDE, {**config, "parameters": parameters})
            return self._measured(load)

    def _measured(self, load: BenchLoad) -> BenchWindow:
        workload, spec, meter = self._workload(load.arm), _LOADS[load.arm], Meter()
        models, sizes = (spec.model, *_PARTS), [len(example) for example in workload.rows.examples]
        with connect(self._addresses.url) as triton:
            before = [triton.total(model) for model in models]
            traffic, _ = checked_traffic(
                workload,
                replace(spec, level=load.level),
                self._addresses,
                self._sentences.options,
                meter.look,
            )
            outside, *inside = (
                triton.total(model).since(counts).requests
                for model, counts in zip(models, before, strict=True)
            )
        figures = {"requests inside": sum(inside) / outside, **self._agreement[load.arm]}
        if load.arm == IN_PROCESS:
            figures[MEMORY_MIB] = memory_mib(_processes_of(INSIDE))
        if load.arm in CONTINUOUS:
            return meter.window(load, traffic, figures, lambda sent: 2 * sizes[sent.rows[0]] < max(sizes))
        return meter.window(load, traffic, figures)

    def _workload(self, arm: str) -> Workload:
        if arm not in self._workloads:
            spec = _LOADS[arm]
            data = self._sentences.source(arm)
            workload = sweep.prepare(
                spec.model,
                self._addresses,
                replace(data, options={"beams": _BEAMS}) if arm == BEAMS else data,
                through=spec.through,
                stepped=SYSTEM.name if spec.through == "loop" else "",
            )
            self._agreement[arm] = {}
            # What a search says is not what the network says greedily.
            if arm not in (BEAMS, *CONTINUOUS):
                info = workload.rows.info
                answers = [SYSTEM.generated(answer, info).text for answer in workload.answers.expected]
                self._agreement[arm] = self._sentences.agreement(arm, answers)
            self._workloads[arm] = workload
        return self._workloads[arm]
