"""The network cut into what is called once for a sentence and what is called once for a word.

Encoder         ids [B, S], mask [B, S]                       -> hidden [B, S, W], memory [B, L, 2, H, S, D]
TranslatorStep  see gourmet.tasks.generation.step
Whole           source [B, 50], target [B, 50]                -> output [B, 50, V]
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gourmet.systems.translator.architectures import Architecture, StackNames
from gourmet.tasks.generation.step import NEVER, Attention, Memory, StepNetwork, places_apart


def _attention(of: Any, stack: StackNames) -> Attention:
    query, key, value = (getattr(of, name) for name in stack.products[:3])
    heads, size = (getattr(of, name) for name in stack.heads)
    return Attention(query, key, value, heads, size, stack.scale)


def _across(decoder: Any, stack: StackNames) -> list[Attention]:
    return [_attention(layer.get_submodule(stack.across[0]), stack) for layer in _layers(decoder, stack)]


def _layers(of: Any, stack: StackNames) -> Any:
    return getattr(of, stack.layers)


class _Embedding(nn.Module):
    def __init__(self, of: Any, stack: StackNames) -> None:
        super().__init__()
        self.words = of.embed_tokens
        scaled = getattr(of.config, "scale_embedding", False) and stack.places == "table"
        # Others' words come out scaled, where they are.
        self.scale = math.sqrt(of.embed_tokens.embedding_dim) if scaled else 1.0
        self.places: Any = None
        if stack.places == "table":
            self.places = of.embed_positions
        elif stack.places:
            table, pad = of.embed_positions.weights, of.embed_positions.padding_idx
            self.places = nn.Embedding.from_pretrained(table[pad + 1 :])  # type: ignore[no-untyped-call]

    def forward(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        words = self.words(ids)
        if self.places is None:
            return words  # type: ignore[no-any-return]
        return words * self.scale + self.places.weight[places]  # type: ignore[no-any-return]


class _Distances(nn.Module):
    """What T5 adds for words that are so far apart, up to the distance from which on all are alike.

    The table is by the distance itself, and not by T5's buckets, which take logarithms to find.
    """

    table: torch.Tensor

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.max_distance: int = of.relative_attention_max_distance
        distances = torch.arange(-self.max_distance, 1 if of.is_decoder else self.max_distance + 1)
        buckets = of._relative_position_bucket(
            distances, not of.is_decoder, of.relative_attention_num_buckets, self.max_distance
        )
        self.register_buffer("table", of.relative_attention_bias(buckets).detach())

    def forward(self, distances: torch.Tensor) -> torch.Tensor:
        """Of distances [B, W, S], the place of a key less that of a query: [B, H, W, S]"""
        places = (distances + self.max_distance).clamp(0, len(self.table) - 1)
        return F.embedding(places, self.table).permute(0, 3, 1, 2)


def _distances(layers: Any, stack: StackNames) -> _Distances | None:
    return _Distances(layers[0].get_submodule(stack.attention[0])) if stack.bias else None


def _last_norm(of: Any, stack: StackNames) -> nn.Module:
    return of.get_submodule(stack.last_norm) if stack.last_norm else nn.Identity()


def _asked(layer: Any, stack: StackNames, norm: str, states: torch.Tensor) -> torch.Tensor:
    """What a part of a layer gets of the states."""
    return layer.get_submodule(norm)(states) if stack.norm_first else states


def _added(layer: Any, stack: StackNames, norm: str, states: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The states with what a part of a layer made of them."""
    return states + out if stack.norm_first else layer.get_submodule(norm)(states + out)


def _attended(
    layer: Any, stack: StackNames, part: tuple[str, str], states: torch.Tensor, found: torch.Tensor
) -> torch.Tensor:
    name, norm = part
    out = layer.get_submodule(f"{name}.{stack.products[-1]}")(found)
    return _added(layer, stack, norm, states, out)


