"""A picture classification system that was not there before: what somebody's file is, and its first model."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from gourmet.deploying.target import Check, Deployment, Target
from gourmet.errors import GourmetError, UsageError
from gourmet.pictures.classifier import Floats, PictureClassifier
from gourmet.pictures.drawn import made_up
from gourmet.runtime.bounded_reading import check_weights
from gourmet.runtime.manifest import sha256
from gourmet.runtime.sandbox import Ended, Facts, Limits, Refused, Sandbox
from gourmet.tasks.classification import described_parts, gate
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.calibration import Calibration
from gourmet.tasks.classification.export import onnx_config
from gourmet.tasks.classification.gate import Answers, Pixels
from gourmet.training.task import Tick

# For opening a file, and for each batch that it is asked about.
OPENING_S: Final = 60.0
_OPENING_BYTES: Final = 2 << 30
_OUTPUTS: Final = ("probability_outputs", "logit_outputs")


def deployment_of(system: PictureClassifier, weights: Path, data: Path | None, tick: Tick) -> Deployment:
    """Its weights, ready to be deployed as `onnx`."""
    if weights.suffix != ".onnx":
        return described_parts.export(system).open(weights, data, tick)
    tick(1.0)
    facts = {
        "network": {"system": system.name, "architecture": "onnx", "labels": list(system.labels)},
        "training": {"weights_sha256": sha256(weights)},
        "verified_on": "made-up pictures",
    }
    return Deployment({"onnx": given_onnx(system, weights)}, facts, vars(Calibration()))


def next_version(system: PictureClassifier, weights: Path, data: Path | None, tick: Tick) -> Deployment:
    """The same of a system that is there, whose description an ONNX file has to fit."""
    check_weights(weights)
    given = as_given(system, weights)
    differ = []
    for name in (field.name for field in fields(system)):
        found, said = getattr(given, name), getattr(system, name)
        # Beside the outputs of this model it may name those of others.
        if found != said and not (name in _OUTPUTS and set(found) <= set(said)):
            differ.append(f"{name} {found!r}, not {said!r}")
    if differ:
        raise UsageError(
            f"{weights} cannot be the next version of {system.name}, whose description says otherwise: "
            f"{'; '.join(differ)}. Make a system of its own of it with `gourmet new`"
        )
    return deployment_of(system, weights, data, tick)


class GivenOnnx:
    """Somebody's ONNX file, opened and asked by another process, within limits, as long as this is used."""

    def __init__(self, path: Path) -> None:
        """Raise GourmetError unless it is pixels in and a score a label out."""
        self._path = path
        limits = Limits(OPENING_S, OPENING_S, _OPENING_BYTES + 4 * path.stat().st_size)
        self._process = Sandbox("gourmet.tasks.classification.onnx_process", limits)
        weakref.finalize(self, self._process.end)
        found, _ = self._ask({"path": str(path.resolve())})
        self.input, self.output = str(found["input"]), str(found["output"])
        self.side, self.labels = int(found["side"]), int(found["labels"])
        self.batched = bool(found["batched"])

    def answers(self, system: PictureClassifier, *, batched: bool) -> Answers:
        """Asked with pixels, of which `system` makes its input: all at once, or one by one."""

        def asked(pixels: Pixels) -> Scores:
            given = system.normalise(pixels)
            rows = [given] if batched else np.split(given, len(given))
            return np.concatenate([self._scores(each) for each in rows])

        return asked

    def _scores(self, given: Floats) -> Scores:
        names = {"input": self.input, "output": self.output}
        found, data = self._ask({**names, "shape": given.shape}, given.tobytes())
        return np.frombuffer(data, np.float32).reshape(found["shape"])

    def _ask(self, facts: Facts, data: bytes = b"") -> tuple[Facts, bytes]:
        try:
            return self._process.ask(facts, data)
        except (Refused, Ended) as exc:
            raise GourmetError(f"{self._path} cannot be read as ONNX: {exc}") from exc


def as_given(system: PictureClassifier, path: Path) -> PictureClassifier:
    """`system` with the size of the pictures and the tensors of the file."""
    found = GivenOnnx(path)
    system = replace(system, input_size=found.side, probability_outputs=(), logit_outputs=(found.output,))
    rows = found.answers(system, batched=True)(_pictures(system, 1))
    if (rows >= 0).all() and np.allclose(rows.sum(axis=1), 1.0, atol=1e-3):
        return replace(system, probability_outputs=(found.output,), logit_outputs=())
    return system


def _pictures(system: PictureClassifier, count: int) -> Pixels:
    return np.stack([system.pixels(made_up(seed=seed)) for seed in range(count)])


def given_onnx(system: PictureClassifier, given: Path) -> Target:
    """The model of a file; there is no network to compare it with but itself."""
    found, model = GivenOnnx(given), system.default_model

    def opened(path: Path) -> Answers:
        return GivenOnnx(path).answers(system, batched=found.batched)

    def build(path: Path) -> dict[str, Any]:
        shutil.copyfile(given, path)
        return {"form": "ONNX, exported elsewhere"}

    def compare(answers: Answers) -> Sequence[Check]:
        """A row of a batch has the answer that it has alone, and there is a score for each label."""
        labels = len(system.labels)
        count = Check("labels", str(found.labels), str(labels), found.labels == labels)
        alone = found.answers(system, batched=False)
        return [count, *gate.same_answers(alone, answers, _pictures(system, 16))]

    row = [3, found.side, found.side]
    config = onnx_config(system, model, found.input, row, found.output, batched=found.batched)
    return Target(model, "model.onnx", build, gate.verify(opened, compare), config, system.labels)
