"""gourmet doctor on the models: every fault is brought about on a copy."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from unit.doctoring import said

from gourmet.doctor.findings import Examined
from gourmet.runtime import manifest


def config_of(models: Path, model: str, old: str, new: str) -> None:
    path = models / model / "config.pbtxt"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


BROKEN_MODELS = {
    "a config that Triton cannot read": (
        lambda m: config_of(m, "food_classifier", "max_batch_size", "max_batchsize"),
        "models",
        "is not a config that Triton can read",
    ),
    "a truncated TorchScript file": (
        lambda m: os.truncate(m / "food_classifier" / "1" / "model.pt", 1_000_000),
        "manifests",
        r"model\.pt has sha256 [0-9a-f]{64}, its manifest says",
    ),
    "a file that is not the deployed one": (
        lambda m: (m / "food_classifier_int8" / "1" / "model.onnx").write_bytes(b"other"),
        "manifests",
        "has sha256 [0-9a-f]{64}, its manifest says [0-9a-f]{64}: ",
    ),
    "a manifest that went missing": (
        lambda m: (m / "food_classifier" / "1" / manifest.MANIFEST).unlink(),
        "manifests",
        r"manifest\.json is missing",
    ),
}


@pytest.mark.parametrize("fault", BROKEN_MODELS)
def test_models_that_are_broken(subject: Examined, models_copy: Path, fault: str) -> None:
    bring_about, check, says = BROKEN_MODELS[fault]
    bring_about(models_copy)
    line = said(check, replace(subject, repositories=(models_copy,)), "fail")
    assert re.search(says, line), line


def test_a_queue_policy_with_one_instance(subject: Examined, models_copy: Path) -> None:
    config_of(models_copy, "food_classifier", "count: 2", "count: 1")
    line = said("models", replace(subject, repositories=(models_copy,)), "warn")
    assert "food_classifier has a queue policy and one instance" in line
