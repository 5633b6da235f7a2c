"""Measures against numbers that can be worked out by hand."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gourmet.evaluation.accuracy import (
    Operating,
    accuracy,
    calibration_error,
    choose_threshold,
    coverage_curve,
    fit_temperature,
    operating_at,
    reliability,
)
from gourmet.evaluation.calibration import Calibration, write_report
from gourmet.evaluation.picture_evaluation import evaluate_parts
from gourmet.evaluation.picture_scores import LabelledScores, calibrate
from gourmet.evaluation.system_parts import EvaluateOptions, Reference
from gourmet.evaluation.text_evaluation import TextEvaluation
from gourmet.pictures.certainty import softmax

LABELS = ("a", "b", "c", "d")
CLASSES = np.array([0, 0, 0, 1, 1, 2])
SCORES = np.eye(4)[[0, 0, 1, 1, 2, 0]] + np.array([0, 0.03, 0.02, 0.01])


def test_balanced_accuracy_counts_every_class_alike() -> None:
    result = accuracy(SCORES, CLASSES, LABELS)
    assert result.top1 == pytest.approx(3 / 6)
    assert result.top3 == pytest.approx(5 / 6), "the third photo's class comes last"
    assert result.balanced == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert [entry.label for entry in result.classes] == ["a", "b", "c"]
    assert result.classes[0].precision == pytest.approx(2 / 3)
    assert result.confusion[0].tolist() == [2, 1, 0, 0]


def sampled(temperature: float, photos: int = 5_000) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose softmax at `temperature` is the truth about their classes."""
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 3, (photos, 4))
    probabilities = softmax(logits, temperature)
    classes = (generator.random((photos, 1)) > probabilities.cumsum(axis=1)).sum(axis=1)
    return logits, np.minimum(classes, 3)


@pytest.mark.parametrize("true", [0.5, 2.5])
def test_the_fitted_temperature_is_the_true_one_and_puts_calibration_right(true: float) -> None:
    logits, classes = sampled(true)
    fitted = fit_temperature((logits, classes))
    assert fitted == pytest.approx(true, rel=0.06)
    assert calibration_error(reliability(softmax(logits, fitted), classes)) < 0.02
    if true == 2.5:
        assert calibration_error(reliability(softmax(logits), classes)) > 0.15, "overconfident"


def test_a_higher_threshold_answers_less() -> None:
    logits, classes = sampled(1.0)
    curve = coverage_curve(softmax(logits), classes)
    coverage = [point.coverage for point in curve]
    assert coverage[0] == 1.0
    assert coverage == sorted(coverage, reverse=True)
    chosen = choose_threshold(curve, accuracy_goal=0.9)
    assert chosen.accuracy >= 0.9
    below = [point for point in curve if point.threshold < chosen.threshold]
    assert all(point.accuracy < 0.9 for point in below)
    never = coverage_curve(softmax(np.zeros((10, 4))), np.arange(10) % 4)
    assert choose_threshold(never, accuracy_goal=0.9).accuracy == max(point.accuracy for point in never)


def answered(temperature: float) -> LabelledScores:
    logits, classes = sampled(temperature, photos=400)
    names = [f"{i}.jpg" for i in range(400)]
    return LabelledScores(logits, classes, names, lambda rows: iter([b"picture"] * len(rows)))


def test_temperature_and_threshold_come_from_the_validation_part_and_apply_to_all() -> None:
    parts = {"validation": answered(2.0), "test": answered(0.5)}
    calibration, report = evaluate_parts("blobs", parts, LABELS, {"validation": 0.75})
    assert calibration.temperature == pytest.approx(2.0, rel=0.25)
    test, validation = report.measures["test"], report.measures["validation"]
    assert test["photos"] == 400
    assert validation["calibration_error_after"] < validation["calibration_error_before"]
    assert 0 < test["answered"] <= 1
    assert "chosen so that 75.0% of the validation pictures that reach the threshold" in report.text()


