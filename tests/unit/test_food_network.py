"""The network that is trained on dishes and served in classes, and what it is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gourmet.errors import GourmetError
from gourmet.pictures.classifier import relevance
from gourmet.systems.food11 import contract
from gourmet.systems.food11.network import INNER_SIZE, STARTING_WEIGHTS, Food11Network, load
from gourmet.systems.food11.train import TRAINING, Food11Task
from gourmet.tasks.classification import augment
from gourmet.tasks.classification.labelled_pictures import LabelledPhoto, Pixels
from gourmet.tasks.classification.torchvision_network import build
from gourmet.training.files import save_tensors

DISHES = [f"{c:02d}/{name}" for c in range(11) for name in ("a", "b", "c")[: 1 + c % 3]]
DISH_CLASSES = [int(dish[:2]) for dish in DISHES]


@pytest.fixture(scope="module")
def network() -> Food11Network:
    torch.manual_seed(0)
    return Food11Network(DISHES, DISH_CLASSES).eval()


@torch.no_grad()
def test_a_class_is_as_likely_as_its_dishes_together(network: Food11Network) -> None:
    logits = 30 * torch.randn(5, len(DISHES) + 1)
    by_dish = logits[:, :-1].double().softmax(1)
    expected = torch.zeros(5, 11, dtype=torch.float64).index_add_(1, torch.tensor(DISH_CLASSES), by_dish)
    assert torch.allclose(network.to_classes(logits).double().softmax(1), expected, atol=1e-5)
    assert network.to_classes(1e4 * torch.eye(1, len(DISHES) + 1)).isfinite().all(), "however sure"
    assert network(torch.zeros(3, 3, 224, 224)).shape == (3, 11)


def test_food_is_as_likely_as_all_dishes_together_and_the_level_of_the_logits_says_so(
    network: Food11Network,
) -> None:
    logits = 3 * torch.randn(5, len(DISHES) + 1)
    expected = 1 - logits.double().softmax(1)[:, -1]
    np.testing.assert_allclose(relevance(network.to_classes(logits).numpy()), expected, atol=1e-5)


def test_starting_weights_are_those_that_notice_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Food11Network(DISHES, DISH_CLASSES, pretrained=True)
    assert begun.features[0].weight.abs().sum() > 0  # type: ignore[operator, union-attr]
    damaged = tmp_path / "starting_weights.safetensors"
    damaged.write_bytes(STARTING_WEIGHTS.read_bytes()[:-1] + b"x")
    monkeypatch.setattr("gourmet.systems.food11.network.STARTING_WEIGHTS", damaged)
    with pytest.raises(GourmetError, match="is damaged: its sha256 is"):
        Food11Network(DISHES, DISH_CLASSES, pretrained=True)


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
    assert again.dishes == tuple(DISHES)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"system": "digits"}, "its system is digits, not food11"),
        ({"architecture": "resnet18"}, "its architecture is resnet18, not mobilenet_v1"),
        ({"labels": ["Bread"]}, r"its labels is \['Bread'\], not \['Bread', 'Dairy"),
        (
            {"dishes": DISHES[:-1], "dish_classes": DISH_CLASSES[:-1]},
            r"\d+ of its tensors differ, such as [\w.]+ of \[\d+",
        ),
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


def test_every_class_is_shown_equally_often() -> None:
    counts = [3 + 4 * c for c in range(11)]
    photos = tuple(LabelledPhoto(Path("x"), f"{c}/{i}", c, "") for c in range(11) for i in range(counts[c]))
    classes = np.array([photo.class_id for photo in photos])
    pixels = Pixels(photos, np.zeros((len(photos), 8, 8, 3), np.uint8), classes)
    task = Food11Task(pixels, pixels)
    order = task.order(torch.Generator().manual_seed(0))
    shown = np.bincount(classes[order.numpy()])
    assert set(shown) == {-(-len(photos) // 11)}
    assert np.bincount(order.numpy()[classes[order.numpy()] == 10]).max() == 1, "none twice before all once"


def test_a_run_ends_at_the_size_that_the_network_looks_at() -> None:
    plan = TRAINING.recipe(epochs=None, rate=None, seed=0, device="cpu", pretrained=False)
    assert plan.phases[-1].size == max(phase.size for phase in plan.phases) == INNER_SIZE


def test_weights_of_torchvision_that_cannot_be_downloaded_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # the discard port: nobody listens
    with pytest.raises(
        GourmetError, match=r"mobilenet_v2-\w+\.pth cannot be downloaded .* without --pretrained"
    ):
        build("torchvision:mobilenet_v2", 3, pretrained=True)
