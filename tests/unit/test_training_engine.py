"""The engine on a network of a few hundred weights: resuming, refusing, averaging."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from gourmet.errors import GourmetError, UsageError
from gourmet.learning.picture_training import phase
from gourmet.served.files import written_aside
from gourmet.training.files import load_tensors
from gourmet.training.loop import BEST, CHECKPOINT, LAST, fit
from gourmet.training.run import curves
from gourmet.training.task import Phase, Recipe

RECIPE = Recipe(epochs=3, phases=(phase(0.0, 4, 8), phase(0.6, 8, 4)), peak_rate=0.02, seed=5)


class Blobs:
    """Tells noise around one of three pictures from noise around another; dropout and norm included."""

    def __init__(self, width: int = 6) -> None:
        torch.manual_seed(1)
        self.network: nn.Module = nn.Sequential(
            nn.Conv2d(3, width, 3),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(2 * width, 3),
        )
        self.about: dict[str, Any] = {"system": "blobs", "width": width}
        self.classes = torch.arange(48) % 3
        self.centres = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(2))
        self.poison = False

    def order(self, generator: torch.Generator) -> torch.Tensor:
        return torch.randperm(48, generator=generator)

    def loss(self, examples: torch.Tensor, phase: Phase, generator: torch.Generator) -> torch.Tensor:
        images = self.centres[self.classes[examples]][..., : phase.size, : phase.size]
        noise = torch.randn(images.shape, generator=generator)
        logits = self.network(images + noise)
        return nn.functional.cross_entropy(logits, self.classes[examples]) * (
            float("nan") if self.poison else 1
        )

    def module_to_save(self, network: nn.Module) -> nn.Module:
        return network

    @torch.no_grad()
    def measure(self, network: nn.Module) -> dict[str, float]:
        update_bn([self.centres], network)
        return {"score": float((network(self.centres).argmax(1) == torch.arange(3)).float().mean())}


class _StopAt:
    """Sends this process a signal after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self, share: float, words: str = "", /) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("steps", [2, 9, 17], ids=lambda n: f"after {n} steps")
def test_a_run_stopped_by_a_signal_and_resumed_ends_with_the_same_weights(steps: int, tmp_path: Path) -> None:
    whole = fit(Blobs(), RECIPE, tmp_path / "whole")

    with pytest.raises(GourmetError, match="go on with --resume"):
        fit(Blobs(), RECIPE, tmp_path / "halves", tick=_StopAt(steps))
    resumed = fit(Blobs(), RECIPE, tmp_path / "halves", resume=True)

    _same_weights(tmp_path / "whole" / LAST, tmp_path / "halves" / LAST)
    assert [_without_time(a) for a in whole] == [_without_time(b) for b in resumed]


def test_a_run_that_dies_between_two_checkpoints_and_resumed_ends_with_the_same_weights(
    tmp_path: Path,
) -> None:
    def dies(share: float, words: str = "", /) -> None:
        if share > 0.5:
            raise MemoryError

    fit(Blobs(), RECIPE, tmp_path / "whole")
    with pytest.raises(MemoryError):
        fit(Blobs(), RECIPE, tmp_path / "died", checkpoint_every_s=0.0, tick=dies)
    position = torch.load(tmp_path / "died" / CHECKPOINT, weights_only=True)["position"]
    assert position["seen"] > 0, "it should have died in the middle of an epoch"

    assert len(fit(Blobs(), RECIPE, tmp_path / "died", resume=True)) == RECIPE.epochs
    _same_weights(tmp_path / "whole" / LAST, tmp_path / "died" / LAST)


def test_no_checkpoint_and_one_of_another_network_are_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        fit(Blobs(), RECIPE, tmp_path, resume=True)
    fit(Blobs(width=6), RECIPE, tmp_path)
    before = (tmp_path / CHECKPOINT).read_bytes()

    with pytest.raises(UsageError, match=r"checkpoint\.pt is a run with width 6, not 8"):
        fit(Blobs(width=8), RECIPE, tmp_path, resume=True)

    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_a_loss_that_is_not_a_number_ends_the_run_with_advice(tmp_path: Path) -> None:
    trainee = Blobs()
    trainee.poison = True
    with pytest.raises(GourmetError, match="lower the learning rate"):
        fit(trainee, RECIPE, tmp_path)


def test_a_run_leaves_a_log_a_picture_and_its_best_weights(tmp_path: Path) -> None:
    log = fit(Blobs(), RECIPE, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == log
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[-1]["phase"] == "8 px"
    assert (tmp_path / "log.svg").read_text().startswith("<svg")
    assert "8 px" in curves(log[-1:]), "of one epoch too"
    best = load_tensors(tmp_path / BEST)[1]
    assert best["measures"]["score"] == max(line["score"] for line in lines)


def test_the_progress_callback_gets_the_completed_share(tmp_path: Path) -> None:
    ticks: list[tuple[float, str]] = []
    fit(Blobs(), RECIPE, tmp_path, tick=lambda share, words="": ticks.append((share, words)))
    shares = [share for share, _ in ticks]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert all(share < 1.0 for share in shares[:-1])
    assert ticks[-1][1].startswith("epoch 3/3 · 8 px · loss ")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), written_aside(path) as aside:
        aside.with_name("a write that failed").read_text()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def _without_time(line: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if k != "seconds"}


def _same_weights(first_file: Path, second_file: Path) -> None:
    first, second = load_tensors(first_file)[0], load_tensors(second_file)[0]
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