def test_the_page_holds_everything_itself(tmp_path: Path) -> None:
    _, report = evaluate_parts("blobs <1>", {"validation": answered(1.0)}, LABELS, {"validation": 0.75})
    weights = tmp_path / "last.safetensors"
    weights.touch()
    page = write_report(report, weights, {"accuracy": report.measures})
    assert page == tmp_path / "last.report.html"
    assert "blobs &lt;1&gt;" in page.read_text()
    assert "data:image;base64," in page.read_text()
    assert "http" not in page.read_text().replace("http://www.w3.org/2000/svg", "")
    assert page.read_text().count("<svg") == 3
    assert json.loads((tmp_path / "evaluation.json").read_text())["accuracy"] == report.measures


def test_a_second_part_is_split_into_a_calibration_half_and_a_measured_half() -> None:
    parts = {"validation": answered(1.0), "sharp": answered(4.0)}
    calibration, report = evaluate_parts("blobs", parts, LABELS, {"validation": 0.75, "sharp": 0.9})
    photos = [part["photos"] for part in report.measures.values()]
    assert list(report.measures) == ["validation", "sharp", "sharp, the half not chosen on"]
    assert photos[:2] == [400, 400]
    assert 150 < photos[2] < 250
    assert 1.0 < calibration.temperature < 4.0, "which suits both"
    assert report.measures["validation"]["right_of_answered"] >= 0.75
    alone, _ = evaluate_parts("blobs", parts, LABELS, {"validation": 0.75})
    assert calibration.threshold > alone.threshold
    curve = json.loads(calibration.coverage)
    assert calibration.threshold in [threshold for threshold, _, _ in curve]
    assert [answered for _, answered, _ in curve] == sorted((row[1] for row in curve), reverse=True)


def test_pictures_of_another_subject_are_counted_by_their_verdict() -> None:
    foods = replace(answered(2.0), relevance=np.linspace(0.4, 1.0, 400, dtype=np.float32))
    logits = np.array([[9.0, 0, 0, 0], [9.0, 0, 0, 0], [0.0, 0, 0, 0]])
    other = LabelledScores(logits, np.full(3, 4), relevance=np.array([0.1, 0.9, 0.9], np.float32))
    parts = {"validation": foods, "other": other}
    calibration, report = evaluate_parts("blobs", parts, LABELS, {"validation": 0.75})
    assert calibration.subject_threshold == pytest.approx(0.406, abs=0.01), "of a hundred foods, 99 pass"
    declined = {"photos": 3, "said to be something else": 0.3333, "not sure": 0.3333}
    assert report.measures["other"] == declined
    assert "other: 3 pictures\n" in report.text()
    assert "33.3% said to be something else, 33.3% not sure" in report.text()


def test_accuracy_is_reported_by_source_where_file_names_have_one() -> None:
    part = answered(1.0)
    names = [f"{'web' if row % 4 else 'farm'}_{row}.jpg" for row in range(400)]
    parts = {"validation": replace(part, names=names)}
    _, report = evaluate_parts("blobs", parts, LABELS, {"validation": 0.75}, learned_from=["farm"])
    by_source = report.measures["validation"]["by_source"]
    assert {name: figures["photos"] for name, figures in by_source.items()} == {"web": 300, "farm": 100}
    assert re.search(r"^farm +100 +0\.\d+ +0\.\d+ +learned from$", report.text(), re.M)
    _, numbered = evaluate_parts("blobs", {"validation": part}, LABELS, {"validation": 0.75})
    assert "by_source" not in numbered.measures["validation"]


def test_a_calibration_that_training_chose_is_kept() -> None:
    chosen = Calibration(1.5, 0.9, 0.4)
    assert evaluate_parts("blobs", {"test": answered(2.0)}, LABELS, {}, chosen)[0] == chosen


