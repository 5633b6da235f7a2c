"""The frozen network with its linear layer, and what networks are shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gourmet.errors import GourmetError
from gourmet.systems.food11 import contract
from gourmet.systems.food11.network import STARTING_WEIGHTS, Food11Network, dishes, load
from gourmet.tasks.classification import augment
from gourmet.tasks.classification.formats import open_onnx, write_onnx
from gourmet.tasks.classification.last_layer import LastLayer
from gourmet.tasks.classification.torchvision_network import build
from gourmet.training.files import save_tensors


@pytest.fixture(scope="module")
def network() -> Food11Network:
    torch.manual_seed(0)
    return Food11Network(pretrained=True).eval()


@torch.no_grad()
def test_the_last_layer_sees_each_dish_each_class_and_the_features(network: Food11Network) -> None:
    images = torch.randn(3, 3, 224, 224)
    assert network(images).shape == (3, 11)
    seen = torch.from_numpy(LastLayer(network).activations(images))
    assert seen.shape == (3, network.last.in_features)
    by_dish, by_class = seen[:, : len(dishes())] ** 2, seen[:, len(dishes()) : len(dishes()) + 12] ** 2
    for rows in (by_dish, by_class):
        assert torch.allclose(rows.sum(dim=1), torch.ones(3), atol=1e-4)
    pancake = next(row for row, (_, dish, _) in enumerate(dishes()) if dish == "Pancake")
    assert (by_class[:, 0] >= by_dish[:, pancake] - 1e-6).all(), "a pancake is bread here"


@torch.no_grad()
def test_onnx_answers_as_the_network_does(network: Food11Network, tmp_path: Path) -> None:
    images = torch.randn(2, 3, 224, 224)
    write_onnx(network, images, tmp_path / "model.onnx", "input", "output")
    answers = open_onnx(tmp_path / "model.onnx", "input", "output")(images.numpy())
    np.testing.assert_allclose(answers, network(images).numpy(), atol=1e-4)


def test_starting_weights_are_those_that_notice_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "starting_weights.safetensors"
    damaged.write_bytes(STARTING_WEIGHTS.read_bytes()[:-1] + b"x")
    monkeypatch.setattr("gourmet.systems.food11.network.STARTING_WEIGHTS", damaged)
    with pytest.raises(GourmetError, match="is damaged: its sha256 is"):
        Food11Network(pretrained=True)


@pytest.mark.slow
def test_a_torchvision_that_fits_this_torch_defines_its_operators_itself(tmp_path: Path) -> None:
    """Which of the two kinds is installed here is chance; defining an operator twice ends a process."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import torch\n"
        "library = torch.library.Library('torchvision', 'DEF')\n"
        "library.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
        "from torchvision import models\n"
    )
    (package / "models.py").write_text(
        "def list_models(module):\n    return ['mobilenet_v2']\n"
        "def get_model(name, **shape):\n    return shape\n"
    )
    ask = (
        "from gourmet.tasks.classification.torchvision_network import build\n"
        "print(build('torchvision:mobilenet_v2', 3)['num_classes'])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", ask],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (ran.stdout, ran.returncode) == ("3\n", 0), ran.stderr


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


def test_training_pictures_are_what_the_network_takes() -> None:
    photos = torch.randint(0, 256, (4, 64, 64, 3), dtype=torch.uint8)
    shown, same, other = (
        augment.varied(photos, 96, torch.Generator().manual_seed(seed), contract.SYSTEM) for seed in (0, 0, 1)
    )
    assert torch.equal(shown, same)
    assert not torch.equal(shown, other)
    assert shown.shape == (4, 3, 96, 96)
    assert shown.isfinite().all()
    low, high = (
        -np.array(contract.SYSTEM.mean) / contract.SYSTEM.std,
        (1 - np.array(contract.SYSTEM.mean)) / contract.SYSTEM.std,
    )
    assert shown.amin() >= low.min() - 1e-5
    assert shown.amax() <= high.max() + 1e-5


def test_photos_are_measured_nearly_as_the_contract_serves_them() -> None:
    photo = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3), dtype=np.uint8)
    mine = augment.served(torch.from_numpy(photo), contract.SYSTEM)
    assert mine.shape == (1, 3, 224, 224)
    assert abs(mine.mean().item() - contract.SYSTEM.normalise(photo).mean()) < 0.02


def test_weights_of_torchvision_that_cannot_be_downloaded_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # the discard port: nobody listens
    with pytest.raises(
        GourmetError, match=r"mobilenet_v2-\w+\.pth cannot be downloaded .* without --pretrained"
    ):
        build("torchvision:mobilenet_v2", 3, pretrained=True)
