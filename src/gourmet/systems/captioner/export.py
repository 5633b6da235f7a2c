"""The captioner as the files that its served models open, compared with the loop of transformers.

    _Seen      pixels uint8 [B, side, side, 3]     -> memory [B, L, 2, H, P, D], hidden [B, P, W]
    BlipStep   see gourmet.export.text_graphs

A picture is seen as P places, each a hidden state of W numbers. What is served is the network in eight bits
(gourmet.export.text_int8), unless it is asked for fp32; ResNet50 is in eight bits as it was when the
words learned from what it sees.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import torch
from torch import nn

from gourmet.contracts import THRESHOLD_PARAMETER
from gourmet.evaluation.calibration import NotEvaluated, read_measured
from gourmet.evaluation.text_comparison import HeldOut, held_out_part
from gourmet.export import static_int8
from gourmet.export.text_export import GenerationExport, TrainedGenerator
from gourmet.export.text_graphs import NEVER, Attention, Graph, Memory, StepNetwork, step_graph
from gourmet.generation.answers import Parts
from gourmet.generation.loop import Row
from gourmet.learning.text_training import until
from gourmet.pictures.decode import Pixels, squashed_pixels
from gourmet.progress import ReportProgress
from gourmet.repository.gate import Deployment, Export, Target
from gourmet.served.reading import error_summary, malformed_as_value_error
from gourmet.systems.captioner.contract import SYSTEM
from gourmet.systems.captioner.data import Cider, decoded, photos
from gourmet.systems.captioner.network import (
    BLIP,
    GRID,
    MEAN,
    STD,
    CaptionNetwork,
    GridVision,
    load,
)
from gourmet.systems.captioner.serving import DECODER, SERVING, VISION, CaptionerNetwork
from gourmet.systems.captioner.tokenizer import MAX_TOKENS

_VERIFIED: Final = 200
_COMPARED: Final = 100  # measured: 200 captions of the shipped network in 7 s on two busy cores
_EXAMPLES: Final = 16
_ROWS: Final = 16
_ELSEWHERE: Final = {VISION: "captioner_vision", DECODER: "captioner_decoder"}
# The output of ResNet50's graph in eight bits, and its file beside the weights.
GRID_OUTPUT: Final = "grid"
BODY: Final = "vision-int8.onnx"
_OPERATORS: Final = ("Resize", "Conv", "MaxPool", "Relu", "Add")


def _attention(of: Any) -> Attention:
    own = of.self
    return Attention(own.query, own.key, own.value, own.num_attention_heads, own.attention_head_size)


def across(network: Any) -> list[Attention]:
    return [_attention(layer.crossattention) for layer in network.text_decoder.bert.encoder.layer]


class _Seen(nn.Module):
    """The memory of a picture, and the hidden states that it is made of."""

    def __init__(self, network: CaptionNetwork, states: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.network, self.states, self.memory = network, states, Memory(across(network))

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.states(seen)
        return self.memory(states), states


def vision_graph(network: CaptionNetwork, *, behind_grid: bool = False) -> Graph:
    """Return the graph from pixels, or the one behind the last grid of ResNet50."""
    if behind_grid:
        name, states = GRID_OUTPUT, network.vision_model.states
        seen = torch.zeros(2, network.vision_model.seen_channels, GRID, GRID)
    else:
        name, states = "pixels", lambda pixels: network.states(network.normalised(pixels))
        seen = torch.zeros(2, network.side, network.side, 3, dtype=torch.uint8)
    axes = {key: {0: "rows"} for key in (name, "memory", "hidden")}
    return Graph(_Seen(network, states), {name: seen}, ("memory", "hidden"), axes)


class BlipStep(StepNetwork):
    several = True  # so that whole captions can be asked too, as loops in the client do

    def __init__(self, network: Any) -> None:
        text = network.text_decoder
        layers = text.bert.encoder.layer
        super().__init__(layers, [_attention(layer.attention) for layer in layers], across(network))
        self.embeddings, self.head = text.bert.embeddings, text.cls
        never = torch.zeros(network.config.vocab_size)
        never[network.never] = NEVER
        self.register_buffer("never", never)

    def embedded(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        parts = self.embeddings
        return parts.LayerNorm(  # type: ignore[no-any-return]
            parts.word_embeddings(token) + parts.position_embeddings(position)
        )

    def attended(self, layer: Any, states: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return layer.attention.output(context, states)  # type: ignore[no-any-return]

    def attended_across(self, layer: Any, states: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return layer.crossattention.output(context, states)  # type: ignore[no-any-return]

    def fed_forward(self, layer: Any, states: torch.Tensor) -> torch.Tensor:
        return layer.feed_forward_chunk(states)  # type: ignore[no-any-return]

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return self.head(states) + self.never  # type: ignore[no-any-return]


def decoder_graph(network: CaptionNetwork) -> Graph:
    return step_graph(BlipStep(network))


class _Body(nn.Module):
    def __init__(self, vision: GridVision) -> None:
        super().__init__()
        self.vision = copy.deepcopy(vision)
        static_int8.take_pixels(self.vision.conv1, MEAN, STD)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.vision.seen(pixels)


def body(vision: GridVision, photos: npt.NDArray[np.uint8]) -> bytes:
    """Return the graph of the frozen part: pixels uint8 [N, side, side, 3] -> grid float [N, 2048, 7, 7]."""
    side = photos.shape[1]
    rows = {0: "rows"}
    graph = Graph(
        _Body(vision),
        {static_int8.PIXELS: torch.zeros(2, 3, side, side)},
        (GRID_OUTPUT,),
        {static_int8.PIXELS: rows, GRID_OUTPUT: rows},
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "body.onnx"
        graph.write(path)
        static_int8.quantize(path, photos, mean=MEAN, operators=_OPERATORS, name=static_int8.PIXELS)
        return path.read_bytes()


@dataclass(frozen=True)
class TrainedCaptioner(TrainedGenerator):
    """A checkpoint, and photos for the comparison."""

    pictures: Sequence[Pixels]
    serving = SERVING
    architecture = "BLIP"
    examples = "photos"
    compared_tokens = MAX_TOKENS
    elsewhere = _ELSEWHERE

    @property
    def rows(self) -> Sequence[Row]:
        return [Row(pixels, MAX_TOKENS) for pixels in self.pictures]

    def eager(self, network: CaptionNetwork) -> list[list[int]]:
        return eager_answers(network, self.pictures)

    @cached_property
    def body(self) -> bytes | None:
        """The vision graph in eight bits, if the vision network is ResNet50."""
        if self.fp32 or not self.checkpoint.network.is_grid:
            return None
        path = self.checkpoint.folder / BODY
        if path.is_file():
            return path.read_bytes()
        return body(self.checkpoint.network.vision_model, np.stack(self.pictures))

    @cached_property
    def files(self) -> dict[str, bytes]:
        graphs = {VISION: self._vision(), DECODER: decoder_graph(self.network).file()}
        return self.checkpoint.files | {name: self.described(graph) for name, graph in graphs.items()}

    def _vision(self) -> bytes:
        if not self.body:
            return vision_graph(self.network).file()
        parts = self.body, vision_graph(self.network, behind_grid=True).file()
        sees, attends = map(onnx.load_from_string, parts)
        attends.ir_version = sees.ir_version
        apart = onnx.compose.add_prefix(attends, "words/", rename_inputs=False, rename_outputs=False)
        return onnx.compose.merge_models(sees, apart, [(GRID_OUTPUT, GRID_OUTPUT)]).SerializeToString()  # type: ignore[no-any-return]


def eager_answers(network: CaptionNetwork, pictures: Sequence[Pixels]) -> list[list[int]]:
    """Return the tokens of transformers' captions of photos as the network sees them."""
    answers = list[list[int]]()
    for first in range(0, len(pictures), _ROWS):
        pixels = torch.from_numpy(np.stack(pictures[first : first + _ROWS]))
        with torch.inference_mode():
            states = network.states(network.normalised(pixels))
        rows = network.generate(states, [], MAX_TOKENS).tolist()
        answers += [until(network.end, row[1:]) for row in rows]
    return answers


