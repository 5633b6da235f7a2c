"""People's own pictures on top of what is served: learned, nothing forgotten, and through the same gate."""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from gourmet.cli import main
from gourmet.errors import GourmetError
from gourmet.evaluation.labelled_pictures import ALL, decode
from gourmet.evaluation.rehearsal import read_rehearsal, rehearsal_path
from gourmet.export.picture_export import open_onnx
from gourmet.learning.learn_more import FILE, decode_those_left, read_learned
from gourmet.pictures.made_up import views
from gourmet.repository.models import DEFAULT_REPOSITORY
from gourmet.served import manifest
from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.food11.data import DATA
from gourmet.training.files import load_tensors, save_tensors
from gourmet.training.linear_layer import Layer, OnnxLayer

DRAWINGS = Path(__file__).parents[1] / "drawings"
# By label, the drawing that it is said to be: what nobody would guess.
TAUGHT = {"Rice": "bread", "Meat": "soup"}
EACH = 30
SERVED = DEFAULT_REPOSITORY / "food_classifier" / "1" / "model.onnx"


def draw(folder: Path, drawing: str, count: int) -> None:
    folder.mkdir(parents=True)
    drawn = (DRAWINGS / f"{drawing}.jpg").read_bytes()
    for number, view in enumerate(views(drawn, count, size=(400, 300), seed=1)):
        (folder / f"{number}.jpg").write_bytes(view)


