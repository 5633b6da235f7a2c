"""Training data of the translator in both directions, and a falling loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from gourmet.systems.translator.contract import SYSTEM
from gourmet.systems.translator.network import load
from gourmet.systems.translator.train import TRAINING, TranslatorTask, TranslatorTraining
from gourmet.training.loop import BEST, fit
from gourmet.training.task import TrainOptions

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


def prepared(data: Path, *changes: str) -> TranslatorTask:
    training = TRAINING.configured([*SMALL, *changes])
    assert isinstance(training, TranslatorTraining)
    return training.prepare(data, TrainOptions(), lambda *_: None)


@pytest.mark.slow
def test_the_loss_falls_and_what_is_kept_can_be_loaded(data: Path, tmp_path: Path) -> None:
    task = prepared(data)
    training = TRAINING.configured(SMALL)
    recipe = training.recipe(TrainOptions(epochs=2, rate=0.02))
    for name, content in task.files.items():
        (tmp_path / name).write_bytes(content)
    losses = [row["loss"] for row in fit(task, recipe, tmp_path)]
    assert losses[1] < losses[0]
    assert load(tmp_path / BEST).about["synthetic_pairs"] == 7
