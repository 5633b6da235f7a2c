"""The verbs as a user meets them, one after another on scikit-learn's digits."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import onnx
import pytest
import torch
from support.cli import gourmet, said
from support.no_stack import no_stack

from gourmet.cli import VERBS
from gourmet.evaluation import picture_comparison
from gourmet.evaluation.calibration import Calibration, write_measured
from gourmet.systems.digits import data
from gourmet.systems.digits.network import DigitsNetwork
from gourmet.training.files import save_tensors

__all__ = ["no_stack"]  # fixtures


def test_translate_refuses_a_file_that_does_not_exist(tmp_path: Path) -> None:
    for name in (tmp_path / "texts", "russian.txt"):
        refused = gourmet("translate", name, "--url", "127.0.0.1:9")
        assert refused.exit_code == 2, refused.output
        assert f"{name} does not exist" in refused.stderr


def test_config_starts_hundreds_of_instances_only_with_force() -> None:
    words = ("config", "food_classifier", "--instances", "500", "--url", "127.0.0.1:9")
    refused = gourmet(*words)
    assert (refused.exit_code, "Add --force" in refused.stderr) == (2, True), refused.output
    assert "127.0.0.1:9" in gourmet(*words, "--force").stderr  # it goes on, to a Triton that is not there


def test_list_hides_models_for_study_unless_all() -> None:
    short, whole = gourmet("list").output, gourmet("list", "--all").output
    assert "translator_encoder" not in short
    assert "--all lists them" in short
    assert "translator_encoder" in whole
    assert "food_classifier_int8" in short


def test_every_verb_of_the_help_is_a_command() -> None:
    for verb in VERBS:
        shown = gourmet(verb, "--help")
        assert shown.output.startswith(f"Usage: main {verb} ["), (verb, shown.output)


MODELS = Path(__file__).parents[2] / "triton" / "models"


# Train, evaluate, deploy
@pytest.mark.slow
def test_digits_are_trained_evaluated_and_deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = ["train", "digits", "--epochs", "1", "--limit", "200", "--threads", "1"]
    run = tmp_path / "runs" / "digits"
    said(*train)
    assert len((run / "log.jsonl").read_text().splitlines()) == 1
    assert "holds a run already" in said(*train, status=1)
    assert "after 1 epoch" in said(*train, "--resume")

    numbers = json.loads(gourmet("evaluate", "digits", "--json").stdout)
    assert numbers["test"]["photos"] == 359
    assert (run / "last.report.html").stat().st_size > 10_000

    repository = tmp_path / "models"
    (repository / "digits").mkdir(parents=True)
    shutil.copy(MODELS / "digits" / "config.pbtxt", repository / "digits")
    said("deploy", "digits", "--format", "onnx", "--to", repository)
    manifest = json.loads((repository / "digits" / "1" / "manifest.json").read_text())
    assert manifest["accuracy"]["test"] == numbers["test"]
    model = onnx.load(repository / "digits" / "1" / "model.onnx")
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    assert json.loads(metadata["labels"]) == list("0123456789")
    assert json.loads(metadata["preprocessing"])["size"] == 28
    assert (metadata["system"], metadata["license"]) == ("digits", "Apache-2.0")


@pytest.mark.slow
def test_a_worse_candidate_needs_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for module, number in ((data, "_NO_DIGITS_EACH"), (picture_comparison, "_MADE_UP")):
        monkeypatch.setattr(module, number, 20)  # pictures without a digit take most of the time
    torch.manual_seed(0)
    network = DigitsNetwork()
    weights, models = tmp_path / "last.safetensors", tmp_path / "models"
    save_tensors(weights, network.state_dict(), {**network.about, "epoch": 1})
    write_measured(weights, calibration=vars(Calibration(1.0, 0.5)), accuracy={})
    shutil.copytree(MODELS / "digits", models / "digits")
    deploy = ["deploy", "digits", "--format", "onnx", "--weights", weights, "--to", models]
    deploy += ["--data", data.bundled()[0]]

    refused = gourmet(*deploy)
    assert refused.exit_code == 1, refused.output
    assert "digits is not deployed, version 1 goes on serving" in refused.stderr
    table = refused.stdout.splitlines()
    head = "digits: held out examples version 1 candidate may lose"
    assert table[0].split() == head.split()
    alike = next(line for line in table if line.startswith("every class alike"))
    assert re.fullmatch(r"every class alike, photos +359 +9\d\.\d +[12]?\d\.\d +2\.0 +WORSE", alike)
    assert [path.name for path in (models / "digits").glob("[0-9]*")] == ["1"]

    forced = said(*deploy, "--force")
    assert "--force: digits is deployed and loses every class alike, photos 9" in forced
    facts = json.loads((models / "digits" / "2" / "manifest.json").read_text())
    assert facts["compared"]["rows"][0]["verdict"] == "worse"
    assert "version 2 has the same weights" in said(*deploy)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["train", "food11", "--data", "nowhere"], "nowhere does not exist"),
        (["train", "food11"], "food11 has no bundled data: name a folder or file"),
        (["train", "digits", "--pretrained"], "no pretrained weights for digits: train without --pretrained"),
        (["train", "digits", "--data", "nowhere"], "nowhere cannot be read"),
        (["evaluate", "food_classifier_int8"], "train first, or measure the served weights on labelled"),
        (["evaluate", "fod11"], "'fod11' is neither a system nor a model"),
        (["deploy", "food11", "--format", "floppy"], "--format floppy is not a format of food11; there are"),
        (["deploy", "food11", "--format", "onnx"], "name the data with --data"),
        (["caption", ".", "--stream", "--out", "out.csv"], "leave out --out, --beams and --engine"),
        (["caption", ".", "--stream"], "no photos are there"),
    ],
)
def test_missing_inputs_and_options_that_exclude_each_other_are_named(
    arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = gourmet(*arguments)
    assert done.exit_code in (1, 2)
    assert complaint in done.stderr
    assert isinstance(done.exception, SystemExit)
    assert not (tmp_path / "runs").exists()
