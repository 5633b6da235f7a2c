"""Compare a classifier with the served one, on labelled pictures and on kept activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import numpy as np

from gourmet.errors import GourmetError
from gourmet.evaluation.accuracy import Classes
from gourmet.evaluation.calibration import Calibration, calibration_of
from gourmet.evaluation.picture_scores import LabelledScores, shares
from gourmet.evaluation.rehearsal import Rehearsal, read_rehearsal
from gourmet.evaluation.same_answers import BATCHES, Answers, Pixels
from gourmet.evaluation.system_parts import BadData, Data, EmptyPart
from gourmet.pictures.certainty import relevance
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.label_folders import OTHER
from gourmet.progress import ReportProgress
from gourmet.repository.gate import Comparison, Measure, comparison_of
from gourmet.served import manifest
from gourmet.training.linear_layer import Layer, OnnxLayer

# Allowed drop in points, overall and per class; at least two pictures.
MARGIN: Final = 2.0
CLASS_MARGIN: Final = 5.0
_FEW: Final = 2
_OF_EACH: Final = 120
_MADE_UP: Final = 120
CALIBRATION: Final = "calibration"
# The same network beside a file of another format.
ONNX: Final = "model.onnx"


@dataclass(frozen=True)
class HeldOut:
    """Held-out pictures and their classes; a class equal to the number of labels means none of them."""

    images: Pixels
    classes: Classes

    @classmethod
    def of(cls, system: PictureClassifier, data: Data, folder: Path) -> HeldOut | None:
        """Read the test part of `folder`, or its validation part; return None if it has neither."""
        for part in ("test", "validation"):
            with suppress(EmptyPart if part == "validation" else BadData):  # which it may not have
                examples = [*data.listing(folder, part, _OF_EACH * len(system.labels))]
                break
        else:
            return None
        if system.subject and OTHER in data.parts(folder):
            with suppress(EmptyPart):
                examples += data.listing(folder, OTHER, _OF_EACH)
        images = [system.pixels(picture) for picture in data.read(examples)]
        classes = [example.class_id for example in examples]
        if system.subject:
            nothing = [system.pixels(picture) for picture in system.nothing(_MADE_UP, 2)]
            images += nothing
            classes += [len(system.labels)] * len(nothing)
        return cls(np.stack(images), np.array(classes))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A network to deploy, and the data to compare it on."""

    system: PictureClassifier
    data: Data
    folder: Path | None  # of labelled pictures
    answers: Answers  # asked with pixels
    calibration: Calibration
    weights_sha256: str
    layer: Layer | None = None  # its last one
    before: str = ""  # a digest of those before that
    known: Rehearsal | None = None  # kept beside its weights
    are_probabilities: bool = False

    def comparing(
        self, file: str, open_file: Callable[[Path], Answers], *, are_probabilities: bool = False
    ) -> Callable[[Path, ReportProgress], Comparison]:
        """Return a function that compares a version, whose `file` `open_file` opens, with the candidate."""

        def compare(version: Path, tick: ReportProgress) -> Comparison:
            tick(0.0, "reading pictures that are held out")
            held_out = self._read_held_out

            def measure(served: Answers) -> Iterator[Measure]:
                calibration = _calibration(version)
                yield from self._on_activations(version, file, calibration)
                if held_out:
                    tick(0.5, f"comparing on {len(held_out.images)} pictures")
                    before = self._shares(served, held_out, calibration, are_probabilities)
                    of = "photos" if self.system.subject else ""
                    yield from measures(of, before, self._on_held_out, self.system)

            return comparison_of(
                version,
                self.weights_sha256,
                partial(open_file, version / file),
                measure,
                self._reason_without_measure,
            )

        return compare

    @property
    def _reason_without_measure(self) -> str:
        if self.system.multi_label:
            return "a picture may have several labels, which nothing here measures"
        if self.folder is None:
            return "name labelled pictures with --data"
        return f"{self.folder} holds no picture out"

    @cached_property
    def _read_held_out(self) -> HeldOut | None:
        if self.folder is None or self.system.multi_label:
            return None
        return HeldOut.of(self.system, self.data, self.folder)

    @cached_property
    def _on_held_out(self) -> Mapping[str, tuple[float, int]]:
        """Measure the candidate on the held-out pictures, once for all formats."""
        assert self._read_held_out
        return self._shares(self.answers, self._read_held_out, self.calibration, self.are_probabilities)

    def _shares(
        self, answers: Answers, held_out: HeldOut, calibration: Calibration, are_probabilities: bool
    ) -> dict[str, tuple[float, int]]:
        batches = np.split(held_out.images, range(BATCHES[-1], len(held_out.images), BATCHES[-1]))
        rows = np.concatenate([answers(batch) for batch in batches])
        level = relevance(rows) if self.system.subject else None
        if are_probabilities:  # whose model applies the temperature itself
            level = rows.sum(axis=1) if self.system.subject else None
            rows, calibration = np.log(np.maximum(rows, 1e-12)), replace(calibration, temperature=1.0)
        return shares(LabelledScores(rows, held_out.classes, relevance=level), calibration, self.system)

    def _on_activations(self, version: Path, file: str, calibration: Calibration) -> Iterator[Measure]:
        """Compare on the shipped activations of photos that are not shipped."""
        if self.layer is None:
            return
        known = read_rehearsal(version / file, self.before, self.layer) or self.known
        if known is None:
            return
        served = None
        with suppress(GourmetError, OSError):  # of a layer that cannot be read: what the set says of it
            network = OnnxLayer.read(version / (file if file.endswith(".onnx") else ONNX))
            served = network.layer if network.before == self.before else None
        was = known.shares(served, calibration, self.system)
        now = known.shares(self.layer, self.calibration, self.system)
        yield from measures("kept", was, now, self.system)


def measures(
    of: str,
    served: Mapping[str, tuple[float, int]],
    candidate: Mapping[str, tuple[float, int]],
    system: PictureClassifier,
    class_margin: float = CLASS_MARGIN,
) -> Iterator[Measure]:
    for what, (before, count) in served.items():
        now = candidate[what][0]
        if math.isnan(before) or math.isnan(now) or what == "sure":
            continue
        margin = class_margin if what in system.labels else MARGIN
        chance = 1 / math.sqrt(count) if what == CALIBRATION else _FEW / count
        yield Measure(
            f"{what}, {of}" if of else what, count, 100 * before, 100 * now, max(margin, 100 * chance)
        )


def _calibration(version: Path) -> Calibration:
    path = version / manifest.MANIFEST
    return calibration_of(manifest.facts(version).get("calibration", {}), path)
