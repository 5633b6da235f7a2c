"""The common members of exports of networks that generate text: a package, references to it, comparisons."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final, Self

from gourmet.evaluation.text_comparison import HeldOut, TextCandidate, agreement, served_answers
from gourmet.export.checkpoints import Architecture, Checkpoint
from gourmet.export.onnx_metadata import with_metadata
from gourmet.export.text_graphs import OPSET, Graph
from gourmet.export.text_int8 import quantized
from gourmet.generation import package
from gourmet.generation.answers import GenerationServing
from gourmet.generation.contract import TextGenerator
from gourmet.generation.loop import Row
from gourmet.repository.gate import Check, ModelFile, Target
from gourmet.served.instances import available_cpus
from gourmet.served.manifest import sha256

_LICENSE: Final = "other: research data, for demonstration and study"


@dataclass(frozen=True)
class GenerationExport:
    """The common members of a system's EXPORT, beside its `formats` and `open`."""

    architecture: ClassVar[Architecture]
    fp32: bool = False

    def in_fp32(self) -> Self:
        return replace(self, fp32=True)

    def find(self, checkpoint: str) -> Path:
        return self.architecture.find(checkpoint)


@dataclass(frozen=True)
class TrainedGenerator(ABC):
    """A checkpoint on its way to the files of its served models, in eight bits unless `fp32`."""

    checkpoint: Checkpoint
    fp32: bool
    system: TextGenerator
    serving: ClassVar[GenerationServing]
    architecture: ClassVar[str]
    examples: ClassVar[str]  # what its examples are, in messages
    compared_tokens: ClassVar[int]
    elsewhere: ClassVar[Mapping[str, str]] = package.NOTHING  # files that other models have, by name

    @property
    @abstractmethod
    def files(self) -> Mapping[str, bytes]:
        """The files that a Python model needs."""

    @property
    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """The examples, as the loop takes them."""

    @abstractmethod
    def eager(self, network: Any) -> Sequence[Sequence[int]]:
        """Return the tokens of the network's answers to the examples, by the loop of transformers."""

    @property
    def right(self) -> Sequence[Sequence[int]]:
        """The answers of the network in 32 bits."""
        return self.eager(self.checkpoint.network)

    @cached_property
    def network(self) -> Any:
        """The network as it is served."""
        return self.checkpoint.network if self.fp32 else quantized(self.checkpoint.network, self.eager)

    @property
    def form(self) -> str:
        return "fp32" if self.fp32 else "int8"

    def described(self, graph: bytes) -> bytes:
        """Return a graph with metadata, as models of their own have it."""
        return with_metadata(graph, self.system.name, _LICENSE)

    def graph(
        self, model: str, graph: Graph, described: Callable[[], bytes] | None = None, form: str = ""
    ) -> Target:
        """Return the target of a graph that is a model of its own."""

        def write(path: Path) -> dict[str, Any]:
            path.write_bytes(described() if described else self.described(graph.file()))
            return {"form": f"ONNX, {self.form}{form}", "opset": OPSET}

        return Target(model, [ModelFile("model.onnx", write, graph.same_shapes)], dims=graph.dims())

    def package(self) -> Target:
        """Return the target with the whole network; its loop is compared with that of transformers."""

        def write(path: Path) -> dict[str, Any]:
            package.write_package(path, self.files, self.elsewhere)
            return {"form": f"ONNX in a package, {self.form}", "opset": OPSET, "holds": sorted(self.files)}

        def compare_with_torch(path: Path) -> Sequence[Check]:
            network = self.serving.open(package.read_package(path), available_cpus())
            answers = served_answers(network.engine, network.vocabulary, self.rows)
            return agreement(
                network.vocabulary,
                answers,
                self.right,
                fp32=self.fp32,
                what=self.examples,
                compared=self.compared_tokens,
            )

        return Target(self.system.default_model, [ModelFile(package.FILE, write, compare_with_torch)])

    def reference(self, model: str) -> Target:
        """Return the target of a model that refers to the package of the default model."""

        def write(path: Path) -> dict[str, Any]:
            with TemporaryDirectory() as folder:
                whole = Path(folder) / package.FILE
                package.write_package(whole, self.files, self.elsewhere)
                package.write_reference(path, self.system.default_model, sha256(whole))
            return {"form": "a reference to the package of a model beside it"}

        return Target(model, [ModelFile(package.REFERENCE, write)])

    def compared(
        self, targets: Mapping[str, Target], weights: Path, held_out: HeldOut | None, lack: str
    ) -> dict[str, Target]:
        """Return the targets, each with a comparison of the candidate with the served version."""
        candidate = TextCandidate(
            self.system.default_model, self.serving, lambda: self.files, sha256(weights), held_out, lack
        )
        return {name: replace(target, compare=candidate.compare) for name, target in targets.items()}

    def facts(self, weights: Path, data: Path | None) -> dict[str, Any]:
        about = self.checkpoint.about
        return {
            "network": {"system": self.system.name, "architecture": self.architecture, "shape": about},
            "training": {"weights_sha256": sha256(weights), "epoch": about.get("epoch")},
            "verified_on": "examples" if data is None else f"{self.examples} held out",
        }
