"""Make a classifier from a folder of photos: frozen layers of a network, and a linear layer solved by numpy.

The frozen layers, the body, are those of a network that is here: EfficientNet-Lite0 in `bodies/`, or what a
shipped model serves. Cross-validation chooses the body, and says how often the classifier is right and how
sure it may be: each photo is answered by a layer that was solved without it.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime
from PIL import Image

from gourmet.contracts import LABELS_PARAMETER, SYSTEM_PARAMETER
from gourmet.evaluation import same_answers
from gourmet.evaluation.accuracy import accuracy, operating_at
from gourmet.evaluation.calibration import Calibration
from gourmet.evaluation.labelled_pictures import ALL, LabelledPictures, class_folders, decode
from gourmet.evaluation.picture_scores import LabelledScores, calibrate, with_coverage
from gourmet.evaluation.rehearsal import Rehearsal, load_rehearsal
from gourmet.evaluation.system_parts import BadData
from gourmet.pictures import made_up
from gourmet.pictures.certainty import relevance
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.label_folders import class_of
from gourmet.progress import ReportProgress
from gourmet.reports.table import columns
from gourmet.repository.config_file import LABELS_FILE, model_config, tensor
from gourmet.repository.gate import Deployment, ModelFile, Target
from gourmet.training.linear_layer import Classes, Floats, Layer, OnnxLayer, evenly_counted, one_hot, solve

BODIES: Final = Path(__file__).with_name("bodies")
PIXELS: Final = "image"
LOGITS: Final = "output"
SIDE: Final = 224
MIN_PHOTOS: Final = 8
_MAX_LABELS: Final = 200
FOLDS: Final = 5
# How strongly the weights are held to zero. Measured on flowers and groceries: 0.01 and 0.3 were no better.
PULL: Final = 0.1
# Of each class of a body's own set, as pictures that show none of the labels.
OTHERS: Final = 12
_MADE_UP: Final = 60
# The share of sure answers that should be right; below it, and from few photos, none is sure.
_GOAL: Final = 0.95
_MIN_THRESHOLD: Final = 0.6
_WORST: Final = 5
_TAKEN: Final = 0.5
_VERIFIED_ON: Final = 16


_CARD: Final = """# {system.title}

Tells which of these labels a photo shows, or that it shows none of them:

{listed}
- made by `gourmet new` from {made.photos.count} photos
- network: a linear layer on the frozen layers of {made.body.title}
- photos: say whose they are, under which licence, and what they do not show
- meant for: say for what, and for what not

Five-fold cross-validation, each photo by a layer that had not seen it:

```
{report}
```
"""


@dataclass(frozen=True)
class Body:
    """A network whose layers before the last one see the photos."""

    title: str
    file: Path
    others: Path  # beside these weights is a set of activations of other pictures

    @cached_property
    def network(self) -> OnnxLayer:
        return OnnxLayer.read(self.file)

    def of_others(self) -> Floats:
        """Return activations of other pictures: some of each class of the body's set, and all of none."""
        kept = load_rehearsal(self.others)
        none = kept.classes.max()
        rows = [np.flatnonzero(kept.classes == number)[:OTHERS] for number in range(none)]
        chosen = np.concatenate([*rows, np.flatnonzero(kept.classes == none)])
        return np.asarray(kept.activations[chosen])


def own_body() -> Body:
    """Return the body that comes with this package."""
    file = BODIES / "efficientnet_lite0.onnx"
    return Body("EfficientNet-Lite0", file, file)


