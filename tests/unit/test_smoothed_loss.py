"""The loss over a vocabulary, some rows at a time, is PyTorch's own, and so is its gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from gourmet.tasks.generation.learning import smoothed_loss


def test_loss_and_gradient_are_those_of_pytorch() -> None:
    chance = torch.Generator().manual_seed(5)
    target = torch.randint(0, 90, (300,), generator=chance)  # more rows than are taken at a time
    hidden = torch.randn(300, 16, generator=chance).requires_grad_()
    weight = torch.randn(90, 16, generator=chance).requires_grad_()
    wanted = F.cross_entropy(hidden @ weight.T, target, label_smoothing=0.1)
    found = smoothed_loss(hidden, weight, target, 0.1)
    torch.testing.assert_close(found, wanted)
    both = (torch.autograd.grad(3.0 * loss, (hidden, weight)) for loss in (found, wanted))
    for own, theirs in zip(*both, strict=True):
        torch.testing.assert_close(own, theirs)
