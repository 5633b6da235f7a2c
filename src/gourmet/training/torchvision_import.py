"""torchvision where it was built for CUDA and torch was not, as PyPI has them."""

from __future__ import annotations

from types import ModuleType

import torch


def torchvision() -> ModuleType:
    """The package, which refuses to be imported beside a CPU-only torch for want of two operators."""
    try:
        import torchvision as found
    except RuntimeError:
        # Not before: one that has operators of its own ends the process if they are declared already.
        for operator in ("nms", "qnms"):
            schema = "(Tensor boxes, Tensor scores, float threshold) -> Tensor"
            torch.library.define(f"torchvision::{operator}", schema)
        import torchvision as found
    module: ModuleType = found
    return module
