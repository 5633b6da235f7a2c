"""A layer learned from people's own photos: what it learns, what is refused, and how it is deployed."""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from support.cli import gourmet, said

from gourmet.errors import GourmetError, UsageError
from gourmet.evaluation.calibration import Calibration
from gourmet.evaluation.labelled_pictures import ALL
from gourmet.evaluation.rehearsal import Rehearsal, copy_rehearsal, read_rehearsal, rehearsal_path
from gourmet.evaluation.system_parts import BadData
from gourmet.export.picture_export import open_onnx
from gourmet.learning import learn_more
from gourmet.learning.from_photos import _MIN_THRESHOLD, FOLDS, MIN_PHOTOS, Photos, Rows, _calibrated, folds
from gourmet.learning.learn_more import FILE, Learned, Lesson, decode_those_left, read_learned
from gourmet.pictures.certainty import softmax
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.made_up import views
from gourmet.repository.gate import Comparison, Measure
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.served import manifest
from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.food11.contract import SYSTEM as FOOD
from gourmet.systems.food11.data import DATA
from gourmet.training.files import load_tensors, save_tensors
from gourmet.training.linear_layer import Layer, OnnxLayer, evenly_counted, one_hot, solve

DRAWINGS = Path(__file__).parents[1] / "drawings"
# By label, the drawing that it is said to be: what nobody would guess.
TAUGHT = {"Rice": "bread", "Meat": "soup"}
SERVED = DEFAULT_REPOSITORY / "food_classifier" / "1" / "model.onnx"


def draw(folder: Path, drawing: str, count: int) -> None:
    folder.mkdir(parents=True)
    drawn = (DRAWINGS / f"{drawing}.jpg").read_bytes()
    for number, view in enumerate(views(drawn, count, size=(400, 300), seed=1)):
        (folder / f"{number}.jpg").write_bytes(view)


