"""The captioner as the files that its served models open, compared with the loop of transformers.

What is served is the network in eight bits (gourmet.tasks.generation.int8), unless it is asked for fp32;
ResNet50 is in eight bits as it was when the words learned from what it sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch

from gourmet.contracts import THRESHOLD_PARAMETER
from gourmet.deploying.target import Check, Deployment, Export, Target
from gourmet.pictures.decode import Pixels, squashed_pixels
from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.answers import Parts
from gourmet.runtime.decoding.loop import Row
from gourmet.runtime.instances import available_cpus
from gourmet.runtime.manifest import sha256
from gourmet.runtime.reading import in_short, malformed_as_value_error
from gourmet.systems.captioner.cider import Cider
from gourmet.systems.captioner.contract import STREAMING_MODEL, SYSTEM
from gourmet.systems.captioner.data import CaptionedPhoto, decoded, photos
from gourmet.systems.captioner.graphs import decoder_graph, memory_graph, vision_graph
from gourmet.systems.captioner.int8_vision import BODY, GRID, body
from gourmet.systems.captioner.network import CaptionerCheckpoint, CaptionNetwork, find, load
from gourmet.systems.captioner.serving import DECODER, SERVING, VISION, CaptionerNetwork
from gourmet.systems.captioner.tokenizer import MAX_TOKENS
from gourmet.tasks import evaluation_file
from gourmet.tasks.evaluation_file import NotEvaluated
from gourmet.tasks.generation import served
from gourmet.tasks.generation.comparison import EXAMPLES, HeldOut, TextCandidate
from gourmet.tasks.generation.graphs import OPSET, Graph
from gourmet.tasks.generation.int8 import quantized
from gourmet.tasks.onnx_metadata import with_metadata
from gourmet.tasks.system_parts import EmptyPart
from gourmet.training.task import Tick

_VERIFIED: Final = 200
_EXAMPLES: Final = 16
_ROWS: Final = 16
_LICENSE: Final = "other: research data, for demonstration and study"
_ELSEWHERE: Final = {VISION: "captioner_vision", DECODER: "captioner_decoder"}


@dataclass(frozen=True)
class TrainedCaptioner:
    """A checkpoint, and photos to compare with."""

    checkpoint: CaptionerCheckpoint
    pictures: Sequence[Pixels]
    fp32: bool = False

    @cached_property
    def network(self) -> CaptionNetwork:
        """Return the network that is served."""
        if self.fp32:
            return self.checkpoint.network
        return quantized(self.checkpoint.network, lambda network: eager_answers(network, self.pictures))

    @cached_property
    def body(self) -> bytes | None:
        """The graph that sees in eight bits, where it is ResNet50 that does."""
        if self.fp32 or not self.checkpoint.network.is_grid:
            return None
        path = self.checkpoint.folder / BODY
        if path.is_file():
            return path.read_bytes()
        return body(self.checkpoint.network.vision_model, np.stack(self.pictures))

    @property
    def form(self) -> str:
        return "fp32" if self.fp32 else "int8"

    @cached_property
    def files(self) -> dict[str, bytes]:
        """All that a Python model needs."""
        graphs = {VISION: self._vision(), DECODER: decoder_graph(self.network).file()}
        return self.checkpoint.files | {
            name: with_metadata(graph, SYSTEM.name, _LICENSE) for name, graph in graphs.items()
        }

    def graph(self, name: str, path: Path) -> dict[str, Any]:
        path.write_bytes(self.files[name])
        seen = ", ResNet50 in int8 QDQ per channel" if self.body and name == VISION else ""
        return {"form": f"ONNX, {self.form}{seen}", "opset": OPSET}

    def package(self, path: Path) -> dict[str, Any]:
        return served.write_package(path, self.files, self.form, _ELSEWHERE)

    def reference(self, path: Path) -> dict[str, Any]:
        return served.write_reference(path, self.files, SYSTEM.default_model, _ELSEWHERE)

    def agreement(self, path: Path) -> Sequence[Check]:
        """The loop that is served against that of transformers."""
        opened = CaptionerNetwork.open(package.read(path), available_cpus())
        rows = [Row(pixels, MAX_TOKENS) for pixels in self.pictures]
        found = served.served_answers(opened.engine, opened.vocabulary, rows, _ROWS)
        right = eager_answers(self.checkpoint.network, self.pictures)
        how = partial(served.agreement, what="photos", compared=MAX_TOKENS)
        return how(opened.vocabulary, found, right, fp32=self.fp32)

    def _vision(self) -> bytes:
        if not self.body:
            return vision_graph(self.network).file()
        parts = self.body, memory_graph(self.network, GRID).file()
        sees, attends = map(onnx.load_from_string, parts)
        attends.ir_version = sees.ir_version
        apart = onnx.compose.add_prefix(attends, "words/", rename_inputs=False, rename_outputs=False)
        return onnx.compose.merge_models(sees, apart, [(GRID, GRID)]).SerializeToString()  # type: ignore[no-any-return]


def eager_answers(network: CaptionNetwork, pictures: Sequence[Pixels]) -> list[list[int]]:
    """transformers', of photos as the network sees them."""
    found = list[list[int]]()
    for first in range(0, len(pictures), _ROWS):
        pixels = torch.from_numpy(np.stack(pictures[first : first + _ROWS]))
        with torch.inference_mode():
            states = network.states(network.normalised(pixels))
        for row in network.generate(states, [], MAX_TOKENS).tolist():
            words = row[1:]
            found.append(words[: words.index(network.end)] if network.end in words else words)
    return found