class Sentences:
    """Fifty references in each part; fulfils `system_parts.TextData`."""

    def references(self, data: Path, part: str, limit: int | None = None) -> list[Reference]:
        texts = [f"{part} {'long ' * (number % 2 * 8)}{number}" for number in range(50)]
        return [Reference("web", text, f"answer {text}") for text in texts][:limit]


def test_texts_are_scored_by_part_length_and_source_and_shown_to_read() -> None:
    evaluation = TextEvaluation(
        lambda weights, architecture: pytest.fail("the network is not loaded here"),
        Sentences(),
        lambda weights, texts, device, on_progress: [f"answer {text}" for text in texts],
    )
    options = EvaluateOptions(Path("runs/pairs/last.safetensors"), Path("data"))
    report, kept = evaluation.evaluate(options, lambda name: nullcontext(lambda share, words="": None))
    assert kept == {"scores": report.measures}
    test = report.measures["test"]
    assert test["all"] == {"texts": 50, "bleu": pytest.approx(100), "chrf": pytest.approx(100)}
    by_length = {name: group["texts"] for name, group in test["by_length"].items()}
    assert by_length == {"up to 4 words": 25, "up to 12 words": 25}
    assert test["by_source"]["web"]["texts"] == 50
    assert re.search(r"^up to 12 words +25 +100.0 +100.0$", report.text(), re.M)
    assert "<h1>pairs: last.safetensors" in report.page()
    assert "<td>validation 0<td>answer validation 0<td>answer validation 0" in report.page()


def test_a_picture_that_may_show_something_else_has_no_probability_and_one_in_a_hundred_is_denied() -> None:
    logits = np.tile(np.array([[3.0, 0.0]], np.float32), (100, 1))
    shown = LabelledScores(logits, np.zeros(100, int), relevance=np.arange(1, 101, dtype=np.float32) / 100)
    calibration = calibrate({"": shown}, {"": 0.9}, temperature=1.0)
    assert 0.0099 <= calibration.subject_threshold <= 0.02, "one of a hundred is below"
    half = Calibration(1.0, 0.5, 0.5)
    assert shown.relevant(half).sum() == 51, "from 0.50 on"
    assert (shown.probabilities(half).max(axis=1) > 0).sum() == 13, "from 0.88 on: surely shown"


def test_a_threshold_is_the_lowest_that_reaches_the_goal_exactly() -> None:
    points = [Operating(0.1, 1.0, 0.7), Operating(0.2, 0.9, 0.8), Operating(0.3, 0.5, 0.9)]
    assert choose_threshold(points, 0.8).threshold == 0.2
    assert choose_threshold(points, 0.95).threshold == 0.3, "the most accurate one"
    rows = np.array([[0.5, 0.5], [0.75, 0.25]], np.float32)
    assert operating_at(0.75, rows, np.array([0, 1])) == Operating(0.75, 0.5, 0.0)


def test_precision_is_of_the_answers_and_top_3_of_three() -> None:
    measured = accuracy(np.eye(2)[[0, 0, 1]], np.array([0, 1, 1]), LABELS[:2])
    assert [(row.recall, row.precision) for row in measured.classes] == [(1.0, 0.5), (0.5, 1.0)]
    third = np.array([[4.0, 3.0, 2.0, 1.0]])
    assert [accuracy(third, np.array([n]), LABELS).top3 for n in (2, 3)] == [1.0, 0.0]


def test_the_temperature_counts_each_class_alike() -> None:
    random = np.random.default_rng(3)
    classes = (random.random(400) < 0.2).astype(int)
    logits = np.zeros((400, 2), np.float32)
    logits[:, 1] = random.normal(0, 1.5, 400) + np.where(classes == 1, 1.0, -4.0)
    rare = classes == 1
    evenly = np.concatenate([logits, *[logits[rare]] * 20]), np.concatenate([classes, *[classes[rare]] * 20])
    assert fit_temperature((logits, classes)) == fit_temperature(evenly)
