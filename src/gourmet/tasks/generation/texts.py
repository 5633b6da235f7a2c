"""Texts as numbers, for networks that learn."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def padded(rows: Sequence[Sequence[int]], pad: int) -> torch.Tensor:
    """Rows of different lengths as one tensor."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])