@dataclass(frozen=True)
class Photos:
    """Decoded photos of each class, and of none of them."""

    labels: tuple[str, ...]
    names: Sequence[str]
    images: npt.NDArray[np.uint8]
    classes: Classes

    @property
    def count(self) -> int:
        return len(self.classes)

    @classmethod
    def read(cls, folder: Path, labels: Sequence[str], tick: ReportProgress) -> Photos:
        """Read a folder with a folder of photos for each class; raise BadData with what is lacking."""
        labels = _labels_of(folder, labels)
        data = LabelledPictures(tuple(labels))
        listed = [*data.listing(folder, ALL), *data.others(folder)]
        counts = np.bincount([photo.class_id for photo in listed], minlength=len(labels) + 1)
        if few := [
            f"{label} has {count}" for label, count in zip(labels, counts, strict=False) if count < MIN_PHOTOS
        ]:
            raise BadData(
                f"too few photos in {folder}: {', '.join(few)}; a class needs at least {MIN_PHOTOS}"
            )
        (pixels,) = decode((listed,), SIDE, tick)
        return cls(tuple(labels), [photo.name for photo in listed], pixels.images, pixels.classes)

    def sample(self) -> bytes:
        """Return the first photo, as the layer sees it."""
        return jpeg(self.images[0])


def jpeg(image: npt.NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=92)
    return file.getvalue()