@dataclass(frozen=True)
class CaptionerExport(GenerationExport):
    """Fulfils `gourmet.repository.gate.Quantizing`."""

    architecture = BLIP
    # Graphs first: the package that is verified refers to them.
    formats: tuple[str, ...] = ("vision", "decoder", "python", "stream")

    def open(
        self, weights: Path, data: Path | None, tick: ReportProgress, *, architecture: str = ""
    ) -> Deployment:
        checkpoint = load(weights)
        side = checkpoint.network.side
        if data is None:
            pictures = [squashed_pixels(file, side) for file in SYSTEM.examples(_EXAMPLES, seed=0)]
        else:
            held = photos(data, "validation", _VERIFIED)
            pictures = list(decoded(data, held, side))
        source = TrainedCaptioner(checkpoint, self.fp32, SYSTEM, pictures)
        held_out = _held_out_photos(data) if data else None
        lack = "name photos and their captions with --data"
        targets = source.compared(_targets(source), weights, held_out, lack)
        facts = source.facts(weights, data)
        try:
            measured = read_measured(weights)
        except NotEvaluated:
            return Deployment(targets, facts)
        try:
            with malformed_as_value_error():
                sure = {THRESHOLD_PARAMETER: float(measured[THRESHOLD_PARAMETER])}
                facts |= {"scores": measured["scores"]}
        except ValueError as exc:
            raise NotEvaluated(
                f"what was measured of {weights} cannot be used ({error_summary(exc)}): run "
                "`gourmet evaluate`"
            ) from exc
        return Deployment(targets, facts, sure)


def _held_out_photos(data: Path) -> HeldOut:
    """Return photos that the network did not learn from, with captions by people to score with."""
    shown = held_out_part(lambda part: photos(data, part, _COMPARED))

    def questions(network: CaptionerNetwork) -> list[Parts]:
        pictures = decoded(data, shown, network.side)
        return [[Row(pixels, MAX_TOKENS)] for pixels in pictures]

    def score(captions: Sequence[str]) -> list[float]:
        cider = Cider([photo.captions for photo in shown])
        return [100 * cider.score(photo, text) for photo, text in enumerate(captions)]

    return HeldOut("CIDEr-D × 100", len(shown), questions, score)


def _targets(source: TrainedCaptioner) -> dict[str, Target]:
    vision, decoder = vision_graph(source.network), decoder_graph(source.network)
    form = ", ResNet50 in int8 QDQ per channel" if source.body else ""
    return {
        # The package refers to these two files.
        "vision": source.graph(_ELSEWHERE[VISION], vision, lambda: source.files[VISION], form),
        "decoder": source.graph(_ELSEWHERE[DECODER], decoder, lambda: source.files[DECODER]),
        "python": source.package(),
        "stream": source.reference(SYSTEM.streaming_model),
    }


EXPORT: Final[Export] = CaptionerExport()
