"""The frozen network with its linear layer, and what networks are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gourmet.errors import GourmetError
from gourmet.systems.food11.network import STARTING_WEIGHTS, Food11Network, load
from gourmet.tasks.classification.torchvision_network import build
from gourmet.training.files import save_tensors


@pytest.fixture(scope="module")
def network() -> Food11Network:
    torch.manual_seed(0)
    return Food11Network(pretrained=True).eval()


def test_damaged_starting_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "starting_weights.safetensors"
    damaged.write_bytes(STARTING_WEIGHTS.read_bytes()[:-1] + b"x")
    monkeypatch.setattr("gourmet.systems.food11.network.STARTING_WEIGHTS", damaged)
    with pytest.raises(GourmetError, match="is damaged: its sha256 is"):
        Food11Network(pretrained=True)


def test_weights_come_back_as_they_were_saved(network: Food11Network, tmp_path: Path) -> None:
    save_tensors(tmp_path / "w.safetensors", network.state_dict(), {**network.about, "epoch": 3})
    again, about = load(tmp_path / "w.safetensors")
    assert about["epoch"] == 3
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"system": "digits"}, "its system is digits, not food11"),
        ({"architecture": "resnet18"}, "its architecture is resnet18, not mobilenet_v1"),
        ({"labels": ["Bread"]}, r"its labels is \['Bread'\], not \['Bread', 'Dairy"),
    ],
)
def test_weights_of_another_network_are_refused_by_name(
    change: dict[str, object], complaint: str, network: Food11Network, tmp_path: Path
) -> None:
    save_tensors(tmp_path / "w.safetensors", network.state_dict(), {**network.about, **change})
    with pytest.raises(GourmetError, match=rf"w\.safetensors .*{complaint}"):
        load(tmp_path / "w.safetensors")


def test_weights_of_torchvision_that_cannot_be_downloaded_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # the discard port: nobody listens
    with pytest.raises(
        GourmetError, match=r"mobilenet_v2-\w+\.pth cannot be downloaded .* without --pretrained"
    ):
        build("torchvision:mobilenet_v2", 3, pretrained=True)
