"""Import a torchvision built for CUDA beside a CPU-only torch, as from PyPI."""

from __future__ import annotations

from types import ModuleType

import torch


def torchvision() -> ModuleType:
    """Import torchvision; declare the two operators that it misses beside a CPU-only torch."""
    try:
        import torchvision as imported
    except RuntimeError:
        # Only after the failure: a torchvision that has the operators ends the process if they are declared.
        for operator in ("nms", "qnms"):
            schema = "(Tensor boxes, Tensor scores, float threshold) -> Tensor"
            torch.library.define(f"torchvision::{operator}", schema)
        import torchvision as imported
    module: ModuleType = imported
    return module
