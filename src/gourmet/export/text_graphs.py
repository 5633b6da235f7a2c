"""A step of a decoder: the scores of the next token of each row.

    StepNetwork  token [B, 1], length [B, 1], mask [B, S],
                 cache [B, L, 2, H, T, D],
                 memory [B, L, 2, H, S, D]  -> tokens [B, K], scores [B, K], added [B, L, 2, H, 1, D]

A graph may have one input for each layer's keys and values, such as cache.0.keys [B, H, T, D]: slicing one
large input would copy it at every step. A graph may take several words at once (token [B, W]): each attends
to the words before it, `added` is of all words, and their `logits` [B, W, V] are an output too.

L layers of the decoder, two for keys and values, H heads of D numbers. A row's cache counts up to its
`length`, whatever lies behind, so that rows of any age go through a step together; what the step `added`
belongs there. K are the likeliest words, with the logarithm of their probability.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import onnx
import onnxruntime
import torch
from torch import nn

from gourmet.generation.engine import part_names
from gourmet.repository.gate import Check

# Enough for four beams: each needs its four best tokens, and the end may be among them.
LIKELIEST: Final = 8
NEVER: Final = -1e9


class Attention(nn.Module):
    """A layer's attention; its keys and values are computed separately."""

    def __init__(self, query: nn.Module, key: nn.Module, value: nn.Module, heads: int, size: int) -> None:
        super().__init__()
        self.query, self.key, self.value = query, key, value
        self.heads, self.size = heads, size

    def forward(
        self, states: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Keys and values are [B, S, H · D] or [B, H, S, D]. `mask` is of the keys, [B, S], zero for those
        that are ignored; or, where that differs between queries, a bias [B, 1, W, S] of the products of
        queries and keys.
        """
        attended: torch.Tensor = _Attended.apply(  # type: ignore[no-untyped-call]
            self.query(states), keys, values, mask, self.heads
        )
        return attended


def split(states: torch.Tensor, heads: int) -> torch.Tensor:
    return _reshaped(states, 0, 0, heads, -1).transpose(1, 2)


def _reshaped(states: torch.Tensor, *sizes: int) -> torch.Tensor:
    """Write 0 for a size that the same axis has already. The exporter writes ten nodes instead."""
    reshaped: torch.Tensor = _Reshaped.apply(states, sizes)  # type: ignore[no-untyped-call]
    return reshaped


class _Reshaped(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, states: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        return states.reshape([size or states.shape[axis] for axis, size in enumerate(sizes)])

    @staticmethod
    def symbolic(graph: Any, states: Any, sizes: Sequence[int]) -> Any:
        node = graph.op("Reshape", states, graph.op("Constant", value_t=torch.tensor(sizes)))
        node.setType(states.type().with_sizes([size if size > 0 else None for size in sizes]))
        return node


class _Attended(torch.autograd.Function):
    """Attention, exported as one node of ONNX Runtime and computed here in the same way."""

    @staticmethod
    def forward(
        _: Any,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor,
        heads: int,
    ) -> torch.Tensor:
        queries = split(query, heads)
        if keys.dim() == 3:
            keys, values = split(keys, heads), split(values, heads)
        likeness = queries @ keys.transpose(-1, -2) * (1.0 / math.sqrt(queries.shape[-1]))
        masked = mask if mask.dim() == 4 else torch.where(mask != 0, 0.0, NEVER)[:, None, None, :]
        return (torch.softmax(likeness + masked, dim=-1) @ values).transpose(1, 2).flatten(2)

    @staticmethod
    def symbolic(graph: Any, query: Any, keys: Any, values: Any, mask: Any, heads: int) -> Any:
        absent = graph.op("prim::Constant")
        absent.setType(torch.OptionalType.ofTensor())
        masks = (absent, mask) if mask.type().dim() == 4 else (mask, absent)
        node = graph.op(
            "com.microsoft::MultiHeadAttention", query, keys, values, absent, *masks, num_heads_i=heads
        )
        node.setType(query.type())
        return node


class Memory(nn.Module):
    """The keys and values that the decoder's layers attend to, of an encoder's hidden states: [B, L, 2, H, S,
    D].
    """

    def __init__(self, across: Sequence[Attention]) -> None:
        super().__init__()
        self.across: Any = nn.ModuleList(across)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        parts = [part(states) for layer in self.across for part in (layer.key, layer.value)]
        heads = self.across[0].heads
        apart = _reshaped(torch.cat(parts, dim=-1), 0, 0, len(parts) // 2, 2, heads, -1)
        return apart.permute(0, 2, 3, 4, 1, 5)


def in_layers(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join keys and values of the layers, in their order: [B, L, 2, H, S, D]."""
    together = torch.cat([part.unsqueeze(1).unsqueeze(1) for part in parts], dim=2)
    return _reshaped(together, 0, len(parts) // 2, 2, int(parts[0].shape[1]), 0, -1)


def by_layer(of_all: torch.Tensor) -> Sequence[torch.Tensor]:
    """Split the tensor that `in_layers` joined into the keys and values of each layer."""
    return [_Layer.apply(of_all, layer, part) for layer in range(int(of_all.shape[1])) for part in (0, 1)]  # type: ignore[no-untyped-call]


class _Layer(torch.autograd.Function):
    """Keys or values of a layer, copied once: the exporter would have all of the layer copied before."""

    @staticmethod
    def forward(_: Any, of_all: torch.Tensor, layer: int, part: int) -> torch.Tensor:
        return of_all[:, layer, part]

    @staticmethod
    def symbolic(graph: Any, of_all: Any, layer: int, part: int) -> Any:
        def constant(*values: int) -> Any:
            return graph.op("Constant", value_t=torch.tensor(values))

        axes = constant(1, 2)
        node = graph.op("Slice", of_all, constant(layer, part), constant(layer + 1, part + 1), axes)
        return graph.op("Squeeze", node, axes)


class StepNetwork(nn.Module):
    """A decoder's step: each layer attends to the words before, then to the memory, and is fed forward."""

    several = False  # words at once

    def __init__(self, layers: Any, attention: Sequence[Attention], across: Sequence[Attention]) -> None:
        super().__init__()
        self.layers = layers
        self.attention: Any = nn.ModuleList(attention)
        self.across: Any = nn.ModuleList(across)

    @abstractmethod
    def embedded(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def attended(self, layer: Any, states: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Return the states after a layer's attention to the words before, which gave `context`."""

    @abstractmethod
    def attended_across(self, layer: Any, states: torch.Tensor, context: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def fed_forward(self, layer: Any, states: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return the logits of every word."""

    def forward(
        self, token: torch.Tensor, length: torch.Tensor, mask: torch.Tensor, *parts: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """`parts` are the cache and the memory, or the keys and values of each layer of both."""
        half = len(parts) // 2
        before, seen = map(by_layer, parts) if half == 1 else (parts[:half], parts[half:])
        past = before[0].shape[2]
        position = length + torch.arange(token.shape[1], device=token.device)
        attended = self._attended(token, length, past)
        states = self.embedded(token, position)
        added: list[torch.Tensor] = []
        for number, (layer, attention, across) in enumerate(
            zip(self.layers, self.attention, self.across, strict=True)
        ):
            pair = slice(2 * number, 2 * number + 2)
            newest = [attention.key(states), attention.value(states)]
            by_head = [self._by_head(part, attention.heads) for part in newest]
            added += by_head if self.several else newest
            so_far = [torch.cat(both, dim=2) for both in zip(before[pair], by_head, strict=True)]
            states = self.attended(layer, states, attention(states, *so_far, attended))
            attended_memory = across(states, *seen[pair], mask)
            states = self.attended_across(layer, states, attended_memory)
            states = self.fed_forward(layer, states)
        logits = self.logits(states if self.several else states[:, -1:])
        scores, tokens = torch.log_softmax(logits[:, -1], dim=-1).topk(LIKELIEST, dim=-1)
        outputs = tokens.to(torch.int32), scores, self._together(added)
        return (*outputs, logits) if self.several else outputs

    def _by_head(self, states: torch.Tensor, heads: int) -> torch.Tensor:
        # With a single word the axes need not change places.
        return split(states, heads) if self.several else _reshaped(states, 0, heads, 1, -1)

    def _together(self, added: Sequence[torch.Tensor]) -> torch.Tensor:
        if self.several:
            return in_layers(added)
        return _reshaped(torch.cat(list(added), dim=1), 0, len(added) // 2, 2, self.attention[0].heads, 1, -1)

    def _attended(self, token: torch.Tensor, length: torch.Tensor, past: int) -> torch.Tensor:
        """Join the cache and the newest words, which lie behind everything that the longest row has."""
        if not self.several:
            positions = torch.arange(past + 1, device=token.device)
            return ((positions < length) | (positions == past)).int()
        earlier = torch.where(torch.arange(past, device=token.device) < length, 0.0, NEVER)
        words = torch.arange(token.shape[1], device=token.device)
        newest = torch.where(words[:, None] < words, NEVER, 0.0)[None, None]
        rows, count = token.shape
        of_each = earlier[:, None, None, :].expand(-1, -1, count, -1)
        return torch.cat([of_each, newest.expand(rows, -1, -1, -1)], dim=-1)


def step_graph(network: StepNetwork, *, apart: bool = False) -> Graph:
    """Write a step as a file of its own, for any number of rows, past words and positions of memory."""
    first = network.across[0]
    rows, words = {0: "rows"}, {0: "rows", 1: "words"}
    newest = {0: "rows", 1: "newest"} if network.several else rows
    single, mask = torch.ones(2, 1, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int32)
    token = torch.ones(2, 2, dtype=torch.int64) if network.several else single
    parts: dict[str, torch.Tensor] = {}
    axes: dict[str, dict[int, str]] = {}
    for name, size_of_axis, axis in (("cache", 3, "age"), ("memory", 5, "words")):
        layers = len(network.layers)
        names = part_names(name, layers) if apart else [name]
        shape = (2, *(() if apart else (layers, 2)), first.heads, size_of_axis, first.size)
        for part_name in names:
            parts[part_name], axes[part_name] = torch.zeros(*shape), {0: "rows", len(shape) - 2: axis}
    return Graph(
        network,
        {"token": token, "length": single, "mask": mask, **parts},
        ("tokens", "scores", "added", "logits") if network.several else ("tokens", "scores", "added"),
        {
            **dict.fromkeys(("length", "tokens", "scores"), rows),
            **dict.fromkeys(("token", "logits"), newest),
            "added": {0: "rows", 4: "newest"} if network.several else rows,
            "mask": words,
            **axes,
        },
    )


OPSET: Final = 17


@dataclass(frozen=True)
class Graph:
    """The inputs of a part, and the axes that may have any size."""

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

    def file(self) -> bytes:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "graph.onnx"
            self.write(path)
            return path.read_bytes()

    def eager(self) -> Sequence[torch.Tensor]:
        with torch.inference_mode():
            outputs = self.module.eval()(*self.inputs.values())
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def dims(self) -> dict[str, list[int]]:
        """Each tensor's shape without its rows, as the config of a served model says it."""
        outputs = zip(self.outputs, self.eager(), strict=True)
        return {
            name: [-1 if axis in self.axes[name] else size for axis, size in enumerate(tensor.shape) if axis]
            for name, tensor in (*self.inputs.items(), *outputs)
        }

    def same_shapes(self, path: Path) -> Sequence[Check]:
        """Compare shapes only: quantizing changes the numbers, and a graph alone gives no text."""
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        outputs = session.run(
            list(self.outputs), {name: tensor.numpy() for name, tensor in self.inputs.items()}
        )
        shapes = [tensor.shape for tensor in outputs]
        same = shapes == [tuple(tensor.shape) for tensor in self.eager()]
        return [Check("shapes of the outputs", ", ".join(map(str, shapes)), "the network's", same)]
