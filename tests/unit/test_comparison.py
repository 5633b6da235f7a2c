"""The gate's comparisons: a candidate with what is served, and an export with its network."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image
from support import small_captioner
from support.cli import gourmet
from support.no_stack import no_stack
from support.small_translator import saved_translator

from gourmet.errors import GourmetError
from gourmet.evaluation.accuracy import accuracy, balanced_accuracy
from gourmet.evaluation.calibration import Calibration
from gourmet.evaluation.labelled_pictures import LabelledPictures
from gourmet.evaluation.picture_comparison import Candidate, HeldOut, measures
from gourmet.evaluation.picture_scores import LabelledScores, shares
from gourmet.evaluation.same_answers import close_answers, same_answers, verify
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.made_up import squares
from gourmet.repository.deploy import deploy
from gourmet.repository.gate import Comparison, Deployment, Measure, ModelFile, Target, comparison_of
from gourmet.served.manifest import MANIFEST, sha256
from gourmet.systems.captioner.export import eager_answers
from gourmet.training.files import save_tensors

__all__ = ["no_stack"]  # fixtures

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


# An export and its network
Answers = Callable[[np.ndarray], np.ndarray]
LABELS = 4


def numbered(count: int) -> np.ndarray:
    """Photos whose first pixel is their number."""
    rows = np.zeros((count, 2, 2, 3), np.uint8)
    rows[:, 0, 0, 0] = np.arange(count)
    return rows


def answering(best: np.ndarray, more: float = 0.0, wrong_alone: bool = False) -> Answers:
    """A model with 1 for a photo's label, and `more` for all labels of the third photo."""

    def answer(rows: np.ndarray) -> np.ndarray:
        numbers = rows[:, 0, 0, 0]
        scores = np.eye(LABELS)[best[numbers]]
        scores[numbers == 2] += more
        return scores[:, ::-1] if wrong_alone and len(rows) == 1 else scores

    return answer


TRUTH = np.arange(200) % LABELS


@pytest.mark.parametrize(("difference", "passes"), [(0.9e-3, True), (1.1e-3, False), (0.05, False)])
def test_scores_of_an_exact_export_differ_by_less_than_a_thousandth(difference: float, passes: bool) -> None:
    checks = same_answers(answering(TRUTH), answering(TRUTH, difference), numbered(16))
    assert [check.what.rpartition(" ")[2] for check in checks[:-1]] == ["1", "2", "16"]
    assert all(check.passed for check in checks) is passes


def test_one_other_label_at_any_batch_size_fails_an_exact_export() -> None:
    other = TRUTH.copy()
    other[5] = (other[5] + 1) % LABELS
    *_, agreement = same_answers(answering(TRUTH), answering(other), numbered(16), allowed=0.4)
    assert (agreement.measured, agreement.passed) == ("18 of 19", False)
    checks = same_answers(answering(TRUTH), answering(TRUTH, wrong_alone=True), numbered(16))
    assert [check.passed for check in checks] == [False, True, True, False]


@pytest.mark.parametrize(("wrong", "passes"), [(3, True), (4, False)])
def test_a_quantized_export_may_answer_three_of_a_hundred_photos_otherwise(wrong: int, passes: bool) -> None:
    other = TRUTH.copy()
    other[:wrong] = (other[:wrong] + 1) % LABELS
    truth = TRUTH[:100].copy()
    truth[0:wrong:2] = other[0:wrong:2]  # some are right now
    checks = close_answers(answering(TRUTH), answering(other), numbered(100), truth)
    assert next(check for check in checks if "agreement, 100 photos" in check.what).passed is passes


@pytest.mark.parametrize(("wrong", "made_up_agree"), [(30, True), (31, False)])
def test_of_made_up_pictures_fifteen_in_a_hundred_may_differ(wrong: int, made_up_agree: bool) -> None:
    other = TRUTH.copy()
    other[200 - wrong :] = (other[200 - wrong :] + 1) % LABELS
    checks = close_answers(answering(TRUTH), answering(other), numbered(200), TRUTH[:0])
    (made_up,) = (check for check in checks if "made up" in check.what)
    assert made_up.passed is made_up_agree


@pytest.mark.parametrize("gains", [False, True])
@pytest.mark.parametrize(("changed", "passes"), [(2, True), (8, False)])
def test_a_quantized_export_loses_and_gains_a_point_at_most(changed: int, passes: bool, gains: bool) -> None:
    other, truth = TRUTH.copy(), TRUTH.copy()
    mine = np.flatnonzero(TRUTH == 0)[:changed]
    other[mine] = 1
    if gains:
        truth[mine] = 1
    checks = close_answers(answering(TRUTH), answering(other), numbered(200), truth)
    assert next(check for check in checks if check.what == "balanced accuracy lost").passed is passes


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (lambda scores: scores * np.nan, "not finite"),
        (lambda scores: scores + np.inf, "not finite"),
        (lambda scores: scores[:-1], "have an answer of the shape"),
        (lambda scores: scores[0], "have an answer of the shape"),
    ],
)
def test_an_export_that_answers_with_anything_else_does_not_pass(
    rows: Callable[[np.ndarray], np.ndarray], says: str
) -> None:
    right = answering(TRUTH)
    verified = verify(
        lambda path: lambda some: rows(right(some)), lambda model: same_answers(right, model, numbered(16))
    )
    (check,) = verified(None)  # type: ignore[arg-type]
    assert (check.passed, says in check.measured) == (False, True), check


