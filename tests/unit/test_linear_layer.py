"""The last layer, solved for activations."""

from __future__ import annotations

import torch
from torch import nn

from gourmet.tasks.classification.linear_layer import evenly_counted, one_hot, solve


def layer(inputs: int, outputs: int) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.zeros_(made.weight)
    nn.init.zeros_(made.bias)
    return made


def clusters(classes: int, rows: int, inputs: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    middles = 3 * torch.randn(classes, inputs, generator=random)
    which = torch.arange(classes).repeat_interleave(rows)
    return middles[which] + torch.randn(classes * rows, inputs, generator=random), which


def test_classes_that_can_be_told_apart_are_told_apart_and_the_solution_is_the_same_each_time() -> None:
    rows, classes = clusters(3, 40)
    found = []
    for _ in range(2):
        own = layer(rows.shape[1], 3)
        solve(own, rows, one_hot(classes, 3), evenly_counted(classes, 3), pull=0.01)
        assert (own(rows).argmax(dim=1) == classes).float().mean() > 0.95
        found.append(own.weight.detach().clone())
    assert torch.equal(*found)


def test_rows_of_none_of_the_labels_have_low_logits() -> None:
    rows, classes = clusters(3, 40)
    own = layer(rows.shape[1], 2)  # the third class is none of the labels
    solve(own, rows, one_hot(classes, 3), evenly_counted(classes, 3), pull=0.01)
    level = own(rows).logsumexp(dim=1)
    assert (level[classes == 2] < 0).float().mean() > 0.9
    assert (level[classes < 2] > 0).float().mean() > 0.9


def test_a_strong_pull_keeps_the_layer_as_it_was() -> None:
    rows, classes = clusters(3, 40)
    own = nn.Linear(rows.shape[1], 3)
    before = own.weight.detach().clone()
    solve(own, rows, one_hot(classes, 3), evenly_counted(classes, 3), pull=1e4)
    assert torch.allclose(own.weight, before, atol=1e-3)


def test_a_rare_class_counts_as_much_as_a_frequent_one() -> None:
    classes = torch.tensor([0] * 30 + [1] * 10)
    counts = evenly_counted(classes, 2)
    assert counts[classes == 0].sum() == counts[classes == 1].sum()
