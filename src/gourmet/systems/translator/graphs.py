"""The network cut into what is called once for a sentence and what is called once for a word.

    Encoder      ids [B, S], mask [B, S]                       -> hidden [B, S, W], memory [B, L, 2, H, S, D]
    StepNetwork  token [B, 1], length [B, 1], cache [B, L, 2, H, T, D],
                 memory, mask                               -> tokens [B, K], scores [B, K],
                                                               added [B, L, 2, H, 1, D]
    Whole        source [B, 50], target [B, 50]                -> output [B, 50, V]

L layers of the decoder, two for keys and values, H heads of D numbers. A row's cache counts up to its
`length`, whatever lies behind, so that rows of any age go through a step together; what the step `added`
belongs there. K are the likeliest words, with the logarithm of their probability.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import nn

# As many as four beams can need: each has its best words, and one of them may be the end.
LIKELIEST: Final = 8
_NEVER: Final = -1e9


class _Attention(nn.Module):
    """A layer's attention of the network, asked for keys and values apart from what is done with them."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = of.q_proj, of.k_proj, of.v_proj, of.out_proj
        self.heads, self.size = of.num_heads, of.head_dim

    def split(self, states: torch.Tensor) -> torch.Tensor:
        rows, words, _ = states.shape
        return states.view(rows, words, self.heads, self.size).transpose(1, 2)

    def keys_and_values(self, states: torch.Tensor) -> torch.Tensor:
        """[B, 2, H, S, D]"""
        return torch.stack([self.split(self.key(states)), self.split(self.value(states))], dim=1)

    def forward(self, states: torch.Tensor, memory: torch.Tensor, mask_bias: torch.Tensor) -> torch.Tensor:
        """`mask_bias` is added to what each query makes of each key: zero, or so low that it is lost."""
        query = self.split(self.query(states)) * (1.0 / math.sqrt(self.size))
        weights = torch.softmax(query @ memory[:, 0].transpose(-1, -2) + mask_bias, dim=-1)
        return self.out((weights @ memory[:, 1]).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class _Embedding(nn.Module):
    def __init__(self, of: Any) -> None:
        super().__init__()
        self.words, self.places = of.embed_tokens, of.embed_positions
        self.scale = math.sqrt(of.embed_tokens.embedding_dim) if of.config.scale_embedding else 1.0

    def forward(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self.words(ids) * self.scale + self.places.weight[places]  # type: ignore[no-any-return]


def _fed_forward(layer: Any, states: torch.Tensor) -> torch.Tensor:
    wide = layer.activation_fn(layer.fc1(states))
    return layer.final_layer_norm(states + layer.fc2(wide))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        encoder, decoder = network.model.encoder, network.model.decoder
        self.embedding = _Embedding(encoder)
        self.layers: Any = encoder.layers
        self.attention: Any = nn.ModuleList(_Attention(layer.self_attn) for layer in encoder.layers)
        self.across: Any = nn.ModuleList(_Attention(layer.encoder_attn) for layer in decoder.layers)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask_bias = _mask_bias(mask)
        places = torch.arange(ids.shape[1], device=ids.device)
        states = self.embedding(ids, places)
        for layer, attention in zip(self.layers, self.attention, strict=True):
            attended = attention(states, attention.keys_and_values(states), mask_bias)
            states = _fed_forward(layer, layer.self_attn_layer_norm(states + attended))
        return states, torch.stack([across.keys_and_values(states) for across in self.across], dim=1)


class StepNetwork(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        decoder = network.model.decoder
        self.embedding = _Embedding(decoder)
        self.layers: Any = decoder.layers
        self.attention: Any = nn.ModuleList(_Attention(layer.self_attn) for layer in decoder.layers)
        self.across: Any = nn.ModuleList(_Attention(layer.encoder_attn) for layer in decoder.layers)
        self.words, self.bias = network.lm_head, network.final_logits_bias
        never = torch.zeros(network.config.vocab_size)
        never[network.config.pad_token_id] = _NEVER  # a pad is never an answer
        self.register_buffer("never", never)

    def forward(
        self,
        token: torch.Tensor,
        length: torch.Tensor,
        cache: torch.Tensor,
        memory: torch.Tensor,
        mask: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mask_bias = _mask_bias(mask)
        places = torch.arange(cache.shape[4] + 1, device=cache.device)
        # The newest comes last, behind all that the longest row has.
        there = (places < length) | (places == cache.shape[4])
        cache_bias = _mask_bias(there)
        states = self.embedding(token, length)
        added = []
        for number, (layer, attention, across) in enumerate(
            zip(self.layers, self.attention, self.across, strict=True)
        ):
            added.append(attention.keys_and_values(states))
            so_far = torch.cat([cache[:, number], added[-1]], dim=3)
            states = layer.self_attn_layer_norm(states + attention(states, so_far, cache_bias))
            states = layer.encoder_attn_layer_norm(states + across(states, memory[:, number], mask_bias))
            states = _fed_forward(layer, states)
        logits = self.words(states[:, 0]) + self.bias + self.never
        scores, tokens = torch.log_softmax(logits, dim=-1).topk(LIKELIEST, dim=-1)
        return tokens.to(torch.int32), scores, torch.stack(added, dim=1)


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


def _mask_bias(mask: torch.Tensor) -> torch.Tensor:
    """[B, 1, 1, S]: zero where `mask` is not."""
    return torch.where(mask != 0, 0.0, _NEVER)[:, None, None, :]
