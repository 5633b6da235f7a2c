"""A translator as the files that its served models open, each compared with the loop of transformers.

What is served is the network in eight bits (gourmet.tasks.generation.int8), unless it is asked for fp32.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from gourmet import repository
from gourmet.client.model_config import as_json
from gourmet.contracts import SYSTEM_PARAMETER, THRESHOLD_PARAMETER
from gourmet.deploying.target import Calibrated, Check, Deployment, Export, Target
from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.answers import Parts
from gourmet.runtime.decoding.engine import Engine
from gourmet.runtime.decoding.loop import Row
from gourmet.runtime.instances import available_cpus
from gourmet.runtime.manifest import sha256
from gourmet.systems.translator.contract import SYSTEM, Translator, text_of
from gourmet.systems.translator.data import DATA
from gourmet.systems.translator.evaluate import MAX_TOKENS, answered
from gourmet.systems.translator.graphs import Encoder, TranslatorStep, Whole
from gourmet.systems.translator.network import Checkpoint, find, load
from gourmet.systems.translator.serving import DECODER, ENCODER, SERVING, TranslatorNetwork, open_engine
from gourmet.systems.translator.tokenizer import Tokenizer
from gourmet.tasks.generation import served
from gourmet.tasks.generation.certainty import certainty, judged
from gourmet.tasks.generation.comparison import EXAMPLES, TextCandidate, chrf
from gourmet.tasks.generation.graphs import OPSET, Graph, step_graph
from gourmet.tasks.generation.int8 import quantized
from gourmet.tasks.onnx_metadata import described
from gourmet.tasks.system_parts import BadData, EmptyPart, Reference, TextData
from gourmet.training.task import Tick

_VALIDATION: Final = "validation"
_VERIFIED: Final = 500
_CALIBRATED: Final = 5000
_ROWS: Final = 16
_LICENSE: Final = "other: research data, for demonstration and study"
_WHOLE: Final = 50  # places of a source and a target in `onnx-model`
_CODE: Final = "model.py"


def graphs(network: Any) -> dict[str, Graph]:
    """The encoder and the step, by the names of their files."""
    words = {0: "rows", 1: "words"}
    ids, mask = torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int32)
    encoder = Graph(
        Encoder(network),
        {"ids": ids, "mask": mask},
        ("hidden", "memory"),
        {"ids": words, "mask": words, "hidden": words, "memory": {0: "rows", 4: "words"}},
    )
    return {ENCODER: encoder, DECODER: step_graph(TranslatorStep(network), apart=True)}


def whole(network: nn.Module) -> Graph:
    ids = torch.ones(2, _WHOLE, dtype=torch.int32)
    rows = {0: "rows"}
    axes = {"source": rows, "target": rows, "output": {0: "rows", 1: "words"}}
    return Graph(Whole(network), {"source": ids, "target": ids}, ("output",), axes)


@dataclass(frozen=True)
class TrainedTranslator:
    """A checkpoint, and what its network answers in 32 bits to sentences held out; both as numbers."""

    checkpoint: Checkpoint
    sources: Sequence[Sequence[int]]
    answers: Sequence[Sequence[int]]
    fp32: bool = False
    system: Translator = SYSTEM

    @cached_property
    def network(self) -> Any:
        """Return the network that is served."""
        if self.fp32:
            return self.checkpoint.network
        tokenizer = self.checkpoint.tokenizer
        return quantized(self.checkpoint.network, lambda network: answered(network, tokenizer, self.sources))

    @property
    def form(self) -> str:
        return "fp32" if self.fp32 else "int8"

    @cached_property
    def files(self) -> dict[str, bytes]:
        """All that a Python model needs."""
        return self.checkpoint.files | {name: graph.file() for name, graph in self.graphs.items()}

    @property
    def graphs(self) -> dict[str, Graph]:
        return graphs(self.network)

    def package(self, path: Path) -> dict[str, Any]:
        return served.write_package(path, self.files, self.form)

    def reference(self, path: Path) -> dict[str, Any]:
        return served.write_reference(path, self.files, self.system.default_model)

    def graph(self, graph: Graph, path: Path) -> dict[str, Any]:
        graph.write(path)
        return {"form": f"ONNX, {self.form}", "opset": OPSET}

    def agreement(self, path: Path) -> Sequence[Check]:
        """The loop that is served against that of transformers.

        The last place of an answer without an end is not compared: some checkpoints force an end there.
        """
        tokenizer = self.checkpoint.tokenizer
        engine = open_engine(package.read(path), available_cpus(), tokenizer.pad)
        found = served_answers(engine, tokenizer, self.sources)
        how = partial(served.agreement, what="sentences", compared=MAX_TOKENS - 1)
        return how(tokenizer, found, self.answers, fp32=self.fp32)


def served_answers(
    engine: Engine, tokenizer: Tokenizer, sources: Sequence[Sequence[int]], rows_at_once: int = _ROWS
) -> list[list[int]]:
    rows = [Row(each, MAX_TOKENS) for each in sources]
    return served.served_answers(engine, tokenizer, rows, rows_at_once)


@dataclass(frozen=True)
class TranslatorExport:
    """Fulfils `gourmet.deploying.target.Quantizing`."""

    fp32: bool = False
    system: Translator = SYSTEM
    data: TextData = DATA

    @property
    def formats(self) -> tuple[str, ...]:
        """The others are for study, and ours alone."""
        others = ("encoder", "decoder", "bls", "whole") if self.system == SYSTEM else ()
        return ("python", "stream", *others)

    def in_fp32(self) -> TranslatorExport:
        return replace(self, fp32=True)

    def find(self, checkpoint: str) -> Path:
        return find(checkpoint)

    def open(self, weights: Path, data: Path | None, tick: Tick, *, architecture: str = "") -> Deployment:
        checkpoint = load(weights)
        if data is None:
            texts = [text.decode() for text in self.system.examples(32, seed=0)]
        else:
            texts = [pair.text for pair in self.data.references(data, _VALIDATION, _VERIFIED)]
        sources = [checkpoint.tokenizer.encode(text) for text in texts]
        answers = answered(checkpoint.network, checkpoint.tokenizer, sources, tick)
        source = TrainedTranslator(checkpoint, sources, answers, self.fp32, self.system)
        facts = {
            "network": {"system": self.system.name, "architecture": "Marian", "shape": checkpoint.about},
            "training": {"weights_sha256": sha256(weights), "epoch": checkpoint.about.get("epoch")},
            "verified_on": "examples" if data is None else "sentences held out",
        }
        targets = self._compared(_targets(source), source, sha256(weights), data)
        if data is None:
            return Deployment(targets, facts)
        sure = self._calibrated(source.files, data, tick)
        return Deployment(targets, {**facts, **sure.facts}, sure.calibration)

    def _compared(
        self, targets: Mapping[str, Target], source: TrainedTranslator, weights: str, data: Path | None
    ) -> dict[str, Target]:
        """Return the targets with a comparison: on sentences of the data, or on those that are shipped."""
        known = self.system.meanings.items()
        references: Sequence[Reference] = [Reference("", *pair) for pair in known if all(pair)]
        for part in ("test", _VALIDATION):
            if not data:
                break
            with contextlib.suppress(EmptyPart):
                references = self.data.references(data, part, EXAMPLES)
                break

        def ask(network: TranslatorNetwork) -> list[Parts]:
            return [network.parts(self.system.written(text_of(pair.text))) for pair in references]

        candidate = TextCandidate(
            self.system.default_model,
            SERVING,
            lambda: source.files,
            weights,
            chrf(references, ask) if references else None,
            "name sentences and their translations with --data",
        )
        return {name: replace(target, compare=candidate.compare) for name, target in targets.items()}

    def calibrated(self, version: Path, data: Path, tick: Tick) -> Calibrated:
        config = as_json(repository.read_config(version.parent))
        return self._calibrated(package.open_version(version, config), data, tick)

    def _calibrated(self, files: Mapping[str, bytes], data: Path, tick: Tick) -> Calibrated:
        """Chosen on validation, and measured there and on test, where there is one."""
        network = TranslatorNetwork.open(files, available_cpus())
        parts = {}
        for part in (_VALIDATION, "test"):
            try:
                references = self.data.references(data, part, _CALIBRATED)
            except EmptyPart:
                if part == _VALIDATION:
                    raise
                continue
            try:
                texts = [text_of(each.text) for each in references]
            except ValueError as exc:
                raise BadData(f"{data} has a text that no translator is asked about: {exc}") from exc
            asked = [network.parts(self.system.written(text)) for text in texts]
            answers = served.whole_answers(network, asked, _ROWS, tick)
            warned = [
                self.system.with_warning(reference.text.encode(), answer)
                for reference, answer in zip(references, answers, strict=True)
            ]
            parts[part] = judged(references, warned)
        found = certainty(_VALIDATION, parts)
        return Calibrated(
            {THRESHOLD_PARAMETER: found.threshold}, {"certainty": found.as_dict()}, list(found.lines())
        )


def _targets(source: TrainedTranslator) -> dict[str, Target]:
    """Return the targets of the formats, by name."""
    system = source.system
    package_of = Target(system.default_model, package.FILE, source.package, source.agreement)
    if system != SYSTEM:
        stream = Target(system.streaming_model, package.REFERENCE, source.reference, lambda path: ())
        return {
            "python": _like(SYSTEM.default_model, package_of, system),
            "stream": _like(SYSTEM.streaming_model, stream, system),
        }
    encoder = source.graphs[ENCODER]
    # As a model of its own it is asked with two inputs instead of eight, each of which is a message.
    decoder = step_graph(TranslatorStep(source.network))

    def graph(model: str, graph: Graph) -> Target:
        build, verify = partial(source.graph, graph), graph.same_shapes
        target = Target(model, "model.onnx", build, verify, dims=graph.dims())
        return described(target, SYSTEM.name, _LICENSE)

    def reference(model: str) -> Target:
        return Target(model, package.REFERENCE, source.reference, lambda path: ())

    return {
        "python": package_of,
        "stream": reference(SYSTEM.streaming_model),
        "encoder": graph("translator_encoder", encoder),
        "decoder": graph("translator_decoder", decoder),
        "bls": reference("translator_bls"),
        "whole": graph("onnx-model", whole(source.network)),
    }


def _like(ours: str, target: Target, system: Translator) -> Target:
    """One that a repository need not have: its config and its code are then those of our model."""
    there = repository.DEFAULT / ours
    config = as_json(repository.read_config(there))
    config["parameters"][SYSTEM_PARAMETER] = {"string_value": system.name}

    def build(path: Path) -> dict[str, Any]:
        if not (code := path.with_name(_CODE)).exists():
            shutil.copyfile(there / str(repository.versions(there)[-1]) / _CODE, code)
        return target.build(path)

    return replace(target, build=build, config={**config, "name": target.model})


EXPORT: Final[Export] = TranslatorExport()
