"""The photos that all contenders get, and the expected answers: the same ONNX file without a server."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import onnxruntime as ort

from gourmet import repository
from gourmet.measure.validity import WrongAnswers
from gourmet.pictures.classifier import Floats
from gourmet.pictures.decode import Pixels
from gourmet.pictures.drawn import views
from gourmet.systems.food11 import contract

SERVERS: Final = Path(__file__).resolve().parent / "servers"
# TorchScript and ONNX Runtime, or one thread and two, round differently; answers that differ by more
# than this are of other pixels or another model.
TOLERANCE: Final = 2e-3
_MAX_ALIKE: Final = 0.1

# Everybody serves the same file, of the default model: the network in eight bits.
MODEL: Final = "food_classifier_int8"

Decode = Callable[[bytes], Pixels]
Decoder = Literal["ours", "peers"]

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


def served() -> Path:
    """Return the ONNX file that everybody serves."""
    folder = repository.DEFAULT / MODEL
    return folder / str(repository.versions(folder)[-1]) / "model.onnx"


# The probabilities [photos, labels], by the name of a set of photos, and by who decodes them.
Expected = Mapping[tuple[str, Decoder], Floats]


def expected_answers(sets: Mapping[str, PhotoSet]) -> Expected:
    """Return the right answers for photos that we decode, and for those that peers decode plainly."""
    plain: Decode = runpy.run_path(str(SERVERS / "plain.py"))["decode"]
    decoders: dict[Decoder, Decode] = {"ours": contract.SYSTEM.pixels, "peers": plain}
    return {
        (name, decoder): _rows(photo_set.photos, decode)
        for name, photo_set in sets.items()
        for decoder, decode in decoders.items()
    }


def differences(expected: Expected, sets: Mapping[str, PhotoSet]) -> list[str]:
    """Describe how much our decoding changes the answers."""
    lines = []
    for name in sets:
        ours, theirs = expected[name, "ours"], expected[name, "peers"]
        same = int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
        apart = np.abs(ours - theirs).max(axis=1)
        lines.append(
            f"{name} photos decoded plainly: the same label for {same} of {len(ours)}; "
            f"probabilities apart by {np.median(apart):.4f} in the median and {apart.max():.4f} at most"
        )
    return lines


def _rows(photos: Sequence[bytes], decode: Decode) -> Floats:
    """Return the probabilities [photos, labels]; raise unless nine of ten photos have their own."""
    answer = answering()
    expected = np.array([answer(decode(photo)) for photo in photos])
    apart = np.abs(expected[:, np.newaxis] - expected[np.newaxis]).max(axis=2)
    # A network is equally sure of some photos. Thousands of answers show a mix-up if most photos differ.
    if len(photos) > 1 and (np.partition(apart, 1, axis=1)[:, 1] <= 2 * TOLERANCE).mean() > _MAX_ALIKE:
        raise WrongAnswers("many photos have the same answer: mixed-up rows would not show")
    return expected


def checked(photos: Sequence[bytes], right: Floats, threads: int) -> Callable[[int], None]:
    """Return a function that classifies a photo by its number, without a server."""
    answer = answering(threads)

    def classify(number: int) -> None:
        photo = number % len(photos)
        probabilities = answer(contract.SYSTEM.pixels(photos[photo]))
        if not float(np.abs(probabilities - right[photo]).max()) <= TOLERANCE:
            raise WrongAnswers(f"photo {photo} has another answer on {threads} threads")

    return classify


def answering(threads: int = 0) -> Callable[[Pixels], Floats]:
    """Return a function from pixels to probabilities, on `threads` threads (0: ONNX Runtime's choice)."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # what goes wrong is raised
    session: Any = ort.InferenceSession(str(served()), options, providers=["CPUExecutionProvider"])
    (name,), names = ([tensor.name for tensor in of()] for of in (session.get_inputs, session.get_outputs))

    def answer(pixels: Pixels) -> Floats:
        outputs = dict(zip(names, session.run(names, {name: pixels[np.newaxis]}), strict=True))
        probabilities: Floats = contract.SYSTEM.read(outputs)[0]
        return probabilities

    return answer


def complaint(body: bytes, expected: Floats) -> str | None:
    """Return the fault of an answer or None: check its label and all its probabilities."""
    right = dict(zip(contract.SYSTEM.labels, expected, strict=True))
    try:
        answer: Any = json.loads(body)
        stated = {entry["label"]: entry["probability"] for entry in (answer, *answer["top"])}
        wrong = [label for label, share in stated.items() if not abs(share - right[label]) <= TOLERANCE]
        if right[answer["label"]] < expected.max() - TOLERANCE:
            wrong.append(answer["label"])
    except (KeyError, TypeError, ValueError) as exc:
        return f"not an answer of a food model ({exc!r}): {body[:200].decode(errors='replace')}"
    return f"{', '.join(wrong)} in {stated}" if wrong else None
