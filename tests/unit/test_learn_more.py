"""People's own pictures on top of what is served: learned, shown by class, and through the same gate."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gourmet.cli import main
from gourmet.deploying.deploy import deploy
from gourmet.pictures.drawn import views
from gourmet.repository import DEFAULT
from gourmet.systems.food11.export import EXPORT
from gourmet.tasks.classification.calibration import read_evaluation

DRAWINGS = Path(__file__).parents[1] / "drawings"
TAUGHT = {"Rice": "bread", "Meat": "soup"}  # by label, the drawing that it is said to be


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawings with labels that nobody would guess, a folder for each."""
    made = tmp_path_factory.mktemp("corrections")
    for label, drawing in TAUGHT.items():
        (made / label).mkdir()
        for number, view in enumerate(
            views((DRAWINGS / f"{drawing}.jpg").read_bytes(), 30, size=(400, 300), seed=1)
        ):
            (made / label / f"{number}.jpg").write_bytes(view)
    return made


def learn(folder: Path, out: Path, system: str = "food11") -> Result:
    return CliRunner().invoke(main, ["learn-more", system, str(folder), "--out", str(out)])


@pytest.fixture(scope="module")
def learned(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run's folder, and what the verb said."""
    out = tmp_path_factory.mktemp("runs") / "food11-more"
    done = learn(folder, out)
    assert done.exit_code == 0, done.output
    return out, done.output


def test_what_it_was_taught_it_knows_and_the_change_is_shown_by_class(learned: tuple[Path, str]) -> None:
    out, said = learned
    changes = json.loads((out / "evaluation.json").read_text())["accuracy"]["learned more"]
    assert [change["label"] for change in changes] == ["Meat", "Rice"], "in the order of the classes"
    assert sum(change["before"] for change in changes) < sum(change["now"] for change in changes)
    assert all(change["now"] >= 0.8 * change["pictures"] > 0 for change in changes)
    for label in TAUGHT:
        assert label in said
    assert f"--weights {out / 'best.safetensors'}" in said


def test_it_goes_through_the_same_gate_with_the_calibration_that_is_served(
    learned: tuple[Path, str], folder: Path, tmp_path: Path
) -> None:
    weights = learned[0] / "best.safetensors"
    served = json.loads((DEFAULT / "food_classifier" / "1" / "manifest.json").read_text())["calibration"]
    assert vars(read_evaluation(weights)[0]) == served
    shutil.copytree(DEFAULT / "food_classifier_onnx", tmp_path / "food_classifier_onnx")
    final, checks = deploy(EXPORT.open(weights, folder, lambda share, words="": None), "onnx", tmp_path)
    assert final.name == "2"
    assert all(check.passed for check in checks)


def test_what_cannot_be_learned_is_refused_in_a_sentence(
    learned: tuple[Path, str], folder: Path, tmp_path: Path
) -> None:
    few = tmp_path / "data"
    (few / "Egg").mkdir(parents=True)
    (few / "Egg" / "1.jpg").write_bytes((DRAWINGS / "eggs.jpg").read_bytes())
    for data, out, system, said in (
        (few, tmp_path / "out", "food11", "at least 8 are needed|no photos"),
        (folder, learned[0], "food11", "holds a run already"),
        (folder, tmp_path, "digits", "digits cannot learn more"),
    ):
        done = learn(data, out, system=system)
        assert done.exit_code != 0
        assert re.search(said, done.output)