def _fed_forward(layer: Any, stack: StackNames, states: torch.Tensor) -> torch.Tensor:
    out = _asked(layer, stack, stack.fed_norm, states)
    for name in stack.fed:
        out = layer.get_submodule(name)(out)
    return _added(layer, stack, stack.fed_norm, states, out)


class Encoder(nn.Module):
    def __init__(self, network: Any, architecture: Architecture) -> None:
        super().__init__()
        self.stack = stack = architecture.encoder
        encoder = network.get_submodule(stack.at)
        self.embedding = _Embedding(encoder, stack)
        self.layers: Any = _layers(encoder, stack)
        attention = (layer.get_submodule(stack.attention[0]) for layer in self.layers)
        self.attention: Any = nn.ModuleList(_attention(each, stack) for each in attention)
        decoder = network.get_submodule(architecture.decoder.at)
        self.memory = Memory(_across(decoder, architecture.decoder))
        self.distances = _distances(self.layers, stack)
        self.last_norm = _last_norm(encoder, stack)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        stack, places = self.stack, torch.arange(ids.shape[1], device=ids.device)
        states = self.embedding(ids, places)
        bias = self.distances((places - places[:, None])[None]) if self.distances else None
        for layer, attention in zip(self.layers, self.attention, strict=True):
            asked = _asked(layer, stack, stack.attention[1], states)
            found = attention(asked, attention.key(asked), attention.value(asked), mask, bias)
            states = _fed_forward(layer, stack, _attended(layer, stack, stack.attention, states, found))
        states = self.last_norm(states)
        return states, self.memory(states)


class TranslatorStep(StepNetwork):
    def __init__(self, network: Any, architecture: Architecture) -> None:
        stack = architecture.decoder
        decoder = network.get_submodule(stack.at)
        layers = _layers(decoder, stack)
        attention = [_attention(layer.get_submodule(stack.attention[0]), stack) for layer in layers]
        super().__init__(layers, attention, _across(decoder, stack))
        self.stack = stack
        self.embedding = _Embedding(decoder, stack)
        self.words = network.lm_head
        # Of T5 where words and answers are the same numbers.
        scaled = getattr(network.config, "scale_decoder_outputs", False)
        self.scale: float | None = network.config.d_model**-0.5 if scaled else None
        own = getattr(network, "final_logits_bias", None)
        bias = torch.zeros(1, network.config.vocab_size) if own is None else own.clone()
        bias[:, network.config.pad_token_id] = NEVER  # a pad is never an answer
        self.register_buffer("bias", bias)
        self.distances = _distances(layers, stack)
        self.last_norm = _last_norm(decoder, stack)

    def embedded(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return self.embedding(token, place)  # type: ignore[no-any-return]

    def position_bias(self, length: torch.Tensor, said: int) -> torch.Tensor | None:
        return self.distances(places_apart(length, said)[:, None]) if self.distances else None

    def asked(self, layer: Any, states: torch.Tensor) -> torch.Tensor:
        return _asked(layer, self.stack, self.stack.attention[1], states)

    def asked_across(self, layer: Any, states: torch.Tensor) -> torch.Tensor:
        return _asked(layer, self.stack, self.stack.across[1], states)

    def attended(self, layer: Any, states: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        return _attended(layer, self.stack, self.stack.attention, states, found)

    def attended_across(self, layer: Any, states: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        return _attended(layer, self.stack, self.stack.across, states, found)

    def fed_forward(self, layer: Any, states: torch.Tensor) -> torch.Tensor:
        return _fed_forward(layer, self.stack, states)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        states = self.last_norm(states)
        if self.scale is not None:
            states = states * self.scale
        return self.words(states) + self.bias  # type: ignore[no-any-return]


class Whole(nn.Module):
    """Every place of a target at once, and nothing kept: for loops in the client."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.pad = network.config.pad_token_id

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        ids, begun = (torch.where(each == 1, self.pad, each).long() for each in (source, target))
        found: torch.Tensor = self.network(
            input_ids=ids, attention_mask=(source != 1).long(), decoder_input_ids=begun, use_cache=False
        ).logits
        return found
