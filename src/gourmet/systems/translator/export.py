"""The translator as the files that its served models open, each compared with the loop of transformers.

All graphs are quantized: their weights are int8, and what goes through them is quantized as it comes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import onnx
import onnxruntime
import torch
from torch import nn

from gourmet.deploying.target import Check, Deployment, Export, Target
from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.engine import Engine
from gourmet.runtime.decoding.loop import Loop
from gourmet.runtime.decoding.rows import Row
from gourmet.runtime.instances import available_cpus
from gourmet.runtime.manifest import sha256
from gourmet.systems.translator.contract import SYSTEM
from gourmet.systems.translator.data import DATA
from gourmet.systems.translator.graphs import Encoder, StepNetwork, Whole
from gourmet.systems.translator.int8 import quantize
from gourmet.systems.translator.network import Checkpoint, find, load
from gourmet.systems.translator.serving import DECODER, ENCODER, open_engine
from gourmet.systems.translator.tokenizer import FILES, Tokenizer
from gourmet.systems.translator.translating import MAX_TOKENS, answered
from gourmet.training.task import Tick

OPSET: Final = 17
_VERIFIED: Final = 500
# Of sentences whose words are those of the network: quantized, and not.
_AGREES: Final = 0.99
_ROWS: Final = 16
_WHOLE: Final = 50  # places of a source and a target in `onnx-model`


@dataclass(frozen=True)
class Graph:
    """A part of the network as ONNX: what it is given, and which of the axes may be of any size."""

    module: Callable[[Any], nn.Module]
    inputs: Mapping[str, torch.Tensor]
    outputs: Sequence[str]
    axes: Mapping[str, Mapping[int, str]]

    def write(self, network: nn.Module, path: Path, *, quantized: bool) -> None:
        with TemporaryDirectory() as folder:
            plain = Path(folder) / "plain.onnx"
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the exporter, about constants that are constant
                torch.onnx.export(
                    self.module(network).eval(),
                    tuple(self.inputs.values()),
                    str(plain),
                    dynamo=False,
                    input_names=list(self.inputs),
                    output_names=list(self.outputs),
                    dynamic_axes={name: dict(axes) for name, axes in self.axes.items()},
                    opset_version=OPSET,
                )
            if quantized:
                quantize(plain, path)
            else:
                plain.rename(path)
        onnx.checker.check_model(str(path), full_check=True)

    def dims(self, network: nn.Module) -> dict[str, list[int]]:
        """Each tensor's shape without its rows, as the config of a served model says it."""
        with torch.inference_mode():
            found = self.module(network).eval()(*self.inputs.values())
        outputs = zip(self.outputs, found if isinstance(found, tuple) else (found,), strict=True)
        return {
            name: [-1 if axis in self.axes[name] else size for axis, size in enumerate(tensor.shape) if axis]
            for name, tensor in (*self.inputs.items(), *outputs)
        }


