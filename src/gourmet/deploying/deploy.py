"""Build aside, pass the gate, write the manifest, move the folder into place."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy.typing as npt

from gourmet.deploying import gate
from gourmet.deploying.evaluation import read_evaluation
from gourmet.deploying.rollback import write_calibration
from gourmet.deploying.target import Answers, Job, Pixels, Target
from gourmet.deploying.version import staged
from gourmet.repository import read_config
from gourmet.systems.manifest import MANIFEST, sha256

_BUILT_BY: Final = ("torch", "torchvision", "onnx", "onnxruntime", "numpy")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Photos:
    """Real photos: some to calibrate a quantized model on, others to pass the gate with."""

    calibration: Pixels
    gate: Pixels
    gate_classes: npt.NDArray[Any]


@dataclass(frozen=True)
class Deployed:
    """A version that passed and is in its place."""

    folder: Path
    checks: list[gate.Check]


def deploy(
    room: ModuleType,
    target: Target,
    weights: Path,
    repository: Path,
    photos: Photos,
    number: int | None = None,
) -> Deployed:
    """Export `weights` as `target` into `repository`, or raise and leave everything as it was.

    `room` is the system's export room: it loads the network, answers with it, and says how pictures
    become its input.
    """
    calibration, accuracy = read_evaluation(weights)
    network, about = room.load(weights)
    model = repository / target.model
    read_config(model)  # a model that Triton could not load is better refused before the work
    with staged(model, target.file, number) as (aside, final):
        facts = target.build(Job(network, calibration, photos.calibration), aside / target.file)
        checks = _checks(target, room.eager(network), aside / target.file, photos)
        gate.require(target.model, checks)
        manifest = {
            "model": target.model,
            "file": target.file,
            "sha256": sha256(aside / target.file),
            "bytes": (aside / target.file).stat().st_size,
            **facts,
            "built_by": {"python": platform.python_version(), **{name: version(name) for name in _BUILT_BY}},
            "network": {k: about[k] for k in ("system", "architecture", "labels")},
            "training": {"weights_sha256": sha256(weights), "epoch": about.get("epoch")},
            "accuracy": accuracy,
            "calibration": vars(calibration),
            "preprocessing": room.PREPROCESSING,
            "gate": [vars(check) for check in checks],
        }
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        (aside / target.file).chmod(0o644)
    write_calibration(model, int(final.name))
    return Deployed(final, checks)


def _checks(target: Target, eager: Answers, path: Path, photos: Photos) -> list[gate.Check]:
    try:
        model = target.answers(path)
    except Exception as exc:  # a file that cannot be opened fails like one that answers wrongly
        return [gate.Check("opens", str(exc).splitlines()[0][:80], "yes", False)]
    if target.exact:
        return gate.same_answers(eager, model, photos.gate, batched=target.batched)
    return gate.close_answers(eager, model, photos.gate, photos.gate_classes)
