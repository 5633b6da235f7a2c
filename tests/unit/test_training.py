"""The training loop, the weights that a run begins with, its MLflow record, and a translator that learns."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from gourmet.errors import GourmetError, UsageError
from gourmet.learning.picture_training import phase
from gourmet.systems.translator.contract import SYSTEM
from gourmet.systems.translator.network import load
from gourmet.systems.translator.train import TRAINING, TranslatorTraining
from gourmet.training.files import load_tensors, put_tensors, save_tensors
from gourmet.training.loop import BEST, CHECKPOINT, LAST, fit
from gourmet.training.mlflow_log import logged
from gourmet.training.run import curves, data_of, read_run, write_run
from gourmet.training.task import Phase, Recipe, TrainOptions

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
        loss = nn.functional.cross_entropy(self.network(images + noise), self.classes[examples])
        return loss * (float("nan") if self.poison else 1)

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


def test_a_run_that_dies_between_checkpoints_and_resumed_has_the_same_weights(tmp_path: Path) -> None:
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


def _without_time(line: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if k != "seconds"}


def _same_weights(first_file: Path, second_file: Path) -> None:
    first, second = load_tensors(first_file)[0], load_tensors(second_file)[0]
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


# Weights to begin with
class Summing(nn.Module):
    """A layer whose outputs are summed in fixed groups, as dishes are into classes."""

    groups: torch.Tensor

    def __init__(self, groups: list[list[float]]) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        self.register_buffer("groups", torch.tensor(groups))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layer(rows) @ self.groups  # type: ignore[no-any-return]


DISHES = [[1.0, 0.0], [0.0, 1.0]]


def begin_with(network: nn.Module, path: Path) -> None:
    put_tensors(network, load_tensors(path)[0], path)


@pytest.fixture
def earlier() -> Summing:
    torch.manual_seed(4)
    network = Summing(DISHES)
    network(torch.randn(8, 3))  # moves the running statistics, which may differ
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


# MLflow
def test_a_missing_mlflow_is_reported_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    refused = pytest.raises(
        GourmetError, match=r"not installed here: .*requirements/mlflow\.txt.*without --ml"
    )
    with refused, logged(tmp_path, "system", {}, store=tmp_path / "mlruns"):
        pass
    assert not (tmp_path / "mlruns").exists()


def test_mlflow_has_a_run_and_its_resumption_as_one_with_its_curves_and_files(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="optional: pip install -r requirements/mlflow.txt")
    folder, store = tmp_path / "run", tmp_path / "mlruns"
    folder.mkdir()
    for name in ("best.safetensors", "checkpoint.pt"):
        (folder / name).write_bytes(b"weights")
    stopped = contextlib.suppress(KeyboardInterrupt)
    with stopped, logged(folder, "system", {"width": 256}, store=store) as (run, tell):
        tell({"epoch": 1, "loss": 2.0, "phase": "warm"})
        raise KeyboardInterrupt
    client = mlflow.MlflowClient(tracking_uri=store.as_uri())
    assert client.get_run(run).info.status == "KILLED"
    with logged(folder, "system", {"width": 256}, run, store) as (again, tell):
        tell({"epoch": 2, "loss": 1.0})
    assert again == run
    result = client.get_run(run)
    assert result.info.status == "FINISHED"
    assert result.data.params == {"width": "256"}
    history = [(metric.step, metric.value) for metric in client.get_metric_history(run, "loss")]
    assert history == [(1, 2.0), (2, 1.0)]
    assert [artifact.path for artifact in client.list_artifacts(run)] == ["best.safetensors"]
    assert result.data.tags["mlflow.source.git.commit"]


# The translator
SMALL = (
    *("width=16", "heads=2", "encoder_layers=1", "decoder_layers=1", "feed_forward=16", "vocabulary=150"),
    *("batch=8", "dropout=0", "software=3", "synthetic=5"),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sentences")
    pairs = [f"everyday\t{english}\t{russian}\n" for russian, english in SYSTEM.meanings.items()]
    parts = [("train", pairs[6:]), ("dev", pairs[:3]), ("test", pairs[3:6])]
    lines = [f"{part}\t{pair}" for part, those in parts for pair in those]
    (folder / "pairs.tsv").write_text("".join(lines))
    programs = [f"tar\tFile {n} is missing.\tНет файла {n}.\n" for n in range(9)]
    (folder / "software.tsv").write_text("".join(programs))
    written = [f"back\tI see {n} cats.\tВижу {n} кошек.\n" for n in range(7)]
    (folder / "synthetic.tsv").write_text("".join(written))
    return folder


@pytest.mark.slow
def test_the_loss_falls_and_what_is_kept_can_be_loaded(data: Path, tmp_path: Path) -> None:
    training = TRAINING.configured(SMALL)
    assert isinstance(training, TranslatorTraining)
    task = training.prepare(data, TrainOptions(), lambda *_: None)
    recipe = training.recipe(TrainOptions(epochs=2, rate=0.02))
    for name, content in task.files.items():
        (tmp_path / name).write_bytes(content)
    losses = [row["loss"] for row in fit(task, recipe, tmp_path)]
    assert losses[1] < losses[0]
    assert load(tmp_path / BEST).about["synthetic_pairs"] == 7
