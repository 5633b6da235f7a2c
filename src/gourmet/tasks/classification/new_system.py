"""A picture classification system that was not there before: what somebody's file is, and its first model."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

import numpy as np
import onnx

from gourmet.deploying.target import Check, Deployment, Target
from gourmet.errors import GourmetError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.drawn import made_up
from gourmet.runtime.manifest import sha256
from gourmet.tasks.classification import described_parts, gate
from gourmet.tasks.classification.calibration import Calibration
from gourmet.tasks.classification.export import onnx_config, open_onnx
from gourmet.tasks.classification.gate import Answers, Pixels
from gourmet.training.task import Tick

# What a tensor of somebody's file may be called, as it is written into configs and asked for by clients.
_TENSOR: Final = re.compile(r"[\w.:/-]{1,128}", re.ASCII)


def deployment_of(system: PictureClassifier, weights: Path, data: Path | None, tick: Tick) -> Deployment:
    """Its weights, ready to be deployed as `onnx`."""
    if system.architecture:
        return described_parts.export(system).open(weights, data, tick)
    tick(1.0)
    facts = {
        "network": {"system": system.name, "architecture": "onnx", "labels": list(system.labels)},
        "training": {"weights_sha256": sha256(weights)},
        "verified_on": "made-up pictures",
    }
    return Deployment({"onnx": given_onnx(system, weights)}, facts, vars(Calibration()))


@dataclass(frozen=True)
class Signature:
    """What a classifier in ONNX takes and gives."""

    input: str
    output: str
    side: int
    outputs: int
    batched: bool


def signature(path: Path) -> Signature:
    """Read it off the file; raise GourmetError unless it is pixels in and a score a label out."""
    try:
        graph = onnx.load(str(path)).graph
    except Exception as exc:  # protobuf's own errors, and those of files
        raise GourmetError(f"{path} cannot be read as ONNX: {exc}") from exc
    weights = {tensor.name for tensor in graph.initializer}
    given, answers = [each for each in graph.input if each.name not in weights], list(graph.output)
    for name in (each.name for each in (*given, *answers)):
        if not _TENSOR.fullmatch(name):
            raise GourmetError(
                f"{path} calls a tensor {shorten(repr(name), 80)}: a name may have at most 128 letters, "
                "digits and _ . : / - in it; export the network again with plain names"
            )
    shapes = {
        each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in (*given, *answers)
    }
    floats = all(each.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for each in (*given, *answers))
    match list(shapes.values()):
        case [[rows, 3, high, wide], [_, outputs]] if (
            floats and rows in (0, 1) and high == wide > 0 < outputs
        ):
            return Signature(given[0].name, answers[0].name, high, outputs, batched=rows == 0)
    told = shorten(", ".join(f"{name!r} {shape}" for name, shape in shapes.items()), 300)
    raise GourmetError(
        f"{path} has {told} (0 is any size); a classifier of pictures takes one float tensor "
        "[N, 3, side, side] and gives one [N, labels]"
    )


def as_given(system: PictureClassifier, path: Path) -> PictureClassifier:
    """`system` with the size of the pictures and the tensors of the file."""
    found = signature(path)
    system = replace(system, input_size=found.side, probability_outputs=(), logit_outputs=(found.output,))
    rows = open_onnx(path, found.input, found.output, system.normalise)(_pictures(system, 1))
    if (rows >= 0).all() and np.allclose(rows.sum(axis=1), 1.0, atol=1e-3):
        return replace(system, probability_outputs=(found.output,), logit_outputs=())
    return system


def _pictures(system: PictureClassifier, count: int) -> Pixels:
    return np.stack([system.pixels(made_up(seed=seed)) for seed in range(count)])


def given_onnx(system: PictureClassifier, given: Path) -> Target:
    """The model of a file; there is no network to compare it with but itself."""
    found, model = signature(given), system.default_model

    def opened(path: Path, *, batched: bool = found.batched) -> Answers:
        return open_onnx(path, found.input, found.output, system.normalise, batched=batched)

    def build(path: Path) -> dict[str, Any]:
        shutil.copyfile(given, path)
        return {"form": "ONNX, exported elsewhere"}

    def compare(answers: Answers) -> Sequence[Check]:
        """A row of a batch has the answer that it has alone, and there is a score for each label."""
        labels = len(system.labels)
        count = Check("labels", str(found.outputs), str(labels), found.outputs == labels)
        return [count, *gate.same_answers(opened(given, batched=False), answers, _pictures(system, 16))]

    row = [3, found.side, found.side]
    config = onnx_config(system, model, found.input, row, found.output, batched=found.batched)
    return Target(model, "model.onnx", build, gate.verify(opened, compare), config, system.labels)
