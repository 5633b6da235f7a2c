"""Products of eight bits: a network whose answer to a row depends on no other row.

ONNX Runtime's own dynamic quantization has one scale for all that goes into a product, so that a sentence's
words depend on the sentences beside it. Its `MatMulNBits` has one for each block of a row, and gives a row
the same bits in any company. Weights have one for each column, and embeddings one for each word.

The words are not always those of the same weights in 32 bits: where two words are about as likely, rounding
decides, in one sentence of twenty. PyTorch, which computes the same here, differs from them as often, since a
difference in the seventh digit is enough to round otherwise. The weights that training keeps are `rounded` to
what eight bits hold exactly, so that only what goes through the products is.
"""

from __future__ import annotations

import copy
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

_LARGEST: Final = 127.0
# Weights are stored unsigned; this stands for zero.
_MIDDLE: Final = 128
# Numbers of a row that share a scale. With more of them a row's bits depend on how many there are.
_BLOCK: Final = 64
# MatMulNBits computes in eight bits, instead of only storing weights so.
_IN_INT8: Final = 4
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
                setattr(parent, name, _TiedEmbedding(of) if of else _Int8Embedding(part))
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
    """Weights as MatMulNBits has them: [outputs, blocks, numbers of a block]."""

    weight: torch.Tensor
    scales: torch.Tensor

    def __init__(self, of: nn.Linear) -> None:
        super().__init__()
        scale = _scale(of.weight.detach())
        lacking = -of.in_features % _BLOCK
        stored = F.pad((of.weight.detach() / scale).round(), (0, lacking)) + _MIDDLE
        self.in_features = of.in_features
        self.register_buffer("weight", stored.to(torch.uint8).view(len(stored), -1, _BLOCK))
        self.register_buffer("scales", scale.repeat(1, self.weight.shape[1]))
        self.bias = of.bias

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _Products.apply(  # type: ignore[no-untyped-call]
            states, self.weight, self.scales, self.bias, self.in_features, states.dim()
        )
        return found

    def words(self, ids: torch.Tensor) -> torch.Tensor:
        """The weights of these outputs."""
        blocks = (self.weight[ids].float() - _MIDDLE) * self.scales[ids].unsqueeze(-1)
        return blocks.flatten(-2)[..., : self.in_features]


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
    """Of a product's own weights, whose outputs are the words: they are not stored twice."""

    def __init__(self, product: _Int8Linear) -> None:
        super().__init__()
        self.embedding_dim = product.in_features
        self.product = product

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.product.words(ids)


class _Products(torch.autograd.Function):
    """Here as the operator computes it, whose node it is where it is exported."""

    @staticmethod
    def forward(
        _: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        scales: torch.Tensor,
        bias: Any,
        size: int,
        axes: int,
    ) -> torch.Tensor:
        blocks = F.pad(states, (0, -size % _BLOCK)).reshape(*states.shape[:-1], -1, _BLOCK)
        scale = _scale(blocks)
        taken, weights = (blocks / scale).round(), weight.float() - _MIDDLE
        products = torch.einsum("...bi,obi->...ob", taken, weights)
        found = (products * scale.squeeze(-1).unsqueeze(-2) * scales).sum(-1)
        return found if bias is None else found + bias

    @staticmethod
    def symbolic(graph: Any, states: Any, weight: Any, scales: Any, bias: Any, size: int, axes: int) -> Any:
        absent = graph.op("prim::Constant")
        absent.setType(torch.OptionalType.ofTensor())
        outputs = weight.type().sizes()[0]
        found = graph.op(
            "com.microsoft::MatMulNBits",
            *(states, weight, scales, absent, absent, absent if bias is None else bias),
            K_i=size,
            N_i=outputs,
            bits_i=8,
            block_size_i=_BLOCK,
            accuracy_level_i=_IN_INT8,
        )
        # The exporter knows nothing of this operator.
        shape = [*(None for _ in range(axes - 1)), outputs]
        found.setType(weight.type().with_dtype(torch.float32).with_sizes(shape))
        return found