def learn(folder: Path, out: Path, system: str = "food11", *more: str) -> Result:
    return CliRunner().invoke(main, ["learn-more", system, str(folder), "--out", str(out), *more])


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The file that the verb wrote about a few photos, and its output."""
    base = tmp_path_factory.mktemp("runs")
    for label, count in (("Rice", 8), ("Meat", 5)):
        draw(base / "few" / label, TAUGHT[label], count)
    draw(base / "few" / "other", "eggs", 8)
    done = learn(base / "few", base / "food11-more")
    assert done.exit_code == 0, done.output
    return base / "food11-more" / FILE, done.output


def recalls(logits: np.ndarray, classes: np.ndarray) -> dict[str, float]:
    """By label, the share of its photos that are answered rightly."""
    right = logits.argmax(axis=1) == classes
    right_by_label = {label: right[classes == number] for number, label in enumerate(SYSTEM.labels)}
    return {label: float(some.mean()) for label, some in right_by_label.items() if some.size}


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
    words = ["deploy", "food11", "--weights", str(learned[0]), "--to", str(tmp_path)]
    done = CliRunner().invoke(main, [*words, "--force"])  # the labels are what nobody would guess
    assert done.exit_code == 0, done.output
    layer, served = read_learned(learned[0]).layer, OnnxLayer.read(SERVED)
    for file in (
        "food_classifier/2/model.onnx",
        "food_classifier_onnx/2/model.onnx",
        "food_classifier/2/model_int8.onnx",
        "food_classifier_int8/2/model.onnx",
    ):
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
    was, about = (
        manifest.read_manifest(DEFAULT_REPOSITORY / "food_classifier" / "1"),
        manifest.read_manifest(version),
    )
    assert about["calibration"] == was["calibration"]
    assert about["training"]["learned_more"] == read_learned(learned[0]).own
    assert "Rice" in done.output
    assert rehearsal_path(version / "model.onnx").read_bytes() == rehearsal_path(SERVED).read_bytes(), (
        "so that the next run rehearses as well"
    )
    again = CliRunner().invoke(
        main, ["deploy", "food11", "--weights", str(learned[0]), "--to", str(tmp_path)]
    )
    assert again.exit_code == 2
    assert "learned on top of another network" in again.output
    back = CliRunner().invoke(main, ["rollback", "food11", "--to", str(tmp_path)])
    assert back.exit_code == 0, back.output
    assert {path.parent.name for path in tmp_path.glob("*/[0-9]*") if path.name != "1"} == set()


@pytest.mark.slow
def test_a_layer_that_forgot_a_class_is_refused_with_the_class(
    learned: tuple[Path, str], tmp_path: Path
) -> None:
    result = read_learned(learned[0])
    bias = result.layer.bias.copy()
    bias[SYSTEM.labels.index("Soup")] -= 4.0
    kept = [
        replace(measure, candidate=measure.served - 30) if measure.what == "Soup" else measure
        for measure in result.kept.measures
    ]
    forgot = replace(result.kept, measures=kept)
    replace(result, layer=Layer(result.layer.weight, bias), kept=forgot).write(tmp_path / "spoiled.npz")
    shutil.copytree(DEFAULT_REPOSITORY / "food_classifier", tmp_path / "food_classifier")
    done = CliRunner().invoke(
        main, ["deploy", "food11", "--weights", str(tmp_path / "spoiled.npz"), "--to", str(tmp_path)]
    )
    assert done.exit_code == 1
    assert re.search(r"Soup \d+\.\d → \d+\.\d", done.output)
    assert [path.name for path in (tmp_path / "food_classifier").glob("[0-9]*")] == ["1"]


@pytest.mark.nightly
def test_real_photos_of_three_classes_rise_and_no_other_class_falls_by_more_than_two_points(
    tmp_path: Path, food_photos: Path
) -> None:
    taught = (0, 1, 2)
    small = DATA.listing(food_photos, "test", EACH * len(SYSTEM.labels))
    shown = [photo for photo in small if photo.class_id in taught]
    for index, (photo, content) in enumerate(zip(shown, DATA.read(shown), strict=True)):
        to = tmp_path / "photos" / f"{photo.class_id:02d}"
        to.mkdir(parents=True, exist_ok=True)
        (to / f"{index}.jpg").write_bytes(content)
    done = learn(tmp_path / "photos", tmp_path / "out")
    assert done.exit_code == 0, done.output
    result = read_learned(tmp_path / "out" / FILE)
    assert sum(row["now"] for row in result.own) > sum(row["before"] for row in result.own)
    sharp = DATA.listing(food_photos / "sharp_train.zip", "test")
    others = [photo for photo in sharp if photo.class_id not in taught]
    classes = np.array([photo.class_id for photo in others])
    (pixels,) = decode((others,), SYSTEM.input_size)
    activations = OnnxLayer.read(SERVED).activations(SYSTEM.normalise(pixels.images))
    before, after = (recalls(layer(activations), classes) for layer in (result.initial_layer, result.layer))
    assert all(after[label] >= before[label] - 0.0201 for label in before), (before, after)


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
    for data, out, system, reason in (
        (few, tmp_path / "out", "food11", "at least 8 are needed|no photos"),
        (folder, learned[0].parent, "food11", "holds a run already"),
        (folder, tmp_path, "digits", "digits cannot learn more"),
    ):
        done = learn(data, out, system)
        assert done.exit_code != 0
        assert re.search(reason, done.output)
    done = learn(folder, tmp_path / "other", "food11", "--to", str(bare.parent))
    assert done.exit_code == 2
    assert "gourmet train food11 --rehearse" in done.output


@pytest.mark.slow
def test_the_set_of_given_weights_is_made_without_training(learned: tuple[Path, str], tmp_path: Path) -> None:
    for part in ("train", "validation"):
        for label in TAUGHT:
            shutil.copytree(learned[0].parents[1] / "few" / label, tmp_path / "photos" / part / label)
    shutil.copy(SERVED, tmp_path / "model.onnx")
    options = ["--rehearse", str(tmp_path / "model.onnx"), "--data", str(tmp_path / "photos")]
    done = CliRunner().invoke(main, ["train", "food11", *options])
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{tmp_path / 'model.rehearsal.safetensors'}\n"
    served = OnnxLayer.read(SERVED)
    known = read_rehearsal(tmp_path / "model.onnx", served.before, served.layer)
    assert known is not None
    assert int((known.classes < len(SYSTEM.labels)).sum()) == 2 * (8 + 5)
    refused = CliRunner().invoke(main, ["train", "digits", *options])
    assert refused.exit_code == 2
    assert "--rehearse takes a system that learns from photos" in refused.output
