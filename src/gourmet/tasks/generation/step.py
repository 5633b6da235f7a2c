"""A step of a decoder: what may follow the newest token of each row, given what it attends to.

    StepNetwork  token [B, 1], length [B, 1], cache [B, L, 2, H, T, D],
                 memory [B, L, 2, H, S, D], mask [B, S]  -> tokens [B, K], scores [B, K],
                                                            added [B, L, 2, H, 1, D]

Where a graph takes several words at once (token [B, W]), each attends to those before it, what is `added` is
of all of them, and the `logits` [B, W, V] of each are an output too.

L layers of the decoder, two for keys and values, H heads of D numbers. A row's cache counts up to its
`length`, whatever lies behind, so that rows of any age go through a step together; what the step `added`
belongs there. K are the likeliest words, with the logarithm of their probability.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn

from gourmet.tasks.generation.onnx_graph import Graph

# As many as four beams can need: each has its best words, and one of them may be the end.
LIKELIEST: Final = 8
NEVER: Final = -1e9


class Attention(nn.Module):
    """A layer's attention, asked for keys and values apart from what is done with them."""

    def __init__(self, query: nn.Module, key: nn.Module, value: nn.Module, heads: int, size: int) -> None:
        super().__init__()
        self.query, self.key, self.value = query, key, value
        self.heads, self.size = heads, size

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
        return (weights @ memory[:, 1]).transpose(1, 2).flatten(2)


class Memory(nn.Module):
    """What the decoder's layers attend to, of an encoder's hidden states: [B, L, 2, H, S, D]."""

    def __init__(self, across: Sequence[Attention]) -> None:
        super().__init__()
        self.across: Any = nn.ModuleList(across)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return torch.stack([across.keys_and_values(states) for across in self.across], dim=1)


class StepNetwork(nn.Module):
    """A layer attends to what was said, then to the memory, and then is fed forward; all of them are the
    architecture's, in `layers`.
    """

    several = False  # words at once

    def __init__(self, layers: Any, attention: Sequence[Attention], across: Sequence[Attention]) -> None:
        super().__init__()
        self.layers = layers
        self.attention: Any = nn.ModuleList(attention)
        self.across: Any = nn.ModuleList(across)

    @abstractmethod
    def embedded(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def attended(self, layer: Any, states: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """The states that a layer's attention to what was said makes of what it `found`."""

    @abstractmethod
    def attended_across(self, layer: Any, states: torch.Tensor, found: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def fed_forward(self, layer: Any, states: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Of every word."""

    def forward(
        self,
        token: torch.Tensor,
        length: torch.Tensor,
        cache: torch.Tensor,
        memory: torch.Tensor,
        mask: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        bias, cache_bias = mask_bias(mask), self._cache_bias(token, length, cache)
        place = length + torch.arange(token.shape[1], device=token.device)
        states = self.embedded(token, place)
        added = []
        for number, (layer, attention, across) in enumerate(
            zip(self.layers, self.attention, self.across, strict=True)
        ):
            added.append(attention.keys_and_values(states))
            so_far = torch.cat([cache[:, number], added[-1]], dim=3)
            states = self.attended(layer, states, attention(states, so_far, cache_bias))
            states = self.attended_across(layer, states, across(states, memory[:, number], bias))
            states = self.fed_forward(layer, states)
        logits = self.logits(states if self.several else states[:, -1:])
        scores, tokens = torch.log_softmax(logits[:, -1], dim=-1).topk(LIKELIEST, dim=-1)
        found = tokens.to(torch.int32), scores, torch.stack(added, dim=1)
        return (*found, logits) if self.several else found

    def _cache_bias(self, token: torch.Tensor, length: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        """For what was said, and for the newest words, which lie behind all that the longest row has."""
        if not self.several:
            places = torch.arange(cache.shape[4] + 1, device=cache.device)
            return mask_bias((places < length) | (places == cache.shape[4]))
        said = mask_bias(torch.arange(cache.shape[4], device=cache.device) < length)
        words = torch.arange(token.shape[1], device=token.device)
        newest = torch.where(words[:, None] < words, NEVER, 0.0)[None, None]
        rows = token.shape[0]
        return torch.cat([said.expand(-1, -1, token.shape[1], -1), newest.expand(rows, -1, -1, -1)], dim=-1)


def mask_bias(mask: torch.Tensor) -> torch.Tensor:
    """[B, 1, 1, S]: zero where `mask` is not."""
    return torch.where(mask != 0, 0.0, NEVER)[:, None, None, :]


def step_graph(network: StepNetwork) -> Graph:
    """As a file of its own, for any number of rows, of words so far and of places to attend to."""
    first = network.across[0]
    row = (2, len(network.layers), 2, first.heads)
    one, mask = torch.ones(2, 1, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int32)
    token = torch.ones(2, 2, dtype=torch.int64) if network.several else one
    cache, memory = (torch.zeros(*row, words, first.size) for words in (3, 5))
    rows, words = {0: "rows"}, {0: "rows", 1: "words"}
    newest = {0: "rows", 1: "newest"} if network.several else rows
    return Graph(
        network,
        {"token": token, "length": one, "cache": cache, "memory": memory, "mask": mask},
        ("tokens", "scores", "added", "logits") if network.several else ("tokens", "scores", "added"),
        {
            **dict.fromkeys(("length", "tokens", "scores"), rows),
            **dict.fromkeys(("token", "logits"), newest),
            "added": {0: "rows", 4: "newest"} if network.several else rows,
            "cache": {0: "rows", 4: "age"},
            "memory": {0: "rows", 4: "words"},
            "mask": words,
        },
    )
