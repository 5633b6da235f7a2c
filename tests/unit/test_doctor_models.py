"""gourmet doctor on the models: every fault is brought about on a copy."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
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


def test_weights_of_a_run_that_are_broken(subject: Examined, tmp_path: Path) -> None:
    weights = tmp_path / "last.safetensors"
    weights.write_bytes(b"\x10\x00\x00")
    assert "cannot be read as safetensors" in said("weights", replace(subject, weights=weights), "fail")
    weights.unlink()
    assert "does not exist: train first" in said("weights", replace(subject, weights=weights), "fail")


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_an_instance_on_a_gpu_that_is_not_there(
    subject: Examined, models_copy: Path, program: Callable[[str, str], None]
) -> None:
    here = replace(subject, repositories=(models_copy,))
    config_of(models_copy, "food_classifier_onnx", "kind: KIND_AUTO count: 2", "kind: KIND_GPU gpus: [ 1 ]")
    assert "food_classifier_onnx wants a GPU (KIND_GPU), and this machine has none: " in said(
        "devices", here, "fail"
    )
    program("nvidia-smi", "echo '0, NVIDIA H100 80GB HBM3, 580.95.05, 9.0'")
    assert "food_classifier_onnx wants GPU 1, and this machine has 1: " in said("devices", here, "fail")


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (
            {"inputs": (3, 224, 224)},
            "--shape inputs:3,224,224 is for an input that food_classifier_onnx does not have, which "
            "perf_analyzer ignores silently; it has 'input' [3, 224, 224]: give --shape input:3,224,224",
        ),
        ({"input": (224, 224, 3)}, "does not fit: 'input' of food_classifier_onnx is [3, 224, 224]: give"),
        ({"input": (16, 3, 224, 224)}, "a shape is that of one row: give --shape input:3,224,224 and -b 16"),
    ],
    ids=["no such input", "other dims", "with the batch"],
)
def test_shapes_that_do_not_fit_the_model(
    subject: Examined, shapes: dict[str, tuple[int, ...]], says: str
) -> None:
    asked = replace(subject, model="food_classifier_onnx", shapes=shapes)
    assert says in said("inputs", asked, "fail")


def test_inputs_for_which_perf_analyzer_needs_more(subject: Examined, models_copy: Path) -> None:
    here = replace(subject, repositories=(models_copy,), model="food_classifier")
    assert "takes bytes, and perf_analyzer makes up random text: give it real" in said("inputs", here, "warn")
    config_of(models_copy, "food_classifier_onnx", "[ 3, 224, 224 ]", "[ 3, -1, 224 ]")
    free = replace(here, model="food_classifier_onnx")
    assert "perf_analyzer needs one: --shape input:3,-1,224 with numbers" in said("inputs", free, "warn")
    assert "no model 'soup' found: name one of " in said("inputs", replace(here, model="soup"), "fail")
