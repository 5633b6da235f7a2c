"""Files of weights and networks that somebody might hand over, made to do harm to who reads them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn


class _Writing(nn.Module):
    """TorchScript that writes a file as it is opened."""

    def __init__(self, victim: str) -> None:
        super().__init__()
        self.victim = victim
        self.written = torch.zeros(1)

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.victim, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.victim = state[0]
        self.training = state[1]
        mapped = torch.from_file(self.victim, True, 5, dtype=torch.uint8)
        self.written = mapped.copy_(torch.tensor([112, 119, 110, 101, 100]))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


def torchscript_that_writes(path: Path, victim: Path) -> Path:
    torch.jit.script(_Writing(str(victim))).save(str(path))  # type: ignore[no-untyped-call]
    return path
