"""Weights that a run begins with: taken where they fit, refused with the reason where not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gourmet.errors import GourmetError, UsageError
from gourmet.training.files import load_tensors, put_tensors, save_tensors
from gourmet.training.run import data_of, read_run, write_run


class Summing(nn.Module):
    """A layer whose outputs are summed in fixed groups, as dishes are into classes."""

    groups: torch.Tensor

    def __init__(self, groups: list[list[float]]) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        self.register_buffer("groups", torch.tensor(groups))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        sums: torch.Tensor = self.layer(rows) @ self.groups
        return sums


DISHES = [[1.0, 0.0], [0.0, 1.0]]


def begin_with(network: nn.Module, path: Path) -> None:
    put_tensors(network, load_tensors(path)[0], path)


@pytest.fixture
def earlier() -> Summing:
    torch.manual_seed(4)
    network = Summing(DISHES)
    network(torch.randn(8, 3))  # moves the running statistics, which are no reason to refuse
    return network.eval()


def test_a_run_begins_with_the_weights_of_an_earlier_one(earlier: Summing, tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    save_tensors(path, earlier.state_dict(), {})
    network = Summing(DISHES).eval()
    begin_with(network, path)
    rows = torch.randn(5, 3)
    torch.testing.assert_close(network(rows), earlier(rows))


def test_weights_for_other_targets_are_refused(earlier: Summing, tmp_path: Path) -> None:
    save_tensors(tmp_path / "best.safetensors", earlier.state_dict(), {})
    with pytest.raises(GourmetError, match=r"its groups, which training does not change, differs"):
        begin_with(Summing(DISHES[::-1]), tmp_path / "best.safetensors")


def test_a_resumed_run_knows_its_initial_weights(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not the folder of a run"):
        read_run(tmp_path)
    write_run(tmp_path, {"data": "photos", "init": "first.safetensors"})
    assert read_run(tmp_path)["init"] == "first.safetensors"
    assert data_of(tmp_path / "last.safetensors") == Path("photos")