# Translators and captioners
MODELS = Path(__file__).parents[2] / "triton" / "models"


def deployed(*arguments: object) -> Result:
    return gourmet("deploy", *arguments)


def copied(target: Path, *models: str) -> Path:
    for model in models:
        shutil.copytree(MODELS / model, target / model)
    return target


@pytest.mark.promise("models: their mean chrF is compared")
@pytest.mark.slow
def test_a_translator_is_compared_with_the_served_one_on_sentences_held_out(tmp_path: Path) -> None:
    repository = copied(tmp_path / "models", "translator", "translator_stream")
    checkpoint = saved_translator(tmp_path / "checkpoint")
    words = ["translator", "--format", "python", "--checkpoint", checkpoint, "--fp32", "--to", repository]

    refused = deployed(*words)
    assert refused.exit_code == 1, refused.output
    assert "translator is not deployed, version 1 goes on serving" in refused.stderr
    line = next(line for line in refused.stdout.splitlines() if line.startswith("chrF"))
    assert re.fullmatch(r"chrF, mean of the sentences +32 +[4-9]\d\.\d +\d\.\d +\d+\.\d +WORSE", line)
    assert [path.name for path in (repository / "translator").glob("[0-9]*")] == ["1"]

    data = tmp_path / "pairs.tsv"
    rows = [f"{part}\tmade\tI like tea.\tЯ люблю чай.\n" for part in ("dev", "test", "test")]
    data.write_text("".join(rows))
    forced = deployed(*words, "--data", data, "--force")
    assert forced.exit_code == 0, forced.output
    assert "--force: translator is deployed and loses chrF, mean of the sentences 100.0 →" in forced.stdout

    # Its streaming model still has the old network, which it refers to.
    stream = deployed(*words[:2], "stream", *words[3:], "--json")
    assert stream.exit_code == 1, stream.output
    assert "translator_stream is not deployed" in stream.stderr

    again = deployed(*words)
    assert "has the same weights" in again.stdout


@pytest.mark.slow
def test_a_captioner_is_compared_on_captioned_photos_if_there_are_any(tmp_path: Path) -> None:
    repository = copied(tmp_path / "models", *(path.name for path in MODELS.glob("captioner*")))
    served = small_captioner.checkpoint(tmp_path / "served", "grid")
    words = ["captioner", "--fp32", "--to", repository, "--checkpoint"]
    done = deployed(*words, served.folder)
    assert done.exit_code == 0, done.output
    assert "accuracy was not compared: name photos and their captions with --data" in done.stdout

    # People say of these photos what the served network says.
    data, photos = tmp_path / "captions", squares(6, 1, served.network.side)
    (data / "splits").mkdir(parents=True)
    captions = eager_answers(served.network, photos)
    with zipfile.ZipFile(data / "photos.zip", "w") as archive:
        for number, square in enumerate(photos):
            file = io.BytesIO()
            Image.fromarray(square).save(file, "PNG")
            archive.writestr(f"{number}.jpg", file.getvalue())
    captions_of = [served.tokenizer.decode(tokens) or "a ball" for tokens in captions]
    lines = [f"{number}.jpg\t{caption}\n" for number, caption in enumerate(captions_of)]
    (data / "captions.tsv").write_text("".join(lines))
    for part in ("train", "dev", "test"):
        (data / "splits" / f"{part}.txt").write_text("".join(f"{number}.jpg\n" for number in range(6)))

    network = served.network
    with torch.no_grad():
        network.text_decoder.cls.predictions.bias[network.end] = 9.0  # captions of no word or two
    worse = shutil.copytree(served.folder, tmp_path / "worse")
    save_tensors(worse / "model.safetensors", network.state_dict(), {})
    refused = deployed(*words, worse, "--data", data, "--json")
    assert refused.exit_code == 1, refused.output
    assert "captioner_vision is not deployed, version 2 goes on serving" in refused.stderr
    assert re.search(r"CIDEr-D × 100 +6 +\d{3,4}\.\d +\d+\.\d +\d+\.\d +WORSE", refused.stderr)
    forced = deployed(*words, worse, "--data", data, "--format", "vision", "--force", "--json")
    assert forced.exit_code == 0, forced.output
    (row,) = json.loads(forced.stdout)[0]["compared"]["rows"]
    assert (row["examples"], row["verdict"]) == (6, "worse")