@dataclass(frozen=True)
class CaptionerExport:
    """Fulfils `gourmet.deploying.target.Quantizing`."""

    fp32: bool = False
    # Graphs first: the package that is verified refers to them.
    formats: tuple[str, ...] = ("vision", "decoder", "python", "stream")

    def in_fp32(self) -> CaptionerExport:
        return replace(self, fp32=True)

    def find(self, checkpoint: str) -> Path:
        return find(checkpoint)

    def open(self, weights: Path, data: Path | None, tick: Tick, *, architecture: str = "") -> Deployment:
        checkpoint = load(weights)
        side = checkpoint.network.side
        if data is None:
            pictures = [squashed_pixels(file, side) for file in SYSTEM.examples(_EXAMPLES, seed=0)]
        else:
            held = photos(data, "validation", _VERIFIED)
            pictures = list(decoded(data, held, side, squashed_pixels))
        source = TrainedCaptioner(checkpoint, pictures, self.fp32)
        candidate = TextCandidate(
            SYSTEM.default_model,
            SERVING,
            lambda: source.files,
            sha256(weights),
            _held_out(data) if data else None,
            "name photos and their captions with --data",
        )
        targets = {
            name: replace(target, compare=candidate.compare) for name, target in _targets(source).items()
        }
        facts = {
            "network": {"system": SYSTEM.name, "architecture": "BLIP", "shape": checkpoint.about},
            "training": {"weights_sha256": sha256(weights), "epoch": checkpoint.about.get("epoch")},
            "verified_on": "examples" if data is None else "photos held out",
        }
        try:
            measured = evaluation_file.read(weights)
        except NotEvaluated:
            return Deployment(targets, facts)
        try:
            with malformed_as_value_error():
                sure = {THRESHOLD_PARAMETER: float(measured[THRESHOLD_PARAMETER])}
                facts |= {"scores": measured["scores"]}
        except ValueError as exc:
            raise NotEvaluated(
                f"what was measured of {weights} cannot be used ({in_short(exc)}): run `gourmet evaluate`"
            ) from exc
        return Deployment(targets, facts, sure)


def _held_out(data: Path) -> HeldOut:
    """Photos that the network did not learn from; their captions by people judge those of a network."""
    shown: Sequence[CaptionedPhoto] = ()
    for part in ("test", "validation"):
        with suppress(EmptyPart):
            shown = photos(data, part, EXAMPLES)
            break

    def ask(network: CaptionerNetwork) -> list[Parts]:
        pictures = decoded(data, shown, network.side, squashed_pixels)
        return [[Row(pixels, MAX_TOKENS)] for pixels in pictures]

    def points(captions: Sequence[str]) -> list[float]:
        cider = Cider([photo.captions for photo in shown])
        return [100 * cider.score(place, text) for place, text in enumerate(captions)]

    return HeldOut("CIDEr-D × 100", len(shown), ask, points)


def _targets(source: TrainedCaptioner) -> dict[str, Target]:
    network = source.network

    def graph(name: str, graph: Graph) -> Target:
        build = partial(source.graph, name)
        return Target(_ELSEWHERE[name], "model.onnx", build, graph.same_shapes, dims=graph.dims())

    return {
        "vision": graph(VISION, vision_graph(network)),
        "decoder": graph(DECODER, decoder_graph(network)),
        "python": Target(SYSTEM.default_model, package.FILE, source.package, source.agreement),
        "stream": Target(STREAMING_MODEL, package.REFERENCE, source.reference, lambda path: ()),
    }


EXPORT: Final[Export] = CaptionerExport()
