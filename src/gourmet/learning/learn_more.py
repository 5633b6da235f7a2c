"""Teach a served model more labelled pictures, in seconds and with numpy alone.

Only the last layer learns: it is solved (gourmet.training.linear_layer) for the new pictures and
for activations of those that the network was trained on (gourmet.evaluation.rehearsal), to which it
goes on answering as it did. The new layer then takes the place of the old one in each served file of the
network (`OnnxLayer`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime
from PIL import Image

from gourmet.errors import GourmetError, UsageError
from gourmet.evaluation import same_answers
from gourmet.evaluation.calibration import Calibration, calibration_of
from gourmet.evaluation.labelled_pictures import (
    ALL,
    LabelledPhoto,
    LabelledPictures,
    Pixels,
    decode,
)
from gourmet.evaluation.picture_comparison import MARGIN, measures
from gourmet.evaluation.rehearsal import Rehearsal, read_rehearsal
from gourmet.evaluation.system_parts import BadData
from gourmet.learning.from_photos import FOLDS, Rows, folds
from gourmet.pictures.certainty import relevance, softmax
from gourmet.pictures.classifier import PictureClassifier
from gourmet.progress import ReportProgress
from gourmet.repository.gate import Check, Comparison, Deployment, Measure, ModelFile, Target
from gourmet.repository.models import model_names
from gourmet.repository.versions import newest_intact_version
from gourmet.served import manifest
from gourmet.served.files import written_aside
from gourmet.training.linear_layer import (
    Classes,
    Floats,
    Layer,
    OnnxLayer,
    evenly_counted,
    one_hot,
    solve,
)

SUFFIX: Final = ".npz"
FILE: Final = f"learned{SUFFIX}"
NETWORK: Final = "model.onnx"
MIN_PHOTOS: Final = 8
# Photos of one class: with fewer, one or two of them decide what is learned.
SAFE: Final = 8
# Up to so many photos each fold is learned without a fifth of them; of more, one fold tells enough.
_FEW: Final = 200
# The weight of the new pictures; the others have the rest.
_NEW: Final = 0.1
# How strongly the layer is held to its present weights.
_PULL: Final = 0.001
# Shares of the step to try, if the whole step loses too much.
_SHARES: Final = (1.0, 0.7, 0.5, 0.35, 0.25)
_VERIFIED_ON: Final = 32
_VIEWS: Final = 4
# Logits so near each other are as likely: views of one picture may all lie between two classes.
_TIE: Final = 1.0
# A label to which the served network gives less than this probability is doubted. From a quarter of the
# labels on, and four, somebody has to confirm them. Measured on 64-pixel and on full photos, 300 draws each:
# of 30 honest corrections of wrong answers 11 and 7 % are doubted (in 99 of 100 draws at most 23 %), of 10
# honest and 20 wrong labels 40 and 62 %, of 30 wrong ones 54 and 89 %. How often a sure answer is
# contradicted tells less: 7 and 27 %, 18 and 62 %, 23 and 76 %.
DOUBTED: Final = 0.02
_DOUBTED_SHARE: Final = 0.25
_DOUBTED_COUNT: Final = 4
# Facts of a manifest about the form of a file.
_FORM: Final = ("form", "opset", "input", "calibrated_on")


@dataclass(frozen=True)
class Learned:
    """A new last layer, the one that it began with, and what it changes."""

    layer: Layer
    initial_layer: Layer
    kept: Comparison  # on photos that the network was not trained on
    # By class, the photos learned from: each right before, and by a layer without it.
    own: Sequence[dict[str, Any]]
    doubted: Sequence[str] = ()  # the photos whose labels the served network doubts

    def compared(self, version: Path, _tick: ReportProgress) -> Comparison:
        rows = [*self.kept.measures, self.labels]
        return replace(self.kept, model=version.parent.name, version=version.name, measures=rows)

    def as_dict(self) -> dict[str, Any]:
        return {
            "kept": self.kept.as_dict()["rows"],
            "own": list(self.own),
            "doubted": list(self.doubted),
            "sentence": self.sentence,
            "must_confirm": self.must_confirm,
        }

    @property
    def photos(self) -> int:
        return sum(row["photos"] for row in self.own)

    @property
    def must_confirm(self) -> bool:
        """True if so many labels are doubted that somebody has to confirm them."""
        return len(self.doubted) >= max(_DOUBTED_COUNT, _DOUBTED_SHARE * self.photos)

    @property
    def sentence(self) -> str:
        """Say the result in a sentence."""
        if self.kept.lost:
            return f"Worse for {self.kept.losses()}: not used"
        if self.must_confirm:
            return f"Not used yet: {len(self.doubted)} of your {self.photos} labels contradict the model"
        measured, before, now = (sum(row[key] for row in self.own) for key in ("measured", "before", "now"))
        fell = max(self.kept.measures, key=lambda row: row.served - row.candidate)
        fall = fell.served - fell.candidate
        others = f"{fell.what} falls by {fall:.1f} points" if fall >= 0.05 else "nothing else is lost"
        what = "Better" if now > before else "No better"
        return f"{what}: {now} of your {measured} photos are right, {before} before; {others}"

    @property
    def labels(self) -> Measure:
        """How many of the labels the served network finds possible, for the gate."""
        share = 100 * len(self.doubted) / max(1, self.photos)
        margin = share - 1 if self.must_confirm else 100.0
        return Measure("labels that the model finds possible", self.photos, 100.0, 100.0 - share, margin)

    def write(self, path: Path) -> None:
        with written_aside(path) as aside, aside.open("wb") as file:
            np.savez(
                file,
                weight=self.layer.weight,
                bias=self.layer.bias,
                begun_weight=self.initial_layer.weight,
                begun_bias=self.initial_layer.bias,
                about=np.array(json.dumps(self.as_dict())),
            )


def read_learned(path: Path) -> Learned:
    """Read the file that `gourmet learn-more` wrote."""
    try:
        with np.load(path) as arrays:
            about = json.loads(str(arrays["about"]))
            layer, initial_layer = (
                Layer(arrays[f"{which}weight"], arrays[f"{which}bias"]) for which in ("", "begun_")
            )
    except (OSError, LookupError, ValueError) as exc:
        raise GourmetError(f"{path} is not what `gourmet learn-more` wrote: make it again") from exc
    kept = [Measure(**{name: row[name] for name in Measure.__annotations__}) for row in about["kept"]]
    return Learned(layer, initial_layer, Comparison("", "", kept), about["own"], about["doubted"])


def learn(
    system: PictureClassifier, data: LabelledPictures, version: Path, folder: Path, tick: ReportProgress
) -> Learned:
    """Learn the pictures of `folder`, beginning with the served `version`."""
    served = OnnxLayer.read(version / NETWORK)
    known = read_rehearsal(version / NETWORK, served.before, served.layer)
    if known is None:
        raise UsageError(
            "no rehearsal set found for what is served, without which it would forget what it knows: make "
            f"one with `gourmet train {system.name} --rehearse WEIGHTS --data PHOTOS`, from the model.onnx "
            "that is served and photos like those that it was trained on"
        )
    photos = [*data.listing(folder, ALL), *(data.others(folder) if system.subject else ())]
    if len(photos) < MIN_PHOTOS:
        raise BadData(f"{folder} has {len(photos)} pictures to learn from: at least {MIN_PHOTOS} are needed")
    pixels = decode_those_left(photos, system.input_size, lambda share: tick(share / 5, "reading"))
    images = np.concatenate([*_views(pixels.images)])
    prepare, looking = prepared(system), lambda share: tick(0.2 + 0.4 * share, "looking")
    seen = served.activations(images, prepare, looking)
    views = np.split(seen, _VIEWS)
    calibration = calibration_of(
        manifest.read_manifest(version).get("calibration", {}), version / manifest.MANIFEST
    )
    lesson = Lesson(system, served.layer, known, views, pixels.classes, calibration)
    doubted = [
        photo.name for photo, is_doubted in zip(pixels.photos, lesson.doubted(), strict=True) if is_doubted
    ]
    return replace(lesson.learn(tick), doubted=doubted)


@dataclass(frozen=True)
class Lesson:
    system: PictureClassifier
    initial_layer: Layer
    known: Rehearsal
    views: Sequence[Floats]  # the activations of all photos, in each of their views; the first is as served
    classes: Classes
    calibration: Calibration

    def learn(self, tick: ReportProgress) -> Learned:
        numbers, everything = folds(self.classes), np.ones(len(self.classes), bool)
        solved = self._solve(everything)
        measured_by, apart = self, solved
        if self.known.is_crossed:  # the held-out photos were learned too: measure by layers without them
            measured_by = self._without_held()
            apart = measured_by._solve(everything)
        before = self.known.shares(measured_by.initial_layer, self.calibration, self.system)
        for share in _SHARES:
            now = self.known.shares(
                measured_by.initial_layer.towards(apart, share), self.calibration, self.system
            )
            kept = Comparison("", "", [*measures("", before, now, self.system, MARGIN)])
            if not kept.lost:
                break
        layer = self.initial_layer.towards(solved, share)
        right_before = self._right(self.initial_layer(self.views[0]))
        right_now = np.zeros_like(right_before)
        measured = np.zeros_like(right_before)
        for number in range(FOLDS if len(self.classes) <= _FEW else 1):
            tick(0.65 + 0.07 * number, "measuring")
            apart = numbers == number
            without = self.initial_layer.towards(self._solve(~apart, solved), share)
            right_now[apart] = self._right(without(self.views[0]))[apart]
            measured |= apart
        labels = (*self.system.labels, f"no {self.system.subject}")
        own = [
            {
                "label": labels[class_id],
                "photos": int((self.classes == class_id).sum()),
                "measured": int((of_class := measured & (self.classes == class_id)).sum()),
                "before": int(right_before[of_class].sum()),
                "now": int(right_now[of_class].sum()),
                "more": max(0, SAFE - int((self.classes == class_id).sum())),
            }
            for class_id in sorted(set(self.classes.tolist()))
        ]
        tick(1.0, "")
        return Learned(layer, self.initial_layer, kept, own)

    def doubted(self) -> npt.NDArray[np.bool_]:
        """Mark the photos to whose labels the served layer gives next to no probability."""
        logits = self.initial_layer(self.views[0])
        likely = softmax(logits, self.calibration.temperature)
        if self.system.subject:
            shown = relevance(logits)[:, np.newaxis]
            likely = np.concatenate([likely * shown, 1 - shown], axis=1)
        return np.asarray(likely[np.arange(len(likely)), self.classes] < DOUBTED)

    def _without_held(self) -> Lesson:
        """Return the lesson on a layer that learned all of the set but what is held out."""
        known = self.known
        rows = Rows([known.activations], known.classes, len(self.system.labels))
        return replace(self, initial_layer=rows.solve(~known.held), known=replace(known, is_crossed=False))

    def _solve(self, taught: npt.NDArray[np.bool_], start: Layer | None = None) -> Layer:
        """Solve the layer for these photos and for the rehearsed ones with their present answers."""
        kinds = len(self.system.labels) + bool(self.system.subject)
        rehearsed = ~self.known.held | self.known.is_crossed
        old = self.known.activations[rehearsed]
        logits = self.initial_layer(old)
        if self.system.subject:  # whose level is against zero that a label is shown at all
            logits = np.pad(logits, ((0, 0), (0, 1)))
        classes = np.tile(self.classes[taught], len(self.views))
        counts = evenly_counted(classes, kinds)
        return solve(
            self.initial_layer,
            np.concatenate([*(view[taught] for view in self.views), old]),
            np.concatenate([one_hot(classes, kinds), softmax(logits)]),
            np.concatenate([_NEW * counts / counts.sum(), np.full(len(old), (1 - _NEW) / len(old))]),
            pull=_PULL,
            start=start,
        )

    def _right(self, logits: Floats) -> npt.NDArray[np.bool_]:
        """Mark the right answers; a picture of no class is right if it is declined."""
        none = len(self.system.labels)
        declined = relevance(logits) < self.calibration.subject_threshold
        return np.where(self.classes == none, declined, logits.argmax(axis=1) == self.classes)


def decode_those_left(photos: Sequence[LabelledPhoto], side: int, tick: Callable[[float], None]) -> Pixels:
    """Decode photos without those that vanished since they were listed, as a corrected correction does."""
    there = [photo for photo in photos if photo.source.is_file() or (photo.source / photo.name).is_file()]
    try:
        return decode((there,), side, tick)[0]
    except BadData:
        if all(photo.source.is_file() or (photo.source / photo.name).is_file() for photo in there):
            raise
        return decode_those_left(there, side, tick)


def prepared(system: PictureClassifier) -> Callable[[npt.NDArray[np.uint8]], npt.NDArray[Any]]:
    """Return how pictures are prepared for the default model's network, which may take pixels alone."""
    return (lambda images: images) if system.datatypes == ("UINT8",) else system.normalise


