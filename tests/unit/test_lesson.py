"""What a lesson learns of photos that are points: who is right before and after, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gourmet.errors import GourmetError, UsageError
from gourmet.evaluation.calibration import Calibration
from gourmet.evaluation.rehearsal import Rehearsal, copy_rehearsal, read_rehearsal
from gourmet.evaluation.system_parts import BadData
from gourmet.learning import learn_more
from gourmet.learning.from_photos import _MIN_THRESHOLD, FOLDS, MIN_PHOTOS, Photos, Rows, _calibrated, folds
from gourmet.learning.learn_more import Learned, Lesson
from gourmet.pictures.certainty import softmax
from gourmet.pictures.classifier import PictureClassifier
from gourmet.repository.gate import Comparison, Measure
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.systems.food11.contract import SYSTEM as FOOD
from gourmet.systems.food11.data import DATA
from gourmet.training.linear_layer import Layer, OnnxLayer, evenly_counted, one_hot, solve

SOUPS = PictureClassifier(
    *("soups", "soups", "", "soups"), labels=("stew", "broth"), sample_file=Path(), subject="soup"
)
STEW, BROTH, NONE = 0, 1, 2
SERVED = DEFAULT_REPOSITORY / "food_classifier" / "1"


def points(direction: int, count: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 0.2, (count, 40))
    return (noise + 4 * np.eye(40)[direction]).astype(np.float32)


def between(count: int, stew: float, seed: int = 0) -> np.ndarray:
    """Points between stew and broth, a little nearer to broth."""
    return stew * points(STEW, count, seed) + (1 - stew) * points(BROTH, count, seed)


def lesson(photos: np.ndarray, classes: list[int], stew: float = 0.45) -> Lesson:
    """Photos for a network that knows stew and broth by a direction each, a tenth of broth barely."""
    broth = np.concatenate([points(BROTH, 180, 1), between(20, stew, 1)])
    rows = np.concatenate([points(STEW, 200), broth, points(NONE, 200, 2)])
    layer = Layer(3 * np.eye(2, 40, dtype=np.float32), np.full(2, -6, np.float32))
    known = Rehearsal(
        rows, np.repeat([STEW, BROTH, NONE], 200), np.arange(600) % 2 == 0, layer(rows), np.ones(40), ""
    )
    return Lesson(SOUPS, layer, known, [photos] * 4, np.array(classes), Calibration(1.0, 0.5, 0.5))


def learned(photos: np.ndarray, classes: list[int]) -> Learned:
    return lesson(photos, classes).learn(lambda share, words="": None)


@pytest.mark.promise("README: shows class by class what is right before and after")
def test_photos_of_a_new_kind_are_right_afterwards_and_the_others_stay_so() -> None:
    no_soup = points(STEW, 10) + points(8, 10)
    photos = np.concatenate([points(7, 10), no_soup, points(BROTH, 3, seed=9)])
    result = learned(photos, [BROTH] * 10 + [NONE] * 10 + [BROTH] * 3)
    broth, none = result.own
    assert broth == {"label": "broth", "photos": 13, "measured": 13, "before": 7, "now": 13, "more": 0}
    assert none == {"label": "no soup", "photos": 10, "measured": 10, "before": 0, "now": 10, "more": 0}
    assert not result.kept.lost
    examples = {measure.what: measure.examples for measure in result.kept.measures}
    assert (examples["every class alike"], examples["stew"], examples["broth"]) == (200, 100, 100)
    assert result.sentence.startswith("Better: 23 of your 23 photos are right")


def test_a_photo_is_measured_by_a_layer_that_has_not_learned_it() -> None:
    each_its_own = np.concatenate([points(direction, 1, direction) for direction in range(5, 25)])
    right = lesson(each_its_own, [STEW] * 20).initial_layer(each_its_own).argmax(axis=1)
    result = learned(each_its_own, [BROTH if label == STEW else STEW for label in right])
    assert [row["before"] for row in result.own] == [0, 0]
    assert sum(row["now"] for row in result.own) <= 12, "nothing of one photo can be learned from another"


@pytest.mark.promise("README: A layer that answers worse on held-out photos is refused")
def test_a_layer_that_answers_worse_is_not_used(tmp_path: Path) -> None:
    result = learned(between(60, 0.45, 3), [STEW] * 60)
    assert [measure.what for measure in result.kept.lost] == ["every class alike", "broth"]
    assert result.sentence == "Worse for every class alike 100.0 → 97.5, broth 100.0 → 95.0: not used"
    result.write(tmp_path / "learned.npz")
    with pytest.raises(GourmetError, match=r"forgot too much to be deployed: every class alike 100\.0"):
        learn_more.deployment(FOOD, tmp_path / "learned.npz", DEFAULT_REPOSITORY)


def test_the_step_is_shortened_until_no_class_loses_more_than_two_points() -> None:
    taught = lesson(between(60, 0.42, 3), [STEW] * 60, stew=0.42)
    result = taught.learn(lambda share, words="": None)
    assert not result.kept.lost
    assert {measure.margin for measure in result.kept.measures if measure.what in SOUPS.labels} == {2.0}
    steps = [
        np.linalg.norm(layer.weight - taught.initial_layer.weight)
        for layer in (result.layer, taught._solve(np.ones(60, bool)))
    ]
    assert 0.2 < steps[0] / steps[1] < 0.8


def test_labels_that_the_network_finds_impossible_are_doubted() -> None:
    photos = np.concatenate([points(kind, 2) for kind in (STEW, BROTH, NONE)])
    taught = lesson(photos, [STEW, BROTH, BROTH, NONE, NONE, STEW])
    assert taught.doubted().tolist() == [False, True, False, True, False, True]
    weak = replace(taught, initial_layer=Layer(np.zeros((2, 40), np.float32), np.zeros(2, np.float32)))
    assert not weak.doubted().any(), "it finds all labels possible"
    leaning = replace(weak, initial_layer=replace(weak.initial_layer, bias=np.array([3, 0], np.float32)))
    assert not leaning.doubted().any(), "broth has one in twenty-five"


@pytest.mark.promise("README: so is one whose labels contradict the model too often")
@pytest.mark.parametrize(
    ("photos", "doubted", "must_confirm"), [(16, 4, True), (17, 4, False), (8, 3, False), (100, 24, False)]
)
def test_a_quarter_of_doubted_labels_needs_a_confirmation(
    photos: int, doubted: int, must_confirm: bool
) -> None:
    kept = Comparison("", "", [Measure("every class alike", 200, 90.0, 90.0, 2.0)])
    own = [{"label": "stew", "photos": photos, "measured": photos, "before": 0, "now": 1}]
    layer = Layer(np.zeros((2, 4), np.float32), np.zeros(2, np.float32))
    result = Learned(layer, layer, kept, own, ["photo.jpg"] * doubted)
    assert result.must_confirm is must_confirm
    assert (result.labels.verdict == "worse") is must_confirm, "then the gate refuses it without --force"
    assert result.sentence.startswith("Not used yet") is must_confirm


@pytest.mark.parametrize(("count", "says"), [(7, "at least 8 are needed"), (8, "not a picture")])
def test_eight_photos_are_enough_to_learn(count: int, says: str, tmp_path: Path) -> None:
    (tmp_path / "Rice").mkdir()
    for number in range(count):
        (tmp_path / "Rice" / f"{number}.jpg").write_text("none")
    with pytest.raises(BadData, match=says):
        learn_more.learn(FOOD, DATA, SERVED, tmp_path, lambda share, words="": None)


def with_bias(change: float) -> Learned:
    """The served layer with a little more of the first class."""
    served = OnnxLayer.read(SERVED / "model.onnx").layer
    bias = served.bias + np.float32(change) * np.eye(len(served.bias), dtype=np.float32)[0]
    kept = Comparison("", "", [Measure("every class alike", 200, 90.0, 90.0, 2.0)])
    return Learned(Layer(served.weight, bias), served, kept, [])


def test_a_layer_becomes_a_version_only_on_the_network_that_it_was_learned_on(tmp_path: Path) -> None:
    result = with_bias(0.5)
    result.write(tmp_path / "learned.npz")
    deployment = learn_more.deployment(FOOD, tmp_path / "learned.npz", DEFAULT_REPOSITORY)
    assert set(deployment.targets) == {"food_classifier", "food_classifier_onnx", "food_classifier_int8"}
    file = deployment.targets["food_classifier_onnx"].files[0]
    file.write(tmp_path / "model.onnx")
    assert np.array_equal(OnnxLayer.read(tmp_path / "model.onnx").layer.bias, result.layer.bias)
    assert all(check.passed for check in file.check(tmp_path / "model.onnx"))
    assert not all(check.passed for check in file.check(SERVED / "model.onnx")), "which lacks the layer"

    others = Layer(result.initial_layer.weight + 1, result.initial_layer.bias)
    replace(result, initial_layer=others).write(tmp_path / "others.npz")
    with pytest.raises(UsageError, match="learned on top of another network"):
        learn_more.deployment(FOOD, tmp_path / "others.npz", DEFAULT_REPOSITORY)


def test_a_solved_layer_gives_the_shares_of_its_rows() -> None:
    """Of two kinds of pictures, whose labels have shares of 1 : 2 : 1 and 3 : 0.5 : 0.5; the last is none."""
    rows = np.array([[0.0]] * 3 + [[2.0]] * 3, np.float32)
    targets = one_hot(np.array([0, 1, 2] * 2), 3)
    counts = np.array([1, 2, 1, 3, 0.5, 0.5])
    start = Layer(np.zeros((2, 1), np.float32), np.zeros(2, np.float32))
    layer = solve(start, rows, targets, counts, pull=1e-9)
    for row, shares in ((0, [0.25, 0.5, 0.25]), (3, [0.75, 0.125, 0.125])):
        logits = np.pad(layer(rows[row : row + 1]), ((0, 0), (0, 1)))
        np.testing.assert_allclose(softmax(logits)[0], shares, atol=0.01)
    held = solve(start, rows, targets, counts, pull=1e6)
    np.testing.assert_allclose(held.weight, 0, atol=1e-3)
    again = solve(start, rows, targets, counts, pull=1e-9, start=layer)
    np.testing.assert_allclose(again(rows), layer(rows), atol=0.02)
    halfway = start.towards(layer, 0.5)
    np.testing.assert_allclose(halfway(rows), layer(rows) / 2, atol=1e-6)


def test_classes_count_alike_whatever_their_numbers() -> None:
    assert evenly_counted(np.array([0, 0, 0, 0, 1]), 3).tolist() == [0.25] * 4 + [1.0]


def test_a_set_of_another_network_is_not_rehearsed(tmp_path: Path) -> None:
    served = OnnxLayer.read(SERVED / "model.onnx")
    assert read_rehearsal(SERVED / "model.onnx", "another digest", served.layer) is None
    for name in ("weights", "exported"):
        (tmp_path / f"{name}.rehearsal.safetensors").write_text(name)
    copy_rehearsal(tmp_path / "weights.onnx", tmp_path / "exported.onnx")
    assert (tmp_path / "exported.rehearsal.safetensors").read_text() == "weights"
    copy_rehearsal(tmp_path / "none.onnx", tmp_path / "exported.onnx")
    assert not (tmp_path / "exported.rehearsal.safetensors").exists(), "that of other weights"


def test_each_photo_of_a_new_classifier_is_measured_by_a_layer_without_it() -> None:
    """Of noise with labels by chance a layer knows the rows that it learned, and no others."""
    random = np.random.default_rng(5)
    classes = random.integers(0, 3, 60)
    rows = Rows([random.normal(0, 3, (60, 200)).astype(np.float32)], classes, 2)
    crossed, _ = rows.crossed()
    shown = classes < NONE
    assert (crossed[shown].argmax(axis=1) == classes[shown]).mean() < 0.8
    learned_all = rows.solve(np.ones(60, bool))(rows.views[0])
    assert (learned_all[shown].argmax(axis=1) == classes[shown]).all()
    spread = folds(np.repeat([STEW, BROTH], [10, 5]))
    assert np.bincount(spread[:10]).tolist() == [2] * FOLDS
    assert np.bincount(spread[10:]).tolist() == [1] * FOLDS


def test_answers_that_are_all_right_still_have_a_threshold() -> None:
    classes = np.arange(40) % 2
    photos = Photos(("stew", "broth"), [""] * 40, np.zeros((40, 1, 1, 3), np.uint8), classes)
    calibration = _calibrated(np.eye(2, dtype=np.float32)[classes] * 12 - 4, photos)
    assert calibration.threshold >= _MIN_THRESHOLD > 0


@pytest.mark.parametrize(("count", "says"), [(-1, "a class needs at least"), (0, "not a picture")])
def test_a_class_needs_a_number_of_photos(count: int, says: str, tmp_path: Path) -> None:
    for label in ("stew", "broth"):
        (tmp_path / label).mkdir()
        for number in range(MIN_PHOTOS + count):
            (tmp_path / label / f"{number}.jpg").write_text("none")
    with pytest.raises(BadData, match=says):
        Photos.read(tmp_path, (), lambda share, words="": None)