def _labels_of(folder: Path, labels: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the folders as labels, or `labels` if each folder is one of them."""
    folders = class_folders(folder)
    if not 2 <= len(folders) <= _MAX_LABELS:
        names = f": {', '.join(folders)}" if folders else ""
        raise BadData(
            f"{folder} has {len(folders)} folders with photos{names}. A classifier needs a folder of photos "
            f"for each class, and 2 to {_MAX_LABELS} classes"
        )
    if not labels:
        return folders
    known = {class_of(name, labels) for name in folders}
    if None in known or len(known) < len(labels) or len(folders) != len(labels):
        raise BadData(f"--labels {','.join(labels)} are not the folders of {folder}: {', '.join(folders)}")
    return tuple(labels)


def describe(system: PictureClassifier) -> PictureClassifier:
    """Return `system` as a classifier of pixels, whose subject is what its title says."""
    return replace(
        system,
        datatypes=("UINT8",),
        layout="NHWC",
        input_size=SIDE,
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        probability_outputs=(),
        logit_outputs=(LOGITS,),
        subject=system.title.lower(),
    )


@dataclass(frozen=True)
class Classifier:
    """A solved layer on a body, and the answers to each photo of layers that were solved without it."""

    system: PictureClassifier
    body: Body
    layer: Layer
    photos: Photos
    rows: Rows  # of the photos, and of other pictures behind them
    answers: Floats  # logits of all rows
    calibration: Calibration

    @property
    def crossed(self) -> Floats:
        """The logits of the photos."""
        return self.answers[: self.photos.count]

    @cached_property
    def right(self) -> float:
        """Balanced accuracy by cross-validation."""
        shown = self.photos.classes < len(self.photos.labels)
        measured = accuracy(self.crossed[shown], self.photos.classes[shown], self.photos.labels)
        return measured.balanced

    def table(self) -> list[tuple[str, int, float, float]]:
        """Return photos, right and sure of each class, and of all under an empty name.

        Each photo is answered by a layer that had not seen it.
        """
        labels, classes = self.photos.labels, self.photos.classes
        scores = LabelledScores(self.crossed, classes, relevance=relevance(self.crossed))
        likely = scores.probabilities(self.calibration)
        rows = []
        for number, label in [*enumerate(labels), (-1, "")]:
            mine = classes < len(labels) if number < 0 else classes == number
            right = float(np.mean(self.crossed[mine].argmax(axis=1) == classes[mine]))
            sure = operating_at(self.calibration.threshold, likely[mine], classes[mine]).coverage
            rows.append((label, int(mine.sum()), right, float(sure)))
        return rows

    def report(self) -> str:
        """Return the check's table: right and sure by class, and the photos that are most wrong."""
        rows = [
            (label or "all", str(count), f"{right:.0%}", f"{sure:.0%}")
            for label, count, right, sure in self.table()
        ]
        text = columns([("", "photos", "right", "sure"), *rows])
        worst = [f"  {self.photos.names[row]}, taken for {self._answer(row)}" for row in self._worst()]
        return "\n".join(
            [text, *(["most wrong, each by a layer that had not seen it:"] if worst else []), *worst]
        )

    def card(self) -> str:
        """Return the model card, which its owner completes."""
        listed = "".join(f"- {label}\n" for label in self.photos.labels)
        return _CARD.format(made=self, system=self.system, report=self.report(), listed=listed)

    def as_dict(self) -> dict[str, Any]:
        """Return the table for a page, and the photos that are most wrong as small JPEGs in base64."""
        labels, classes = self.photos.labels, self.photos.classes
        worst = [
            {
                "label": labels[classes[row]],
                "answer": self._answer(row),
                "jpeg": base64.b64encode(jpeg(self.photos.images[row])).decode(),
            }
            for row in self._worst()
        ]
        return {"body": self.body.title, "table": self.table(), "worst": worst}

    def _answer(self, row: int) -> str:
        return self.photos.labels[int(self.crossed[row].argmax())]

    def _worst(self) -> list[int]:
        """Return the photos that are most wrong, the worst first."""
        classes = self.photos.classes
        shown = np.flatnonzero(classes < len(self.photos.labels))
        lead = self.crossed[shown].max(axis=1) - self.crossed[shown, classes[shown]]
        return [int(shown[row]) for row in np.argsort(-lead)[:_WORST] if lead[row] > 0]

    def deployment(self) -> Deployment:
        """Return what `gourmet deploy` needs: the file, its gate, its set to rehearse, and its numbers."""
        system, model = self.system, self.system.default_model
        content = self.body.network.with_new_layer(self.layer, LOGITS)
        photos = self.photos.images[:: max(1, len(self.photos.images) // _VERIFIED_ON)][:_VERIFIED_ON]

        def build(path: Path) -> dict[str, Any]:
            path.write_bytes(content)
            served = OnnxLayer.read(path)
            rows, held = self.rows, folds(self.rows.classes) == 0
            known = Rehearsal.rounded(rows.views[0], rows.classes, held, self.layer, served.before)
            replace(known, before=self.answers, is_crossed=True).write(path)
            return {
                "form": "ONNX, int8 QDQ, the last layer in float",
                "input": f"uint8 [N, {SIDE}, {SIDE}, 3]",
            }

        def run_rows(rows: npt.NDArray[Any]) -> Floats:
            return self.layer(self.body.network.activations(rows))

        def opened(path: Path) -> same_answers.Answers:
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            return lambda rows: session.run([LOGITS], {PIXELS: rows})[0]

        def compare(served: same_answers.Answers) -> Sequence[Any]:
            return same_answers.same_answers(run_rows, served, photos)

        config = model_config(
            model,
            "onnxruntime",
            16,
            tensor(PIXELS, "UINT8", (SIDE, SIDE, 3), layout="NHWC"),
            tensor(LOGITS, "FP32", (len(system.labels),), labels_file=LABELS_FILE),
            kind="CPU",
            instances=2,
            parameters={
                SYSTEM_PARAMETER: system.name,
                LABELS_PARAMETER: json.dumps(system.labels, ensure_ascii=False),
            },
        )
        shown = self.photos.classes < len(system.labels)
        measured = accuracy(self.crossed[shown], self.photos.classes[shown], system.labels)
        facts = {
            "network": {
                "system": system.name,
                "architecture": self.body.title,
                "labels": list(system.labels),
            },
            "training": {"photos": len(self.photos.classes), "weights_sha256": self.layer.sha256},
            "accuracy": {"cross-validation": measured.as_dict()},
            "verified_on": "photos that the layer learned from",
        }
        file = ModelFile("model.onnx", build, same_answers.verify(opened, compare))
        target = Target(model, [file], config, system.labels)
        return Deployment({"onnx": target}, facts, vars(self.calibration))


def make(
    system: PictureClassifier, photos: Photos, bodies: Sequence[Body], tick: ReportProgress
) -> tuple[Classifier, Sequence[Classifier]]:
    """Make a classifier on each body; return the one that is right most often, and all of them."""
    made = []
    for number, body in enumerate(bodies):

        def of_body(share: float, words: str = "", number: int = number) -> None:
            tick((number + share) / len(bodies), words)

        made.append(_on_body(system, photos, body, of_body))
    return max(made, key=lambda classifier: classifier.right), made


def _on_body(system: PictureClassifier, photos: Photos, body: Body, tick: ReportProgress) -> Classifier:
    count, labels = photos.count, len(photos.labels)
    images = np.concatenate([photos.images, made_up.squares(_MADE_UP, 0, SIDE)])
    seen = []
    for at, view in enumerate((images, photos.images[:, :, ::-1])):

        def looking(share: float, at: int = at) -> None:
            tick(0.4 * (at + share), f"looking: {body.title}")

        seen.append(body.network.activations(view, tick=looking))
    others = body.of_others()
    classes = np.concatenate([photos.classes, np.full(_MADE_UP + len(others), labels)])
    rows = Rows([np.concatenate([seen[0], others]), seen[1]], classes, labels)
    tick(0.8, "solving")
    crossed, start = rows.crossed()
    # Other pictures that a layer takes for one of the labels are left out: they may show it.
    kept = (np.arange(len(classes)) < count) | (relevance(crossed) < _TAKEN)
    if not kept.all():
        tick(0.9, "solving")
        rows = rows.select(kept)
        crossed, start = rows.crossed()
    layer = rows.solve(np.ones(len(rows.classes), bool), start)
    tick(1.0, "")
    return Classifier(system, body, layer, photos, rows, crossed, _calibrated(crossed[:count], photos))


def folds(classes: Classes) -> Classes:
    """Return the fold of each photo; each class is spread over all folds."""
    numbers = np.zeros(len(classes), int)
    for class_id in set(classes.tolist()):
        mine = np.flatnonzero(classes == class_id)
        numbers[mine] = np.arange(len(mine)) % FOLDS
    return numbers


@dataclass(frozen=True)
class Rows:
    """Activations and classes of pictures. The first view is as served; further ones may lack the last rows.

    A class equal to the number of labels means none of them.
    """

    views: Sequence[Floats]
    classes: Classes
    labels: int

    def solve(self, taught: npt.NDArray[np.bool_], start: Layer | None = None) -> Layer:
        """Return the layer that fits the `taught` rows."""
        chosen, kinds = [taught[: len(view)] for view in self.views], self.labels + 1
        activations = np.concatenate([view[rows] for view, rows in zip(self.views, chosen, strict=True)])
        classes = np.concatenate([self.classes[: len(rows)][rows] for rows in chosen])
        zero = np.zeros((self.labels, activations.shape[1]), np.float32)
        layer, counts = Layer(zero, zero[:, 0]), evenly_counted(classes, kinds)
        return solve(layer, activations, one_hot(classes, kinds), counts, pull=PULL, start=start)

    def crossed(self) -> tuple[Floats, Layer]:
        """Return the logits of each row by a layer that was solved without it, and the last of the layers."""
        numbers, start = folds(self.classes), None
        rows = np.empty((len(self.classes), self.labels), np.float32)
        for number in range(FOLDS):
            start = self.solve(numbers != number, start)
            rows[numbers == number] = start(self.views[0][numbers == number])
        assert start
        return rows, start

    def select(self, rows: npt.NDArray[np.bool_]) -> Rows:
        return Rows([view[rows[: len(view)]] for view in self.views], self.classes[rows], self.labels)


def _calibrated(crossed: Floats, photos: Photos) -> Calibration:
    """Choose temperature and thresholds by answers to photos that each layer had not seen."""
    shown = photos.classes < len(photos.labels)
    part = LabelledScores(crossed[shown], photos.classes[shown], relevance=relevance(crossed[shown]))
    chosen = calibrate({"": part}, {"": _GOAL})
    return with_coverage(replace(chosen, threshold=max(chosen.threshold, _MIN_THRESHOLD)), [part])