def _views(images: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield four views of the photos: as served, flipped, and two crops."""
    side = images.shape[1]
    part = side * 3 // 4
    yield images
    yield images[:, :, ::-1]
    for start, turned in ((0, False), (side - part, True)):
        parts = images[:, start : start + part, start : start + part]
        parts = parts[:, :, ::-1] if turned else parts
        yield np.stack(
            [
                np.asarray(
                    Image.fromarray(np.ascontiguousarray(photo)).resize(
                        (side, side), Image.Resampling.BICUBIC
                    )
                )
                for photo in parts
            ]
        )


def deployment(system: PictureClassifier, path: Path, repository: Path) -> Deployment:
    """Return the deployment of the layer in `path`: each model of its network, with the new layer."""
    learned, targets = read_learned(path), dict[str, Target]()
    if learned.kept.lost:
        raise GourmetError(f"{path} forgot too much to be deployed: {learned.kept.losses()}")
    default, facts = system.default_model, dict[str, Any]()
    for name in dict.fromkeys((default, *model_names(repository))):
        version = newest_intact_version(repository / name)
        about = manifest.facts(version) if version else {}
        is_of_system = about.get("network", {}).get("system") == system.name
        forms = {about["file"]: about, **about.get("also", {})} if is_of_system else {}
        if version and forms and all(_holds(version / file, learned.initial_layer) for file in forms):
            if name == default:
                gated, facts = _Gated(system, learned, version), about
            first, *others = [gated.file(version, file, form) for file, form in forms.items()]
            files = [first, *(replace(other, is_optional=True) for other in others)]
            targets[name] = Target(name, files, compare=learned.compared)
        elif name == default:
            raise UsageError(
                f"{path} was learned on top of another network than {repository / name} serves: "
                "run `gourmet learn-more` again"
            )
    return Deployment(
        targets,
        {
            **{name: facts[name] for name in ("network", "accuracy", "preprocessing") if name in facts},
            "training": {"weights_sha256": manifest.sha256(path), "learned_more": list(learned.own)},
            "verified_on": "made-up pictures",
        },
        facts["calibration"],
    )


def _holds(file: Path, layer: Layer) -> bool:
    """Return True if the served file has this last layer's weights. An eight-bit file has its own bias."""
    try:
        return np.array_equal(OnnxLayer.read(file).layer.weight, layer.weight)
    except (GourmetError, OSError):
        return False


class _Gated:
    """Served files with the new layer, each compared with the layer's answers to the same photos."""

    def __init__(self, system: PictureClassifier, learned: Learned, version: Path) -> None:
        self._system, self._learned = system, learned
        self._photos = np.stack([system.pixels(photo) for photo in system.examples(_VERIFIED_ON, seed=0)])
        activations = OnnxLayer.read(version / NETWORK).activations(self._photos, prepared(system))
        self._expected = learned.layer(activations)

    def file(self, version: Path, file: str, form: dict[str, Any]) -> ModelFile:
        """Return a version's file, with the new layer in it."""
        learned = self._learned

        def write(path: Path) -> dict[str, Any]:
            served = OnnxLayer.read(version / file)
            bias = served.layer.bias + (learned.layer.bias - learned.initial_layer.bias)
            path.write_bytes(served.with_layer(Layer(learned.layer.weight, bias)))
            return {name: form[name] for name in _FORM if name in form}

        return ModelFile(file, write, self._verify)

    def _verify(self, path: Path) -> Sequence[Check]:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        tensor = session.get_inputs()[0]

        def served(pixels: npt.NDArray[Any]) -> Floats:
            rows = pixels if tensor.type == "tensor(uint8)" else self._system.normalise(pixels)
            return np.asarray(session.run(None, {tensor.name: rows})[0])

        if tensor.type != "tensor(uint8)" or self._system.datatypes == ("UINT8",):
            expected = self._expected  # of the first photos, or of all
            return same_answers.same_answers(lambda pixels: expected[: len(pixels)], served, self._photos)
        # Eight bits: how often it gives the layer's class, or one that is as likely.
        chosen = np.concatenate([served(self._photos[:1]), served(self._photos[1:])]).argmax(axis=1)
        right = np.take_along_axis(self._expected, chosen[:, np.newaxis], axis=1)[:, 0]
        share, goal = (
            float(np.mean(right >= self._expected.max(axis=1) - _TIE)),
            same_answers.MIN_AGREEMENT_MADE_UP,
        )
        what = f"top-1 agreement, {len(chosen)} pictures"
        return [Check(what, f"{share:.4f}", f"at least {goal}", share >= goal)]
