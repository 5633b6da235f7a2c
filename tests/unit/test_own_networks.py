"""The digits' and the food network: weights come back as they were saved, and others are refused."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from gourmet.errors import GourmetError
from gourmet.export.torchvision_network import build
from gourmet.systems.digits.network import DigitsNetwork
from gourmet.systems.food11.network import STARTING_WEIGHTS, Food11Network
from gourmet.training.files import save_tensors


@pytest.fixture(scope="module")
def networks() -> dict[str, Any]:
    torch.manual_seed(0)
    return {"digits": DigitsNetwork().eval(), "food11": Food11Network(pretrained=True).eval()}


def load(system: str, path: Path) -> Any:
    return importlib.import_module(f"gourmet.systems.{system}.network").load(path)


@pytest.mark.parametrize("system", ["digits", "food11"])
def test_weights_come_back_as_they_were_saved(system: str, networks: Any, tmp_path: Path) -> None:
    network = networks[system]
    save_tensors(tmp_path / "w.safetensors", network.state_dict(), {**network.about, "epoch": 3})
    again, about = load(system, tmp_path / "w.safetensors")
    assert about["epoch"] == 3
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


@pytest.mark.parametrize(
    ("system", "change", "complaint"),
    [
        ("digits", {"system": "food11"}, "its system is food11, not digits"),
        ("food11", {"system": "digits"}, "its system is digits, not food11"),
        ("food11", {"architecture": "resnet18"}, "its architecture is resnet18, not mobilenet_v1"),
        ("food11", {"labels": ["Bread"]}, r"its labels is \['Bread'\], not \['Bread', 'Dairy"),
    ],
)
def test_weights_of_another_network_are_refused_by_name(
    system: str, change: dict[str, object], complaint: str, networks: Any, tmp_path: Path
) -> None:
    network = networks[system]
    save_tensors(tmp_path / "w.safetensors", network.state_dict(), {**network.about, **change})
    with pytest.raises(GourmetError, match=rf"w\.safetensors .*{complaint}"):
        load(system, tmp_path / "w.safetensors")


@torch.no_grad()
def test_the_scale_of_the_ink_does_not_change_the_answer(networks: Any) -> None:
    network, ink = networks["digits"], torch.rand(3, 1, 28, 28)
    ink[:, :, 0, 0], ink[:, :, 0, 1] = 0.0, 1.0
    expected = network(ink)
    for other in (255 * ink, (ink - 0.1307) / 0.3081):
        torch.testing.assert_close(network(other), expected, atol=1e-4, rtol=1e-4)
    assert network(torch.zeros(2, 1, 28, 28)).isfinite().all(), "of a blank image"


def test_damaged_starting_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "starting_weights.safetensors"
    damaged.write_bytes(STARTING_WEIGHTS.read_bytes()[:-1] + b"x")
    monkeypatch.setattr("gourmet.systems.food11.network.STARTING_WEIGHTS", damaged)
    with pytest.raises(GourmetError, match="is damaged: its sha256 is"):
        Food11Network(pretrained=True)


def test_weights_of_torchvision_that_cannot_be_downloaded_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # the discard port: nobody listens
    with pytest.raises(
        GourmetError, match=r"mobilenet_v2-\w+\.pth cannot be downloaded .* without --pretrained"
    ):
        build("torchvision:mobilenet_v2", 3, pretrained=True)
