"""A served network asked about rows: noise, a file of them, or labelled pictures; and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from gourmet.contracts import LABELS_PARAMETER, ModelInfo
from gourmet.errors import GourmetError, UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import PictureError, square_pixels
from gourmet.reports import page
from gourmet.reports.table import columns
from gourmet.serving.either import Asked
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.deployer.deployment import (
    Rows,
    as_reference,
    example_rows,
    network_of,
    tolerance,
)
from gourmet.tasks.classification.deployer.networks import Network
from gourmet.tasks.classification.labelled_pictures import ALL, LabelledPictures
from gourmet.training.task import Tick

_TYPES: Final = {"FP32": np.float32, "FP16": np.float16}
# Where NVIDIA's scripts put the pictures of ImageNet that nobody trained on.
_VALIDATION: Final = "val-jpeg"
_WORST: Final = 5
_SHOWN: Final = 5


@dataclass(frozen=True)
class Wanted:
    """What to ask, and what to hold the answers against."""

    model: str
    batch_size: int = 1
    half: bool = False
    data: Path | None = None
    count: int = 64
    seed: int = 0
    config: str = ""
    reference: Path | None = None
    min_top1: float | None = None
    min_agreement: float | None = None
    max_difference: float | None = None

    def __post_init__(self) -> None:
        if self.reference and not self.config:
            raise UsageError("--reference needs --config, which says what network the checkpoint is of")
        if not self.reference and (self.min_agreement is not None or self.max_difference is not None):
            raise UsageError("--min-agreement and --max-difference need a --reference to compare with")


@dataclass(frozen=True)
class Question:
    """Rows by name, read a batch at a time, and what each shows where that is known."""

    about: str
    names: Sequence[str]
    read: Callable[[int, int], Rows]
    classes: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Difference:
    """A row whose answer differs from the network's, and by how much."""

    name: str
    difference: float
    served: int
    network: int


@dataclass(frozen=True)
class Report:
    """What came of it; shares are of the rows, None where there was nothing to compare with."""

    model: str
    protocol: str
    data: str
    rows: int
    batch_size: int
    top1: float | None
    agreement: float | None
    largest_difference: float | None
    allowed_difference: float | None
    worst: tuple[Difference, ...]
    faults: tuple[str, ...]

    def summary(self) -> str:
        return columns([("what", "found"), *self._lines()])

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    def page(self) -> str:
        return page.render(
            "tasks/classification/deployer/client.html", title=f"{self.model} asked", report=self
        )

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield f"rows asked over {self.protocol}", str(self.rows)
        yield "data", self.data
        if self.top1 is not None:
            yield "top-1", f"{self.top1:.4f}"
        if self.agreement is not None:
            yield "agreement with the network", f"{self.agreement:.4f}"
            yield "largest difference", f"{self.largest_difference:.1e}"
            yield "allowed", f"{self.allowed_difference:.1e}"


def ask(server: Asked, wanted: Wanted, tick: Tick, say: Callable[[str], None]) -> Report:
    """Ask about every row; raise GourmetError where the model cannot be asked like this."""
    info = server.describe(wanted.model)
    side = _side(info, wanted)
    network = network_of(wanted.config, wanted.reference, wanted.seed)[0] if wanted.reference else None
    question = _question(info, wanted, side, network)
    reference = as_reference(network.module) if network else None
    kind = _TYPES["FP16" if wanted.half else "FP32"]
    answers, right = [], []
    for first in range(0, len(question.names), wanted.batch_size):
        rows = question.read(first, min(first + wanted.batch_size, len(question.names))).astype(kind)
        answer = server.infer(wanted.model, {info.inputs[0].name: rows})[info.outputs[0].name]
        answers.append(_whole(answer, rows, wanted.model))
        if reference:
            right.append(reference(rows))
        done = first + len(rows)
        say(f"rows {first} to {done - 1}: classes {', '.join(map(str, answer.argmax(axis=1)[:_SHOWN]))}")
        tick(done / len(question.names), f"{done} of {len(question.names)} rows")
    scores = np.concatenate(answers).astype(np.float32)
    return _report(server, wanted, question, scores, np.concatenate(right) if right else None)


def _side(info: ModelInfo, wanted: Wanted) -> int:
    """How large the pictures are that the model takes."""
    match info.inputs:
        case [only] if len(only.shape) == 4 and only.shape[1] == 3 and only.datatype in _TYPES:
            pass
        case _:
            takes = ", ".join(f"{each.name} {each.datatype} {list(each.shape)}" for each in info.inputs)
            raise UsageError(
                f"{info.name} takes {takes}; asked are networks of pictures, FP32 or FP16 [N, 3, …]"
            )
    if (only.datatype == "FP16") != wanted.half:
        raise UsageError(f"{info.name} takes {only.datatype}: {'drop' if wanted.half else 'add'} --fp16")
    if info.max_batch_size and wanted.batch_size > info.max_batch_size:
        raise UsageError(
            f"--batch_size {wanted.batch_size} is above the {info.max_batch_size} rows that {info.name} takes"
        )
    return only.shape[3]


