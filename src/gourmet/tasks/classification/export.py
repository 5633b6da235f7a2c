"""A classifier's weights, read and set beside pictures, ready to be deployed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.deploying.target import Deployment
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError
from gourmet.runtime.manifest import sha256
from gourmet.tasks.classification.evaluation import Calibration, NotEvaluated, read_evaluation
from gourmet.tasks.classification.gate import Pixels
from gourmet.tasks.classification.targets import Formats, Source
from gourmet.tasks.furniture import BadData, Data, Load
from gourmet.training.task import Tick

_CALIBRATED_ON: Final = 512
_MADE_UP: Final = 64


@dataclass(frozen=True)
class ClassifierExport:
    """How a classifier is exported; fulfils `gourmet.deploying.target.Export`."""

    system: PictureClassifier
    data: Data
    load: Load
    models: Formats
    preprocessing: Mapping[str, Any] = field(default_factory=dict)  # for people who read the manifest
    calibrates: bool = False  # one of the formats is quantized

    @property
    def formats(self) -> Sequence[str]:
        return tuple(self.models)

    def open(self, weights: Path, data: Path | None, tick: Tick, *, architecture: str = "") -> Deployment:
        """Weights that others trained need no evaluation, and no labelled pictures either."""
        network, about = self.load(weights, architecture)
        foreign = bool(about.get("foreign"))
        try:
            calibration, accuracy = read_evaluation(weights)
        except NotEvaluated:
            if not foreign:
                raise
            calibration, accuracy = Calibration(), {}
        if data is None and not foreign:
            raise BadData("no labelled pictures to verify with: name them with --data")
        source = Source(self.system, network, calibration, *self._pictures(data, tick))
        return Deployment(
            targets={name: model(source) for name, model in self.models.items()},
            facts={
                "network": {key: about[key] for key in ("system", "architecture", "labels")},
                "training": {"weights_sha256": sha256(weights), "epoch": about.get("epoch")},
                "accuracy": accuracy,
                "verified_on": "made-up pictures" if data is None else "labelled pictures held out",
                "preprocessing": {
                    "size": self.system.input_size,
                    "mean": self.system.mean,
                    "std": self.system.std,
                    "code": type(self.system).__module__,
                    **self.preprocessing,
                },
            },
            calibration=vars(calibration),
        )

    def _pictures(self, data: Path | None, tick: Tick) -> tuple[Pixels, Pixels, npt.NDArray[np.int64] | None]:
        """Pictures to calibrate with, others to verify with, and the classes of these."""
        if data is None:
            made_up = np.stack([self.system.pixels(each) for each in self.system.examples(_MADE_UP, 0)])
            return made_up, made_up, None
        held = self.data.listing(data, "validation")
        train = self.data.listing(data, "train", _CALIBRATED_ON) if self.calibrates else ()
        examples, rows = [*train, *held], []
        for example, picture in zip(examples, self.data.read(examples), strict=True):
            try:
                rows.append(self.system.pixels(picture))
            except PictureError as exc:
                raise BadData(f"{example.name}: {exc}") from exc
            tick(len(rows) / len(examples))
        images = np.stack(rows)
        order = np.random.default_rng(0).permutation(len(held))  # the first rows are of all classes
        classes = np.array([example.class_id for example in held], dtype=np.int64)
        return images[: len(train)], images[len(train) :][order], classes[order]
