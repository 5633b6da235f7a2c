"""The photos that all contenders get, and the expected answers: the same ONNX file without a server."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from gourmet import repository
from gourmet.client.model_config import as_json
from gourmet.measure.validity import WrongAnswers
from gourmet.pictures.classifier import Floats
from gourmet.pictures.decode import Pixels
from gourmet.pictures.drawn import views
from gourmet.runtime.instances import parameter
from gourmet.systems.food11 import contract

SERVERS: Final = Path(__file__).resolve().parent / "servers"
# TorchScript and ONNX Runtime, or one thread and two, round differently; answers that differ by more
# than this are of other pixels or another model.
TOLERANCE: Final = 2e-3
_MAX_ALIKE: Final = 0.1

Decode = Callable[[bytes], Pixels]

_SEED: Final = 11


@dataclass(frozen=True)
class PhotoSet:
    """Different photos of one size, the same ones every time; a large one takes a second to draw."""

    name: str
    count: int
    width: int
    height: int
    quality: int

    @cached_property
    def photos(self) -> tuple[bytes, ...]:
        size = self.width, self.height
        sample = contract.SYSTEM.sample()
        return tuple(views(sample, self.count, size=size, seed=_SEED, quality=self.quality))

    def __str__(self) -> str:
        kilobytes = [len(photo) / 1000 for photo in self.photos]
        return (
            f"{self.name}: {self.count} photos of {self.width}×{self.height}, JPEG quality {self.quality}, "
            f"{min(kilobytes):.0f} to {max(kilobytes):.0f} kB"
        )


# As on the web, and as from phones.
SETS: Final = {"small": PhotoSet("small", 64, 400, 300, 85), "phone": PhotoSet("phone", 8, 4000, 3000, 92)}


@dataclass(frozen=True)
class Model:
    """A served ONNX file, and the values to read its answers with."""

    name: str
    path: Path
    temperature: float

    @classmethod
    def served(cls, name: str) -> Model:
        folder = repository.DEFAULT / name
        path = folder / str(repository.versions(folder)[-1]) / "model.onnx"
        config = as_json(repository.read_config(folder))
        temperature = float(parameter(config, "temperature") or 1)
        return cls(name, path, temperature)

    @property
    def labels(self) -> Path:
        return self.path.parents[1] / "labels.txt"


def plain_decode() -> Decode:
    """Return the peers' own function that decodes a photo."""
    decode: Decode = runpy.run_path(str(SERVERS / "plain.py"))["decode"]
    return decode


@dataclass(frozen=True, order=True)
class Way:
    """A model and a way of decoding, which together determine the right answers."""

    model: str
    plainly: bool  # decoded at full size

    @property
    def usual(self) -> Way:
        """The same model with our decoding, as a reference."""
        return Way(self.model, False)


# The probabilities [photos, labels], by the name of a set of photos.
Expected = Mapping[tuple[str, Way], Floats]


def expected_answers(ways: Sequence[Way], sets: Mapping[str, PhotoSet]) -> Expected:
    """Return the right answers of every way, and of the usual one."""
    plain = plain_decode()
    return {
        (name, way): _rows(
            Model.served(way.model),
            drawn.photos,
            plain if way.plainly else contract.SYSTEM.pixels,
        )
        for name, drawn in sets.items()
        for way in sorted({*ways, *(way.usual for way in ways)})
    }


def differences(expected: Expected) -> list[str]:
    """Describe how much our decoding changes the answers."""
    lines = []
    for (name, way), theirs in expected.items():
        if way == way.usual:
            continue
        ours = expected[name, way.usual]
        same = int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
        apart = np.abs(ours - theirs).max(axis=1)
        lines.append(
            f"{name} photos, {way.model}, decoded plainly: the same label for {same} of {len(ours)}; "
            f"probabilities apart by {np.median(apart):.4f} in the median and {apart.max():.4f} at most"
        )
    return lines


def _rows(model: Model, photos: Sequence[bytes], decode: Decode) -> Floats:
    """Return the probabilities [photos, labels]; raise unless nine of ten photos have their own."""
    answer = answering(model)
    expected = np.array([answer(decode(photo)) for photo in photos])
    apart = np.abs(expected[:, np.newaxis] - expected[np.newaxis]).max(axis=2)
    # A network is equally sure of some photos. Thousands of answers show a mix-up if most photos differ.
    if len(photos) > 1 and (np.partition(apart, 1, axis=1)[:, 1] <= 2 * TOLERANCE).mean() > _MAX_ALIKE:
        raise WrongAnswers(f"many photos have the same answer of {model.name}: mixed-up rows would not show")
    return expected


def checked(model: Model, photos: Sequence[bytes], right: Floats, threads: int) -> Callable[[int], None]:
    """Return a function that classifies a photo by its number, without a server."""
    answer = answering(model, threads)

    def classify(number: int) -> None:
        photo = number % len(photos)
        probabilities = answer(contract.SYSTEM.pixels(photos[photo]))
        if not float(np.abs(probabilities - right[photo]).max()) <= TOLERANCE:
            raise WrongAnswers(f"{model.name} answers photo {photo} differently on {threads} threads")

    return classify


def answering(model: Model, threads: int = 0) -> Callable[[Pixels], Floats]:
    """Return a function from pixels to probabilities, on `threads` threads (0: ONNX Runtime's choice)."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # what goes wrong is raised
    session = ort.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])
    model_input, names = session.get_inputs()[0], [output.name for output in session.get_outputs()]
    run: Any = session.run

    def answer(pixels: Pixels) -> Floats:
        row = pixels if model_input.type == "tensor(uint8)" else contract.SYSTEM.normalise(pixels)
        outputs = dict(zip(names, run(names, {model_input.name: row[np.newaxis]}), strict=True))
        probabilities: Floats = contract.SYSTEM.read(outputs, model.temperature)[0]
        return probabilities

    return answer


def complaint(body: bytes, expected: Floats) -> str | None:
    """Return the fault of an answer or None: check its label and all its probabilities."""
    try:
        answer: Any = json.loads(body)
        stated = [(answer["label"], answer["probability"])]
        stated += [(entry["label"], entry["probability"]) for entry in answer["top"]]
        off = [
            f"{label} {probability:.4f} instead of {expected[contract.SYSTEM.labels.index(label)]:.4f}"
            for label, probability in stated
            if not abs(probability - expected[contract.SYSTEM.labels.index(label)]) <= TOLERANCE
        ]
        best = expected[contract.SYSTEM.labels.index(answer["label"])]
    except (KeyError, TypeError, ValueError) as exc:
        return f"not an answer of a food model ({exc!r}): {body[:200].decode(errors='replace')}"
    if off:
        return ", ".join(off)
    if best < expected.max() - TOLERANCE:
        return f"{answer['label']} instead of {contract.SYSTEM.labels[int(expected.argmax())]}"
    return None