def _question(info: ModelInfo, wanted: Wanted, side: int, network: Network | None) -> Question:
    data = wanted.data
    if data is None:
        rows = example_rows(side, wanted.count, wanted.seed)[: wanted.count]
        return _of_rows(rows, f"{len(rows)} rows of noise, seed {wanted.seed}")
    if data.is_dir():
        return _of_pictures(info, data, side, network)
    kind = np.dtype(_TYPES["FP16" if wanted.half else "FP32"])
    try:
        values = np.fromfile(data, kind)
    except OSError as exc:
        raise UsageError(f"--inference_data {data} cannot be read: {exc.strerror}") from exc
    row = 3 * side * side
    if not values.size or values.size % row:
        raise UsageError(
            f"--inference_data {data} has {data.stat().st_size} bytes, which are not whole rows of {kind} "
            f"[3, {side}, {side}], {row * kind.itemsize} bytes each"
        )
    return _of_rows(values.reshape(-1, 3, side, side), f"{values.size // row} rows of {data.name}")


def _of_rows(rows: Rows, about: str) -> Question:
    names = [f"row {number}" for number in range(len(rows))]
    return Question(about, names, lambda first, last: rows[first:last])


def _of_pictures(info: ModelInfo, folder: Path, side: int, network: Network | None) -> Question:
    """Prepared as the network of --config wants it, or else as those of ImageNet do."""
    prepared = PictureClassifier(info.name, info.name, "", info.name, (), folder, side)
    if network:
        prepared = PictureClassifier(
            info.name, info.name, "", info.name, (), folder, side, mean=network.mean, std=network.std
        )
    folder = folder / _VALIDATION if (folder / _VALIDATION).is_dir() else folder
    said = info.parameters.get(LABELS_PARAMETER, "")
    labels = json.loads(said) if said else sorted(each.name for each in folder.iterdir() if each.is_dir())
    photos = LabelledPictures(tuple(labels)).listing(folder, ALL)

    def read(first: int, last: int) -> Rows:
        batch = []
        for photo, picture in zip(photos[first:last], LabelledPictures.read(photos[first:last]), strict=True):
            try:
                batch.append(square_pixels(picture, side))
            except PictureError as exc:
                raise GourmetError(f"{photo.name} cannot be used: {exc}") from exc
        return prepared.normalise(np.stack(batch))

    classes = np.array([photo.class_id for photo in photos], dtype=np.int64)
    return Question(f"{len(photos)} pictures of {folder}", [each.name for each in photos], read, classes)


def _whole(answer: Rows, rows: Rows, model: str) -> Rows:
    if answer.ndim != 2 or len(answer) != len(rows) or not np.isfinite(answer).all():
        raise GourmetError(
            f"{model} answered {len(rows)} rows with {list(answer.shape)}, or with values that are not finite"
        )
    return answer


def _report(
    server: Asked, wanted: Wanted, question: Question, scores: Scores, right: Scores | None
) -> Report:
    chosen = scores.argmax(axis=1)
    top1 = None if question.classes is None else float((chosen == question.classes).mean())
    agreement = largest = allowed = None
    worst: list[Difference] = []
    if right is not None:
        if right.shape != scores.shape:
            raise GourmetError(
                f"{wanted.model} gives {scores.shape[1]} scores a row and {wanted.config} of "
                f"{wanted.reference} {right.shape[1]}: name the checkpoint that was deployed"
            )
        theirs, apart = right.argmax(axis=1), np.abs(scores - right).max(axis=1)
        agreement, largest = float((chosen == theirs).mean()), float(apart.max())
        allowed = wanted.max_difference or tolerance(right, half=wanted.half)
        worst = [
            Difference(question.names[row], float(apart[row]), int(chosen[row]), int(theirs[row]))
            for row in np.argsort(-apart)[:_WORST]
        ]
    faults = []
    if wanted.min_top1 is not None and top1 is None:
        faults.append(f"--min-top1 {wanted.min_top1} cannot be judged: {question.about} carry no labels")
    elif wanted.min_top1 is not None and top1 is not None and top1 < wanted.min_top1:
        faults.append(f"top-1 is {top1:.4f}, below the {wanted.min_top1} that --min-top1 asks for")
    if wanted.min_agreement is not None and agreement is not None and agreement < wanted.min_agreement:
        faults.append(f"agreement is {agreement:.4f}, below the {wanted.min_agreement} of --min-agreement")
    if largest is not None and allowed is not None and largest > allowed:
        faults.append(f"answers differ from the network's by {largest:.1e}, where {allowed:.1e} is allowed")
    return Report(
        model=wanted.model,
        protocol=server.protocol,
        data=question.about,
        rows=len(scores),
        batch_size=wanted.batch_size,
        top1=top1,
        agreement=agreement,
        largest_difference=largest,
        allowed_difference=allowed,
        worst=tuple(worst),
        faults=tuple(faults),
    )
