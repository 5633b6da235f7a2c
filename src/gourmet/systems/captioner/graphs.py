"""The network cut into what is called once for a picture and what is called once for a word.

    Vision     pixels uint8 [B, side, side, 3]     -> memory [B, L, 2, H, P, D], hidden [B, P, W]
    BlipStep   see gourmet.tasks.generation.graphs

A picture is seen as P places, each a hidden state of W numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gourmet.systems.captioner.network import CaptionNetwork
from gourmet.systems.captioner.vision import GRID
from gourmet.tasks.generation.graphs import NEVER, Attention, Graph, Memory, StepNetwork, step_graph


def _attention(of: Any) -> Attention:
    asked = of.self
    return Attention(
        asked.query, asked.key, asked.value, asked.num_attention_heads, asked.attention_head_size
    )


def across(network: Any) -> list[Attention]:
    return [_attention(layer.crossattention) for layer in network.text_decoder.bert.encoder.layer]


class Vision(nn.Module):
    def __init__(self, network: CaptionNetwork) -> None:
        super().__init__()
        self.network, self.memory = network, Memory(across(network))

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.network.states(self.network.normalised(pixels))
        return self.memory(states), states


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

    def embedded(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        parts = self.embeddings
        return parts.LayerNorm(  # type: ignore[no-any-return]
            parts.word_embeddings(token) + parts.position_embeddings(place)
        )

    def attended(self, layer: Any, states: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        return layer.attention.output(found, states)  # type: ignore[no-any-return]

    def attended_across(self, layer: Any, states: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        return layer.crossattention.output(found, states)  # type: ignore[no-any-return]

    def fed_forward(self, layer: Any, states: torch.Tensor) -> torch.Tensor:
        return layer.feed_forward_chunk(states)  # type: ignore[no-any-return]

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return self.head(states) + self.never  # type: ignore[no-any-return]


class _Grid(nn.Module):
    """The rest of it, of the grid that ResNet50 sees."""

    def __init__(self, network: CaptionNetwork) -> None:
        super().__init__()
        self.vision, self.memory = network.vision_model, Memory(across(network))

    def forward(self, grid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.vision.states(grid)
        return self.memory(states), states


def memory_graph(network: CaptionNetwork, grid: str) -> Graph:
    """Write the graph behind the `grid` of ResNet50."""
    rows = {0: "rows"}
    seen = torch.zeros(2, network.vision_model.seen_channels, GRID, GRID)
    return Graph(
        _Grid(network), {grid: seen}, ("memory", "hidden"), dict.fromkeys((grid, "memory", "hidden"), rows)
    )


def vision_graph(network: CaptionNetwork) -> Graph:
    side, rows = network.side, {0: "rows"}
    pixels = torch.zeros(2, side, side, 3, dtype=torch.uint8)
    return Graph(
        Vision(network),
        {"pixels": pixels},
        ("memory", "hidden"),
        dict.fromkeys(("pixels", "memory", "hidden"), rows),
    )


def decoder_graph(network: CaptionNetwork) -> Graph:
    return step_graph(BlipStep(network))
