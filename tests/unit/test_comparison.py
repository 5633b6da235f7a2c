"""The gate's comparison: how much a candidate may lose, and that an error of the comparison stops it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gourmet.errors import GourmetError
from gourmet.evaluation.accuracy import accuracy, balanced_accuracy
from gourmet.evaluation.calibration import Calibration
from gourmet.evaluation.labelled_pictures import LabelledPictures
from gourmet.evaluation.picture_comparison import Candidate, HeldOut, measures
from gourmet.evaluation.picture_scores import LabelledScores, shares
from gourmet.evaluation.rehearsal import Rehearsal
from gourmet.learning.learn_more import Lesson
from gourmet.pictures.classifier import PictureClassifier
from gourmet.repository.deploy import deploy
from gourmet.repository.gate import Comparison, Deployment, Measure, ModelFile, Target, comparison_of
from gourmet.served.manifest import MANIFEST, sha256
from gourmet.training.linear_layer import Layer

SYSTEM = PictureClassifier(
    *("soups", "soups", "", "soups"), labels=("stew", "broth"), sample_file=Path(), input_size=8
)
NAN = float("nan")


@pytest.mark.promise("models: It refuses a candidate that is worse by more than 2 points (5 for a class)")
@pytest.mark.parametrize(
    ("what", "examples", "change", "verdict"),
    [
        ("every class alike", 400, 2.1, "better"),
        ("every class alike", 400, -1.9, "as good"),
        ("every class alike", 400, -2.1, "worse"),
        ("every class alike", 40, -4.9, "as good"),  # two of 40
        ("every class alike", 40, -5.1, "worse"),
        ("stew", 400, -4.9, "as good"),
        ("stew", 400, -5.1, "worse"),
        ("calibration", 400, -4.9, "as good"),  # 1/sqrt(400)
        ("calibration", 400, -5.1, "worse"),
        ("calibration", 90_000, -2.1, "worse"),
        ("sure", 400, -50.0, "not compared"),
        ("right of the sure", 400, NAN, "not compared"),
    ],
)
def test_a_measure_may_lose_its_margin_and_no_more(
    what: str, examples: int, change: float, verdict: str
) -> None:
    served, candidate = {what: (0.8, examples)}, {what: (0.8 + change / 100, examples)}
    rows = [measure.verdict for measure in measures("", served, candidate, SYSTEM)]
    assert rows == ([] if verdict == "not compared" else [verdict])


def test_a_measure_that_is_not_a_number_is_worse() -> None:
    assert Measure("score", 10, 50.0, NAN, 2.0).verdict == "worse"


def test_balanced_accuracy_is_the_mean_of_the_classes_whatever_their_sizes() -> None:
    scores, classes = np.eye(2, dtype=np.float32)[[0] * 10], np.array([0] * 9 + [1])
    measured = accuracy(scores, classes, SYSTEM.labels)
    assert (measured.balanced, measured.top1) == (0.5, pytest.approx(0.9))
    assert balanced_accuracy(scores.argmax(axis=1), classes) == 0.5
    assert shares(LabelledScores(scores, classes), Calibration(), SYSTEM)["every class alike"] == (0.5, 10)


def photos(folder: Path, *shades: int) -> None:
    folder.mkdir(parents=True)
    for number, shade in enumerate(shades):
        Image.new("RGB", (8, 8), (shade,) * 3).save(folder / f"{number}.png")


def test_the_test_part_is_compared_on_and_the_validation_part_without_one(tmp_path: Path) -> None:
    data = LabelledPictures(SYSTEM.labels)
    for part, shade in (("validation", 1), ("test", 2)):
        for label in SYSTEM.labels:
            photos(tmp_path / part / label, shade)
        held_out = HeldOut.of(SYSTEM, data, tmp_path)
        assert held_out is not None
        assert set(held_out.images.flat) == {shade}


def test_learn_more_allows_each_class_two_points() -> None:
    rows = np.eye(2, dtype=np.float32)[[0, 1] * 400]
    layer, classes = Layer(np.eye(2, dtype=np.float32), np.zeros(2, np.float32)), rows.argmax(axis=1)
    known = Rehearsal(rows, classes, np.arange(800) % 4 < 2, rows, np.ones(2, np.float32), "")
    lesson = Lesson(SYSTEM, layer, known, [rows[:8]], classes[:8], Calibration())
    learned = lesson.learn(lambda share, words="": None)
    margins = {m.what: m.margin for m in learned.kept.measures if m.what in SYSTEM.labels}
    assert margins == {"stew": 2.0, "broth": 2.0}


def version(model: Path) -> Path:
    folder = model / "1"
    folder.mkdir(parents=True)
    (model / "config.pbtxt").write_text(f'name: "{model.name}"\n')
    (folder / "model.onnx").write_text("served")
    about = {"file": "model.onnx", "sha256": sha256(folder / "model.onnx")}
    (folder / MANIFEST).write_text(json.dumps(about))
    return folder


def good() -> Iterator[Measure]:
    yield Measure("every class alike", 400, 80.0, 80.0, 2.0)


def worse() -> Iterator[Measure]:
    yield from good()
    yield Measure("stew", 400, 80.0, 70.0, 5.0)


def only_worse() -> Iterator[Measure]:
    yield Measure("chrF", 500, 50.0, 47.0, 2.0)


def broken() -> Iterator[Measure]:
    yield from good()
    raise ZeroDivisionError("of our own")


def unopened() -> None:
    raise RuntimeError("no kernel for it")


@pytest.mark.promise("models: a comparison that fails in another way stops the deployment")
@pytest.mark.promise("models: `--force` says what is lost")
@pytest.mark.parametrize(
    ("opened", "measured", "says"),
    [
        (lambda: None, good, ""),
        (unopened, worse, "accuracy was not compared: version 1 cannot be opened here (no kernel for it)"),
        (lambda: None, worse, "not deployed, version 1 goes on serving. The candidate loses more than"),
        (lambda: None, only_worse, "not deployed, version 1 goes on serving. The candidate loses more than"),
        (
            lambda: None,
            broken,
            "since comparing it with what is served failed (ZeroDivisionError: of our own)",
        ),
    ],
)
def test_one_lost_measure_or_an_error_of_the_comparison_stops_a_deployment(
    opened: Callable[[], None], measured: Callable[[], Iterator[Measure]], says: str, tmp_path: Path
) -> None:
    version(tmp_path / "soups")

    def compare(served: Path, _tick: object) -> Comparison:
        return comparison_of(served, "of others", opened, lambda _: measured(), "no pictures")

    def build(path: Path) -> dict[str, object]:
        path.write_text("new")
        return {}

    deployment = Deployment({"onnx": Target("soups", [ModelFile("model.onnx", build)], compare=compare)})
    shown: list[Comparison] = []
    if "not deployed" in says or "failed" in says:
        with pytest.raises(GourmetError) as refused:
            deploy(deployment, "onnx", tmp_path, show=shown.append)
        assert says in str(refused.value)
        assert not (tmp_path / "soups" / "2").exists()
        deploy(deployment, "onnx", tmp_path, force=True)
    else:
        deploy(deployment, "onnx", tmp_path, show=shown.append)
        assert shown[0].note == says
    assert (tmp_path / "soups" / "2" / "model.onnx").read_text() == "new"


def test_a_version_of_the_same_weights_is_not_compared(tmp_path: Path) -> None:
    folder = version(tmp_path / "soups")
    about = json.loads((folder / MANIFEST).read_text()) | {"training": {"weights_sha256": "same"}}
    (folder / MANIFEST).write_text(json.dumps(about))
    same, others = (
        comparison_of(folder, weights, lambda: None, lambda _: good(), "") for weights in ("same", "others")
    )
    assert (len(same.measures), same.note) == (0, "version 1 has the same weights")
    assert (len(others.measures), others.note) == (1, "")


def test_a_candidate_that_cannot_be_asked_is_an_error_and_a_served_file_that_cannot_be_opened_is_a_note(
    tmp_path: Path,
) -> None:
    for label in SYSTEM.labels:
        photos(tmp_path / "data" / "test" / label, 1)
    data, served = LabelledPictures(SYSTEM.labels), version(tmp_path / "soups")

    def answers(pixels: np.ndarray) -> np.ndarray:
        return np.zeros((len(pixels), 2), np.float32)

    candidate = Candidate(SYSTEM, data, tmp_path / "data", answers, Calibration(), "of others")
    note = candidate.comparing("model.onnx", lambda _: unopened())(served, lambda *_: None).note  # type: ignore[func-returns-value]
    assert "cannot be opened here (no kernel for it)" in note
    compared = candidate.comparing("model.onnx", lambda _: answers)(served, lambda *_: None)
    assert not compared.lost
    cannot = dataclasses.replace(candidate, answers=lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cannot.comparing("model.onnx", lambda _: answers)(served, lambda *_: None)
