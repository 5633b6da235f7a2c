"""Weights of eight bits, row by row: a network whose answer to a row depends on no other row.

ONNX Runtime's own dynamic quantization has one scale for all that goes into a product, so that a sentence's
words depend on the sentences beside it. Here every row of it has its own, in standard operators, which
every ONNX Runtime has; weights have one for each column, and embeddings one for each word.

Two things make the words those of the network. The weights that training keeps are `rounded` to what eight
bits hold exactly. And what goes through the products is taken twice, as its eight coarse and its eight fine
bits, side by side in one product: with the coarse alone one sentence in ten ends up with another word. ONNX
Runtime's `MatMulNBits` keeps rows apart too and is faster, but takes the coarse bits only: 475 of 500
sentences kept their words, where these keep 499.
"""

from __future__ import annotations

import copy
from typing import Any, Final

import onnx
import torch
import torch.nn.functional as F
from torch import nn

_LARGEST: Final = 127.0
# Activations are unsigned, which is what processors have fast products for; this stands for zero.
_MIDDLE: Final = 128
# What the coarse bits leave over is at most a half.
_FINE: Final = 2 * _LARGEST
# Of values with less than this, which are all zero, any scale will do.
_SMALLEST: Final = 1e-12


def quantized(network: nn.Module) -> Any:
    """A copy with the weights of its products and words in eight bits; places stay as they are."""
    found = copy.deepcopy(network)
    products = {id(part.weight): _Int8Linear(part) for part in found.modules() if type(part) is nn.Linear}
    for parent in list(found.modules()):
        for name, part in parent.named_children():
            if type(part) is nn.Linear:
                setattr(parent, name, products[id(part.weight)])
            elif type(part) is nn.Embedding:
                of = products.get(id(part.weight))
                setattr(parent, name, _TiedEmbedding(of, part) if of else _Int8Embedding(part))
    return found


def rounded(network: nn.Module) -> nn.Module:
    """A copy whose weights are those that eight bits hold exactly."""
    found = copy.deepcopy(network)
    with torch.no_grad():
        for part in found.modules():
            if isinstance(part, nn.Linear | nn.Embedding) and part.weight.requires_grad:
                scale = _scale(part.weight)
                part.weight.copy_((part.weight / scale).round() * scale)
    return found


def _scale(rows: torch.Tensor) -> torch.Tensor:
    """Divided by it, each row's numbers are within eight bits."""
    return rows.abs().amax(dim=-1, keepdim=True).clamp(min=_SMALLEST) / _LARGEST


class _Int8Linear(nn.Module):
    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, of: nn.Linear) -> None:
        super().__init__()
        scale = _scale(of.weight.detach())
        self.register_buffer("weight", (of.weight / scale).round().T.to(torch.int8))
        self.register_buffer("scale", scale[:, 0])
        self.bias = of.bias

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        scale = _scale(states)
        scaled = states / scale
        coarse = scaled.round()
        fine = ((scaled - coarse) * _FINE).round()
        by_coarse, by_fine = _Products.apply(coarse, fine, self.weight)  # type: ignore[no-untyped-call]
        product: torch.Tensor = (by_coarse + by_fine / _FINE) * self.scale * scale
        return product if self.bias is None else product + self.bias


class _Int8Embedding(nn.Module):
    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, of: nn.Embedding) -> None:
        super().__init__()
        scale = _scale(of.weight.detach())
        self.embedding_dim = of.embedding_dim
        self.register_buffer("weight", (of.weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.weight).float() * F.embedding(ids, self.scale)


class _TiedEmbedding(nn.Module):
    """Of a product's own weights, whose columns are the words: they are not stored twice."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, product: _Int8Linear, of: nn.Embedding) -> None:
        super().__init__()
        self.embedding_dim = of.embedding_dim
        self.register_buffer("weight", product.weight)
        self.register_buffer("scale", product.scale)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.weight.index_select(1, ids.flatten()).T.float() * self.scale[ids.flatten(), None]
        return rows.view(*ids.shape, self.embedding_dim)


class _Products(torch.autograd.Function):
    """Rows of whole numbers times weights, as one product of unsigned numbers where it is exported."""

    @staticmethod
    def forward(_: Any, coarse: torch.Tensor, fine: torch.Tensor, weight: torch.Tensor) -> Any:
        return coarse @ weight.float(), fine @ weight.float()

    @staticmethod
    def symbolic(graph: Any, coarse: Any, fine: Any, weight: Any) -> Any:
        both = graph.op("Concat", coarse, fine, axis_i=0)
        moved = graph.op("Add", both, graph.op("Constant", value_t=torch.tensor(float(_MIDDLE))))
        rows = graph.op("Cast", moved, to_i=onnx.TensorProto.UINT8)
        middle = graph.op("Constant", value_t=torch.tensor(_MIDDLE, dtype=torch.uint8))
        product = graph.op("MatMulInteger", rows, weight, middle)
        real = graph.op("Cast", product, to_i=onnx.TensorProto.FLOAT)
        return graph.op("Split", real, axis_i=0, outputs=2)
