"""The translator as the files that its served models open, each compared with the loop of transformers.

All graphs are quantized, unless it is asked for fp32: their weights are int8, and what goes through them is
quantized as it comes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
from gourmet.runtime.decoding.loop import Loop, Row
from gourmet.runtime.instances import available_cpus
from gourmet.runtime.manifest import sha256
from gourmet.systems.translator.contract import SYSTEM
from gourmet.systems.translator.data import DATA
from gourmet.systems.translator.evaluate import MAX_TOKENS, answered
from gourmet.systems.translator.graphs import Encoder, StepNetwork, Whole
from gourmet.systems.translator.int8 import quantized
from gourmet.systems.translator.network import Checkpoint, find, load
from gourmet.systems.translator.serving import DECODER, ENCODER, open_engine
from gourmet.systems.translator.tokenizer import FILES, Tokenizer
from gourmet.training.task import Tick

OPSET: Final = 17
_VERIFIED: Final = 500
# Of sentences, the share whose words need not be those of the network; of a few, one.
_DIFFER: Final = 0.01
_FEW: Final = 10
_ROWS: Final = 16
_WHOLE: Final = 50  # places of a source and a target in `onnx-model`


@dataclass(frozen=True)
class Graph:
    """A part of the network as ONNX: what it is given, and which of the axes may be of any size."""

    module: nn.Module
    inputs: Mapping[str, torch.Tensor]
    outputs: Sequence[str]
    axes: Mapping[str, Mapping[int, str]]

    def write(self, path: Path) -> None:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter, about constants that are constant
            torch.onnx.export(
                self.module.eval(),
                tuple(self.inputs.values()),
                str(path),
                dynamo=False,
                input_names=list(self.inputs),
                output_names=list(self.outputs),
                dynamic_axes={name: dict(axes) for name, axes in self.axes.items()},
                opset_version=OPSET,
            )
        onnx.checker.check_model(str(path), full_check=True)

    def eager(self) -> Sequence[torch.Tensor]:
        with torch.inference_mode():
            found = self.module.eval()(*self.inputs.values())
        return found if isinstance(found, tuple) else (found,)

    def dims(self) -> dict[str, list[int]]:
        """Each tensor's shape without its rows, as the config of a served model says it."""
        outputs = zip(self.outputs, self.eager(), strict=True)
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
            Encoder(network),
            {"ids": ids, "mask": mask},
            ("hidden", "memory"),
            {"ids": words, "mask": words, "hidden": words, "memory": {0: "rows", 4: "words"}},
        ),
        DECODER: Graph(
            StepNetwork(network),
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
    return Graph(Whole(network), {"source": ids, "target": ids}, ("output",), axes)


@dataclass(frozen=True)
class TrainedTranslator:
    """A checkpoint, and what its network answers to sentences held out; both as numbers."""

    checkpoint: Checkpoint
    sources: Sequence[Sequence[int]]
    answers: Sequence[Sequence[int]]
    fp32: bool = False

    @cached_property
    def network(self) -> Any:
        """What is served."""
        return self.checkpoint.network if self.fp32 else quantized(self.checkpoint.network)

    @property
    def form(self) -> str:
        return "fp32" if self.fp32 else "int8, quantized as it is computed"

    @cached_property
    def files(self) -> dict[str, bytes]:
        """All that a Python model needs."""
        files = {name: (self.checkpoint.folder / name).read_bytes() for name in FILES}
        with TemporaryDirectory() as folder:
            for name, graph in graphs(self.network).items():
                graph.write(Path(folder) / name)
                files[name] = (Path(folder) / name).read_bytes()
        return files

    def package(self, path: Path) -> dict[str, Any]:
        package.write(path, self.files)
        return {
            "form": f"ONNX in a package, {self.form}",
            "opset": OPSET,
            "holds": sorted(self.files),
        }

    def reference(self, path: Path) -> dict[str, Any]:
        """For models that need the same package, which lies in the repository once."""
        with TemporaryDirectory() as folder:
            made = Path(folder) / package.FILE
            package.write(made, self.files)
            package.write_reference(path, SYSTEM.default_model, sha256(made))
        return {"form": f"a reference to the package of {SYSTEM.default_model}"}

    def graph(self, graph: Graph, path: Path) -> dict[str, Any]:
        graph.write(path)
        return {"form": f"ONNX, {self.form}", "opset": OPSET}

    def same_shapes(self, graph: Graph, path: Path) -> Sequence[Check]:
        """A graph alone answers nothing that could be compared but numbers, which quantizing changes."""
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        found = session.run(list(graph.outputs), {name: each.numpy() for name, each in graph.inputs.items()})
        shapes = [each.shape for each in found]
        same = shapes == [tuple(each.shape) for each in graph.eager()]
        return [Check("shapes of the outputs", ", ".join(map(str, shapes)), "the network's", same)]

    def agreement(self, path: Path) -> Sequence[Check]:
        """The loop that is served against that of transformers."""
        tokenizer = self.checkpoint.tokenizer
        engine = open_engine(package.read(path), available_cpus(), tokenizer.pad)
        found = served_answers(engine, tokenizer, self.sources)
        words = sum(any(map(str.isalpha, tokenizer.decode(answer))) for answer in found)
        return [_agreement(found, self.answers, self.fp32), _with_words(words, len(found))]


def _agreement(found: Sequence[Sequence[int]], right: Sequence[Sequence[int]], fp32: bool) -> Check:
    """The last place of an answer without an end is not compared: some checkpoints force an end there."""
    texts = len(right)
    same = sum(a[: MAX_TOKENS - 1] == b[: MAX_TOKENS - 1] for a, b in zip(found, right, strict=True))
    least = texts - max(int(_DIFFER * texts), texts >= _FEW)
    allowed = f"at least {least}" + ("" if fp32 or same >= least else "; --fp32 rounds nothing")
    return Check("the network's own words", f"{same} of {texts} sentences", allowed, same >= least)


def _with_words(count: int, texts: int) -> Check:
    return Check("answers with a word in them", f"{count} of {texts}", "at least half", 2 * count >= texts)


def served_answers(
    engine: Engine, tokenizer: Tokenizer, sources: Sequence[Sequence[int]], rows_at_once: int = _ROWS
) -> list[list[int]]:
    """The loop's, which has as many of them at work as it takes."""
    loop = Loop(engine, start=tokenizer.start, end=tokenizer.end, max_rows=rows_at_once)
    rows = [Row(each, MAX_TOKENS) for each in sources]
    loop.complete(rows)
    return [row.tokens for row in rows]


@dataclass(frozen=True)
class TranslatorExport:
    """Fulfils `gourmet.deploying.target.Quantizing`."""

    fp32: bool = False
    formats: tuple[str, ...] = ("python", "stream", "encoder", "decoder", "bls", "whole")

    def in_fp32(self) -> TranslatorExport:
        return replace(self, fp32=True)

    def find(self, checkpoint: str) -> Path:
        return find(checkpoint)

    def open(self, weights: Path, data: Path | None, tick: Tick, *, architecture: str = "") -> Deployment:
        checkpoint = load(weights)
        if data is None:
            texts = [text.decode() for text in SYSTEM.examples(32, seed=0)]
        else:
            texts = [pair.text for pair in DATA.references(data, "validation", _VERIFIED)]
        sources = [checkpoint.tokenizer.encode(text) for text in texts]
        answers = answered(checkpoint.network, checkpoint.tokenizer, sources, tick)
        source = TrainedTranslator(checkpoint, sources, answers, self.fp32)
        facts = {
            "network": {"system": SYSTEM.name, "architecture": "Marian", "shape": checkpoint.about},
            "training": {"weights_sha256": sha256(weights), "epoch": checkpoint.about.get("epoch")},
            "verified_on": "examples" if data is None else "sentences held out",
        }
        return Deployment(targets=_targets(source), facts=facts)


def _targets(source: TrainedTranslator) -> dict[str, Target]:
    encoder, decoder = graphs(source.network).values()

    def graph(model: str, graph: Graph) -> Target:
        build, verify = partial(source.graph, graph), partial(source.same_shapes, graph)
        return Target(model, "model.onnx", build, verify, dims=graph.dims())

    def reference(model: str) -> Target:
        return Target(model, package.REFERENCE, source.reference, lambda path: ())

    return {
        "python": Target(SYSTEM.default_model, package.FILE, source.package, source.agreement),
        "stream": reference("translator_stream"),
        "encoder": graph("translator_encoder", encoder),
        "decoder": graph("translator_decoder", decoder),
        "bls": reference("translator_bls"),
        "whole": graph("onnx-model", whole(source.network)),
    }


EXPORT: Final[Export] = TranslatorExport()