def graphs(network: Any) -> dict[str, Graph]:
    """The encoder and the step, by the names of their files."""
    config = network.config
    layers, heads = config.decoder_layers, config.decoder_attention_heads
    row = (2, layers, 2, heads)
    ids, mask = torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int32)
    one = torch.ones(2, 1, dtype=torch.int64)
    cache, memory = (torch.zeros(*row, words, config.d_model // heads) for words in (3, 5))
    rows, words = {0: "rows"}, {0: "rows", 1: "words"}
    return {
        ENCODER: Graph(
            Encoder,
            {"ids": ids, "mask": mask},
            ("hidden", "memory"),
            {"ids": words, "mask": words, "hidden": words, "memory": {0: "rows", 4: "words"}},
        ),
        DECODER: Graph(
            StepNetwork,
            {"token": one, "length": one, "cache": cache, "memory": memory, "mask": mask},
            ("tokens", "scores", "added"),
            {
                **dict.fromkeys(("token", "length", "tokens", "scores", "added"), rows),
                "cache": {0: "rows", 4: "age"},
                "memory": {0: "rows", 4: "words"},
                "mask": words,
            },
        ),
    }


def whole(network: nn.Module) -> Graph:
    ids = torch.ones(2, _WHOLE, dtype=torch.int32)
    rows = {0: "rows"}
    axes = {"source": rows, "target": rows, "output": {0: "rows", 1: "words"}}
    return Graph(Whole, {"source": ids, "target": ids}, ("output",), axes)


@dataclass(frozen=True)
class TrainedTranslator:
    """A checkpoint, and what its network answers to sentences held out; both as numbers."""

    checkpoint: Checkpoint
    sources: Sequence[Sequence[int]]
    answers: Sequence[Sequence[int]]

    def tokenizer_files(self) -> dict[str, bytes]:
        return {name: (self.checkpoint.folder / name).read_bytes() for name in FILES}

    def package(self, path: Path, *, quantized: bool) -> dict[str, Any]:
        """All that a Python model needs."""
        files = self.tokenizer_files()
        with TemporaryDirectory() as folder:
            for name, graph in graphs(self.checkpoint.network).items():
                graph.write(self.checkpoint.network, Path(folder) / name, quantized=quantized)
                files[name] = (Path(folder) / name).read_bytes()
        package.write(path, files)
        form = "int8, quantized as it is computed" if quantized else "fp32"
        return {"form": f"ONNX in a package, {form}", "opset": OPSET, "holds": sorted(files)}

    def reference(self, path: Path) -> dict[str, Any]:
        """For models that need the same package, which lies in the repository once."""
        with TemporaryDirectory() as folder:
            made = Path(folder) / package.FILE
            self.package(made, quantized=True)
            package.write_reference(path, SYSTEM.default_model, sha256(made))
        return {"form": f"a reference to the package of {SYSTEM.default_model}"}

    def graph(self, graph: Graph, path: Path) -> dict[str, Any]:
        graph.write(self.checkpoint.network, path, quantized=True)
        return {"form": "ONNX, int8, quantized as it is computed", "opset": OPSET}

    def same_shapes(self, graph: Graph, path: Path) -> Sequence[Check]:
        """A graph alone answers nothing that could be compared but numbers, which quantizing changes."""
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        given = {name: tensor.numpy() for name, tensor in graph.inputs.items()}
        with torch.inference_mode():
            outputs = graph.module(self.checkpoint.network).eval()(*graph.inputs.values())
        eager = outputs if isinstance(outputs, tuple) else (outputs,)
        found = session.run(list(graph.outputs), given)
        same = all(a.shape == tuple(b.shape) for a, b in zip(found, eager, strict=True))
        return [
            Check(
                "shapes of the outputs", ", ".join(str(each.shape) for each in found), "the network's", same
            )
        ]

    def agreement(self, path: Path, *, quantized: bool) -> Sequence[Check]:
        """The loop that is served against that of transformers."""
        files = package.read(path)
        tokenizer = self.checkpoint.tokenizer
        engine = open_engine(files, available_cpus(), tokenizer.pad)
        found = served_answers(engine, tokenizer, self.sources)
        same = sum(a == b for a, b in zip(found, self.answers, strict=True)) / len(self.answers)
        allowed = _AGREES if quantized else 1.0
        measured = f"{100 * same:.1f} % of {len(found)} sentences"
        return [Check("the network's own words", measured, f"at least {100 * allowed:g} %", same >= allowed)]


def served_answers(
    engine: Engine, tokenizer: Tokenizer, sources: Sequence[Sequence[int]], rows_at_once: int = _ROWS
) -> list[list[int]]:
    """The loop's, which has as many of them at work as it takes."""
    loop = Loop(engine, start=tokenizer.start, end=tokenizer.end, max_rows=rows_at_once)
    rows = [Row(each, MAX_TOKENS) for each in sources]
    loop.complete(rows)
    return [row.tokens for row in rows]


class TranslatorExport:
    """Fulfils `gourmet.deploying.target.Export`."""

    formats = ("python", "stream", "encoder", "decoder", "bls", "whole")

    def find(self, checkpoint: str) -> Path:
        return find(checkpoint)

    def open(self, weights: Path, data: Path | None, tick: Tick, *, architecture: str = "") -> Deployment:
        checkpoint = load(weights)
        if data is None:
            texts = [text.decode() for text in SYSTEM.examples(32, seed=0)]
        else:
            texts = [pair.text for pair in DATA.references(data, "validation", _VERIFIED)]
        sources = [checkpoint.tokenizer.encode(text) for text in texts]
        answers = answered(checkpoint.network, checkpoint.tokenizer, sources, tick=tick)
        source = TrainedTranslator(checkpoint, sources, answers)
        return Deployment(targets=_targets(source), facts=_facts(checkpoint, data))


def _targets(source: TrainedTranslator) -> dict[str, Target]:
    network = source.checkpoint.network
    encoder, decoder = graphs(network).values()
    packed = partial(source.package, quantized=True)
    agrees = partial(source.agreement, quantized=True)

    def graph(model: str, graph: Graph) -> Target:
        build, verify = partial(source.graph, graph), partial(source.same_shapes, graph)
        return Target(model, "model.onnx", build, verify, dims=graph.dims(network))

    return {
        "python": Target("translator", package.FILE, packed, agrees),
        "stream": Target("translator_stream", package.REFERENCE, source.reference, lambda path: ()),
        "encoder": graph("translator_encoder", encoder),
        "decoder": graph("translator_decoder", decoder),
        "bls": Target("translator_bls", package.REFERENCE, source.reference, lambda path: ()),
        "whole": graph("onnx-model", whole(network)),
    }


def _facts(checkpoint: Checkpoint, data: Path | None) -> dict[str, Any]:
    return {
        "network": {"system": SYSTEM.name, "architecture": "Marian", "shape": checkpoint.about},
        "training": {"weights_sha256": sha256(checkpoint.weights), "epoch": checkpoint.about.get("epoch")},
        "verified_on": "examples" if data is None else "sentences held out",
    }


EXPORT: Final[Export] = TranslatorExport()
