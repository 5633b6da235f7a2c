"""Products of eight bits: a network whose answer to a row depends on no other row.

What goes into a product is rounded by a scale that was measured once, while the network answered examples.
With a scale that is measured each time, as ONNX Runtime's own dynamic quantization has it, a sentence's
words would depend on the sentences beside it. Products of integers are exact, so a row has the same bits in
any company. Weights have a scale for each output, and embeddings one for each word.

int8 and fp32 can choose different words when two are nearly equally likely. The weights that training keeps
are `rounded` to what eight bits hold exactly, so that only what goes into the products is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from gourmet.errors import GourmetError

Network = TypeVar("Network", bound=nn.Module)

_LARGEST: Final = 127.0
_LEVELS: Final = 255
# The range of values that are all zero.
_SMALLEST: Final = 1e-12
# Values of a product's input, sampled evenly, from which its range is taken.
_LOOKED_AT: Final = 2000
# Shares of the full range that are tried: the one with the least error is taken, and clips outliers.
_SHARES: Final = tuple(share / 40 for share in range(30, 41))


class Range(NamedTuple):
    """The range of values that eight bits represent: from `low` (at most 0) to `high` (at least 0)."""

    low: float
    high: float

    @property
    def scale(self) -> float:
        return max(self.high - self.low, _SMALLEST) / _LEVELS

    @property
    def zero(self) -> int:
        """The level that stands for zero."""
        return round(-self.low / self.scale)

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        levels = (values / self.scale).round() + self.zero
        return (levels.clamp(0, _LEVELS) - self.zero) * self.scale


def input_ranges(network: Network, answer: Callable[[Network], object]) -> dict[str, Range]:
    """Return the input range of each matrix product that `answer` has the network compute, by name."""
    seen: dict[str, list[torch.Tensor]] = {}

    def sampling_hook(name: str) -> Callable[[nn.Module, Any], None]:
        def hook(_: nn.Module, inputs: Any) -> None:
            values = inputs[0].detach().flatten()
            # Odd: an even step would sample the same columns of each row.
            step = len(values) // _LOOKED_AT | 1
            seen.setdefault(name, []).append(values[::step].clone())

        return hook

    products = [(name, part) for name, part in network.named_modules() if type(part) is nn.Linear]
    hooks = [part.register_forward_pre_hook(sampling_hook(name)) for name, part in products]
    try:
        answer(network)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: _range(torch.cat(values).float()) for name, values in seen.items()}


def _range(values: torch.Tensor) -> Range:
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    if not (torch.isfinite(values).all() and high - low > _SMALLEST):
        return Range(-1.0, 1.0)
    ranges = [Range(low * share, high * share) for share in _SHARES]
    return min(ranges, key=lambda candidate: float((candidate.rounded(values) - values).square().mean()))


def quantized(network: Network, answer: Callable[[Network], object]) -> Network:
    """Return a copy with products and embeddings in eight bits.

    `answer` has the network answer examples, from which the range of each product's input is taken.
    """
    ranges = input_ranges(network, answer)
    if not ranges:
        raise GourmetError("no example to measure the ranges of its products with: name some with --data")
    copied = copy.deepcopy(network)
    for name, part in [*copied.named_modules()]:
        if type(part) is nn.Linear and name in ranges:  # others are not served
            copied.set_submodule(name, _Int8Linear(part, ranges[name]))
        elif type(part) is nn.Embedding:  # tables of places are of classes of their own
            copied.set_submodule(name, _Int8Embedding(part))
    return copied


def rounded(network: nn.Module) -> nn.Module:
    """Return a copy with weights that eight bits hold exactly."""
    copied = copy.deepcopy(network)
    with torch.no_grad():
        for part in copied.modules():
            if isinstance(part, nn.Linear | nn.Embedding) and part.weight.requires_grad:
                scale = _scale(part.weight)
                # Integers have no minus zero.
                part.weight.copy_((part.weight / scale).round() * scale + 0.0)
    return copied


def _scale(rows: torch.Tensor) -> torch.Tensor:
    """Return the scale that brings each row into eight bits."""
    return rows.abs().amax(dim=-1, keepdim=True).clamp(min=_SMALLEST) / _LARGEST


class _Int8Linear(nn.Module):
    """Weights as MatMulIntegerToFloat has them: [inputs, outputs]."""

    weight: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor

    def __init__(self, of: nn.Linear, inputs: Range) -> None:
        super().__init__()
        scales = _scale(of.weight.detach())
        self.register_buffer("weight", (of.weight.detach() / scales).round().to(torch.int8).T.contiguous())
        self.register_buffer("scales", scales.squeeze(-1))
        self.register_buffer("bias", torch.zeros(of.out_features) if of.bias is None else of.bias.detach())
        self.register_buffer("scale", torch.tensor(inputs.scale))
        self.register_buffer("zero", torch.tensor(inputs.zero, dtype=torch.uint8))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        products: torch.Tensor = _Products.apply(  # type: ignore[no-untyped-call]
            states, self.weight, self.scales, self.bias, self.scale, self.zero
        )
        return products


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


class _Products(torch.autograd.Function):
    """Products of integers, exported as ONNX Runtime's operators and computed here in the same way."""

    @staticmethod
    def forward(
        _: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor,
        scale: torch.Tensor,
        zero: torch.Tensor,
    ) -> torch.Tensor:
        levels = ((states / scale).round() + zero).clamp(0, _LEVELS) - zero
        sums = levels.double() @ weight.double()  # exact, as integers are
        return sums.float() * (scale * scales) + bias

    @staticmethod
    def symbolic(graph: Any, states: Any, weight: Any, scales: Any, bias: Any, scale: Any, zero: Any) -> Any:
        absent = graph.op("prim::Constant")
        absent.setType(torch.OptionalType.ofTensor())
        levels = graph.op("QuantizeLinear", states, scale, zero)
        node = graph.op(
            "com.microsoft::MatMulIntegerToFloat", levels, weight, scale, scales, zero, absent, bias
        )
        # The exporter does not know the shape of this operator's output.
        axes = states.type().dim()
        node.setType(bias.type().with_sizes([*(None for _ in range(axes - 1)), bias.type().sizes()[0]]))
        return node
