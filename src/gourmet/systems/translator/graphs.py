"""Marian's network cut into what is called once for a sentence and what is called once for a word.

Encoder         ids [B, S], mask [B, S]                       -> hidden [B, S, W], memory [B, L, 2, H, S, D]
TranslatorStep  see gourmet.tasks.generation.graphs
Whole           source [B, 50], target [B, 50]                -> output [B, 50, V]
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from gourmet.tasks.generation.graphs import NEVER, Attention, Memory, StepNetwork


def _attention(of: Any) -> Attention:
    return Attention(of.q_proj, of.k_proj, of.v_proj, of.num_heads, of.head_dim)


def _across(network: Any) -> list[Attention]:
    return [_attention(layer.encoder_attn) for layer in network.model.decoder.layers]


def _fed_forward(layer: Any, states: torch.Tensor) -> torch.Tensor:
    out = layer.fc2(layer.activation_fn(layer.fc1(states)))
    return layer.final_layer_norm(states + out)  # type: ignore[no-any-return]


class _Embedding(nn.Module):
    def __init__(self, of: Any) -> None:
        super().__init__()
        self.words, self.places = of.embed_tokens, of.embed_positions
        self.scale = math.sqrt(self.words.embedding_dim) if of.config.scale_embedding else 1.0

    def forward(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self.words(ids) * self.scale + self.places.weight[places]  # type: ignore[no-any-return]


class Encoder(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        encoder = network.model.encoder
        self.embedding = _Embedding(encoder)
        self.layers: Any = encoder.layers
        self.attention: Any = nn.ModuleList(_attention(layer.self_attn) for layer in self.layers)
        self.memory = Memory(_across(network))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.embedding(ids, torch.arange(ids.shape[1], device=ids.device))
        for layer, attention in zip(self.layers, self.attention, strict=True):
            attended = attention(states, attention.key(states), attention.value(states), mask)
            states = layer.self_attn_layer_norm(states + layer.self_attn.out_proj(attended))
            states = _fed_forward(layer, states)
        return states, self.memory(states)


class TranslatorStep(StepNetwork):
    def __init__(self, network: Any) -> None:
        decoder = network.model.decoder
        attention = [_attention(layer.self_attn) for layer in decoder.layers]
        super().__init__(decoder.layers, attention, _across(network))
        self.embedding, self.words = _Embedding(decoder), network.lm_head
        bias = network.final_logits_bias.clone()
        bias[:, network.config.pad_token_id] = NEVER  # a pad is never an answer
        self.register_buffer("bias", bias)

    def embedded(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return self.embedding(token, place)  # type: ignore[no-any-return]

    def attended(self, layer: Any, states: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        return layer.self_attn_layer_norm(states + layer.self_attn.out_proj(found))  # type: ignore[no-any-return]

    def attended_across(self, layer: Any, states: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        out = layer.encoder_attn.out_proj(found)
        return layer.encoder_attn_layer_norm(states + out)  # type: ignore[no-any-return]

    def fed_forward(self, layer: Any, states: torch.Tensor) -> torch.Tensor:
        return _fed_forward(layer, states)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
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