def learn(folder: Path, out: Path, system: str = "food11", *more: object) -> Result:
    return gourmet("learn-more", system, folder, "--out", out, *more)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The file that the verb wrote about a few photos, and its output."""
    base = tmp_path_factory.mktemp("runs")
    for label, count in (("Rice", 8), ("Meat", 5)):
        draw(base / "few" / label, TAUGHT[label], count)
    draw(base / "few" / "other", "eggs", 8)
    output = said("learn-more", "food11", base / "few", "--out", base / "food11-more")
    return base / "food11-more" / FILE, output


@pytest.mark.slow
def test_learned_pictures_rise_and_no_class_falls_by_more_than_two_points(learned: tuple[Path, str]) -> None:
    file, output = learned
    result = read_learned(file)
    assert [row["label"] for row in result.own] == ["Meat", "Rice", "no food"], "in the order of the classes"
    assert [row["measured"] for row in result.own] == [5, 8, 8], "each by a layer that had not learned it"
    assert all(row["now"] > row["before"] for row in result.own)
    kept = {measure.what: measure for measure in result.kept.measures}
    assert set(SYSTEM.labels) <= set(kept), "every class is compared"
    assert all(measure.candidate >= measure.served - 2.01 for measure in result.kept.measures)
    assert kept["no food: declined or not sure"].examples >= 200
    assert re.search(r"Meat .*too few to tell: add 3", output)
    assert output.count("too few to tell") == 1
    assert f"--weights {file}" in output


def test_the_set_holds_hundreds_of_each_class_and_of_no_food_in_a_few_megabytes() -> None:
    served = OnnxLayer.read(SERVED)
    known = read_rehearsal(SERVED, served.before, served.layer)
    assert known is not None
    counts = np.bincount(known.classes[~known.held], minlength=len(SYSTEM.labels) + 1)
    assert counts.min() >= 200
    assert rehearsal_path(SERVED).stat().st_size < 15_000_000
    again = served.layer(known.activations)
    assert (again.argmax(axis=1) == known.before.argmax(axis=1)).mean() > 0.999


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tensors: tensors | {"held": tensors["held"][:-1]},
        lambda tensors: tensors | {"activations": tensors["activations"][:, :-1]},
        lambda tensors: tensors | {"classes": tensors["classes"] + 1},
    ],
    ids=["a row less", "a narrower layer", "unknown classes"],
)
def test_a_set_whose_rows_do_not_fit_is_refused(spoil: Any, tmp_path: Path) -> None:
    served = OnnxLayer.read(SERVED)
    tensors, about = load_tensors(rehearsal_path(SERVED))
    weights = tmp_path / "model.onnx"
    save_tensors(rehearsal_path(weights), spoil(tensors), about)
    with pytest.raises(GourmetError, match="is not a rehearsal set: make it again"):
        read_rehearsal(weights, served.before, served.layer)


@pytest.mark.slow
def test_each_served_file_of_the_network_gets_the_layer_and_nothing_else(
    learned: tuple[Path, str], tmp_path: Path
) -> None:
    for name in ("food_classifier", "food_classifier_onnx", "food_classifier_int8"):
        shutil.copytree(DEFAULT_REPOSITORY / name, tmp_path / name)
    words = ["deploy", "food11", "--weights", learned[0], "--to", tmp_path]
    output = said(*words, "--force")  # the labels are what nobody would guess
    layer, served = read_learned(learned[0]).layer, OnnxLayer.read(SERVED)
    files = ["food_classifier/2/model.onnx", "food_classifier/2/model_int8.onnx"]
    for file in (*files, "food_classifier_onnx/2/model.onnx", "food_classifier_int8/2/model.onnx"):
        new = OnnxLayer.read(tmp_path / file)
        assert np.array_equal(new.layer.weight, layer.weight), file
        before = OnnxLayer.read(tmp_path / file.replace("/2/", "/1/"))
        assert new.with_layer(before.layer) == before.content, "all other bytes are the same"
    photos = np.stack([SYSTEM.pixels(photo) for photo in SYSTEM.examples(4, seed=3)])
    rows = SYSTEM.normalise(photos)
    script = open_onnx(tmp_path / "food_classifier/2/model.onnx", "input", "output")(rows)
    np.testing.assert_allclose(script, layer(served.activations(rows)), atol=1e-3)
    version = tmp_path / "food_classifier" / "2"
    manifest.check_files(None, {}, version)
    was = manifest.read_manifest(DEFAULT_REPOSITORY / "food_classifier" / "1")
    about = manifest.read_manifest(version)
    assert about["calibration"] == was["calibration"]
    assert about["training"]["learned_more"] == read_learned(learned[0]).own
    assert "Rice" in output
    rehearsed = rehearsal_path(version / "model.onnx").read_bytes()
    assert rehearsed == rehearsal_path(SERVED).read_bytes(), "so that the next run rehearses as well"
    assert "learned on top of another network" in said(*words, status=2)
    said("rollback", "food11", "--to", tmp_path)
    assert {path.parent.name for path in tmp_path.glob("*/[0-9]*") if path.name != "1"} == set()


@pytest.mark.slow
@pytest.mark.parametrize(("honest", "wrong", "confirm"), [(30, 0, False), (10, 20, True), (0, 30, True)])
def test_wrong_labels_of_real_photos_need_a_confirmation_and_honest_ones_do_not(
    honest: int, wrong: int, confirm: bool, tmp_path: Path, food_photos: Path
) -> None:
    dice = random.Random(4)
    photos = dice.sample(DATA.listing(food_photos / "sharp_train.zip", ALL), honest + wrong)
    for index, (photo, content) in enumerate(zip(photos, DATA.read(photos), strict=True)):
        others = [number for number in range(len(SYSTEM.labels)) if number != photo.class_id]
        label = photo.class_id if index < honest else dice.choice(others)
        to = tmp_path / "photos" / f"{label:02d}"
        to.mkdir(parents=True, exist_ok=True)
        (to / f"{index}.webp").write_bytes(content)
    done = learn(tmp_path / "photos", tmp_path / "out")
    refused = "would not be deployed" in done.output  # since other photos would be answered worse
    assert (refused or read_learned(tmp_path / "out" / FILE).must_confirm) is confirm, done.output


def test_a_model_without_a_version_ends_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "Rice").mkdir()
    done = learn(tmp_path, tmp_path / "out", "food11", "--to", str(tmp_path / "models"))
    assert (done.exit_code, "food_classifier has no version" in done.output) == (1, True), done.output


def test_a_photo_that_vanished_while_it_was_learned_is_left_out(tmp_path: Path) -> None:
    draw(tmp_path / "Rice", "bread", 3)
    photos = DATA.listing(tmp_path, ALL)

    def tick(share: float) -> None:
        if 0 < share < 0.5:  # the first is read
            (tmp_path / photos[1].name).rename(tmp_path / "elsewhere.jpg")

    decoded = decode_those_left(photos, 8, tick)
    assert decoded.photos == (photos[0], photos[2])


@pytest.mark.slow
def test_corrections_that_cannot_be_learned_are_refused(learned: tuple[Path, str], tmp_path: Path) -> None:
    folder = learned[0].parents[1] / "few"
    few = tmp_path / "data"
    (few / "Egg").mkdir(parents=True)
    (few / "Egg" / "1.jpg").write_bytes((DRAWINGS / "eggs.jpg").read_bytes())
    bare = tmp_path / "models" / "food_classifier"
    shutil.copytree(DEFAULT_REPOSITORY / "food_classifier", bare)
    rehearsal_path(bare / "1" / "model.onnx").unlink()
    for done, reason in (
        (learn(few, tmp_path / "out"), "at least 8 are needed|no photos"),
        (learn(folder, learned[0].parent), "holds a run already"),
        (learn(folder, tmp_path, "digits"), "digits cannot learn more"),
        (learn(folder, tmp_path / "other", "food11", "--to", bare.parent), "gourmet train food11 --rehearse"),
    ):
        assert done.exit_code != 0
        assert re.search(reason, done.output)


@pytest.mark.slow
def test_the_set_of_given_weights_is_made_without_training(learned: tuple[Path, str], tmp_path: Path) -> None:
    for part in ("train", "validation"):
        for label in TAUGHT:
            shutil.copytree(learned[0].parents[1] / "few" / label, tmp_path / "photos" / part / label)
    shutil.copy(SERVED, tmp_path / "model.onnx")
    options = ["--rehearse", tmp_path / "model.onnx", "--data", tmp_path / "photos"]
    done = gourmet("train", "food11", *options)
    assert done.stdout == f"{tmp_path / 'model.rehearsal.safetensors'}\n", done.output
    served = OnnxLayer.read(SERVED)
    known = read_rehearsal(tmp_path / "model.onnx", served.before, served.layer)
    assert known is not None
    assert int((known.classes < len(SYSTEM.labels)).sum()) == 2 * (8 + 5)
    refusal = said("train", "digits", *options, status=2)
    assert "--rehearse takes a system that learns from photos" in refusal


# Lessons about photos that are points
SOUPS = PictureClassifier(
    *("soups", "soups", "", "soups"), labels=("stew", "broth"), sample_file=Path(), subject="soup"
)
STEW, BROTH, NONE = 0, 1, 2


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
    known_classes = np.repeat([STEW, BROTH, NONE], 200)
    known = Rehearsal(rows, known_classes, np.arange(600) % 2 == 0, layer(rows), np.ones(40), "")
    return Lesson(SOUPS, layer, known, [photos] * 4, np.array(classes), Calibration(1.0, 0.5, 0.5))


def learned_from(photos: np.ndarray, classes: list[int]) -> Learned:
    return lesson(photos, classes).learn(lambda share, words="": None)


@pytest.mark.promise("README: shows class by class what is right before and after")
def test_photos_of_a_new_kind_are_right_afterwards_and_the_others_stay_so() -> None:
    no_soup = points(STEW, 10) + points(8, 10)
    photos = np.concatenate([points(7, 10), no_soup, points(BROTH, 3, seed=9)])
    result = learned_from(photos, [BROTH] * 10 + [NONE] * 10 + [BROTH] * 3)
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
    result = learned_from(each_its_own, [BROTH if label == STEW else STEW for label in right])
    assert [row["before"] for row in result.own] == [0, 0]
    assert sum(row["now"] for row in result.own) <= 12, "nothing of one photo can be learned from another"


@pytest.mark.promise("README: A layer that answers worse on held-out photos is refused")
def test_a_layer_that_answers_worse_is_not_used(tmp_path: Path) -> None:
    result = learned_from(between(60, 0.45, 3), [STEW] * 60)
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
    layers = (result.layer, taught._solve(np.ones(60, bool)))
    short, whole = (np.linalg.norm(layer.weight - taught.initial_layer.weight) for layer in layers)
    assert 0.2 < short / whole < 0.8


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
        learn_more.learn(FOOD, DATA, SERVED.parent, tmp_path, lambda share, words="": None)


def with_bias(change: float) -> Learned:
    """The served layer with a little more of the first class."""
    served = OnnxLayer.read(SERVED).layer
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
    assert not all(check.passed for check in file.check(SERVED)), "which lacks the layer"

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
    served = OnnxLayer.read(SERVED)
    assert read_rehearsal(SERVED, "another digest", served.layer) is None
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
