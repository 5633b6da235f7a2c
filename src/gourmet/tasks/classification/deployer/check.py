"""A served network asked about rows: noise, a file of them, or labelled pictures; and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gourmet.client.triton import Triton
from gourmet.contracts import LABELS_PARAMETER, ModelInfo
from gourmet.errors import GourmetError, UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.reports import page
from gourmet.reports.table import columns
from gourmet.tasks.checking import Replies, TimedServer, first_of
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.deployer.deployment import Rows, as_reference, example_rows, tolerance
from gourmet.tasks.classification.deployer.networks import MEAN, STD, Network, network_of
from gourmet.tasks.classification.gate import Answers
from gourmet.tasks.classification.labelled_pictures import ALL, LabelledPictures, decode
from gourmet.tasks.system_parts import Stage

_WORST: Final = 5
_SHOWN: Final = 5
# Where NVIDIA's scripts put the pictures of ImageNet that nobody trained on.
_VALIDATION: Final = "val-jpeg"


@dataclass(frozen=True)
class ClientOptions:
    """What to ask, and what to compare the answers with."""

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
class Examples:
    """Rows by name, read a batch at a time, and what each shows where that is known."""

    about: str
    names: Sequence[str]
    read: Callable[[int, int], Rows]
    classes: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class NetworkReport:
    """What came of it; shares are of the rows, None where there was nothing to compare with."""

    model: str
    protocol: str
    data: str
    rows: int
    batch_size: int
    top1: float | None
    complaints: tuple[str, ...]
    stopped: bool
    agreement: float | None = None
    largest_difference: float | None = None
    allowed_difference: float | None = None
    worst: tuple[dict[str, Any], ...] = ()  # the rows whose answers differ most

    def progress(self) -> str:
        return f"{self.rows} rows"

    def faults(self) -> list[str]:
        return list(self.complaints)

    def summary(self) -> str:
        lines = [("what", "found"), (f"rows asked over {self.protocol}", str(self.rows)), ("data", self.data)]
        if self.top1 is not None:
            lines.append(("top-1", f"{self.top1:.4f}"))
        if self.agreement is not None:
            lines.append(("agreement with the network", f"{self.agreement:.4f}"))
            lines.append(("largest difference", f"{self.largest_difference:.1e}"))
            lines.append(("allowed", f"{self.allowed_difference:.1e}"))
        return columns(lines)

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        return {**found, "faults": found.pop("complaints")}

    def page(self) -> str:
        return page.render(
            "tasks/classification/deployer/check.html", title=f"{self.model} asked", report=self
        )


@dataclass(frozen=True)
class RowBatch:
    """The rows of one request, by their places among all."""

    names: Sequence[str]
    first: int
    rows: Rows


# What was served, and what the network says, where that is known.
BothScores = tuple[Scores, Scores | None]


@dataclass(frozen=True)
class NetworkCheck:
    """A served network, the rows that it is asked about and, where it is known, the network itself."""

    info: ModelInfo
    options: ClientOptions
    protocol: str
    of: Examples
    reference: Answers | None
    say: Callable[[str], None]

    def __len__(self) -> int:
        return len(self.of.names)

    def questions(self) -> Iterator[RowBatch]:
        kind, size = np.float16 if self.options.half else np.float32, self.options.batch_size
        for first in range(0, len(self), size):
            names = self.of.names[first : first + size]
            yield RowBatch(names, first, self.of.read(first, first + len(names)).astype(kind))

    def ask(self, batch: RowBatch, server: TimedServer) -> BothScores:
        model = self.info.name
        outputs = server.infer(model, {self.info.inputs[0].name: batch.rows}).outputs
        answer: Scores = outputs[self.info.outputs[0].name].astype(np.float32)
        right = self.reference(batch.rows) if self.reference else None
        shape = answer.shape if right is None else right.shape
        if answer.shape != shape or len(answer) != len(batch.rows) or not np.isfinite(answer).all():
            raise GourmetError(
                f"{model} answered with {list(answer.shape)}, or with values that are not finite, where "
                f"{list(shape)} is expected: name the checkpoint that was deployed"
            )
        classes = ", ".join(map(str, answer.argmax(axis=1)[:_SHOWN]))
        self.say(f"rows {batch.first} to {batch.first + len(answer) - 1}: classes {classes}")
        return answer, right

    def score(self, replies: Replies[BothScores], stage: Stage) -> NetworkReport:
        if replies.failures:
            raise GourmetError(first_of(replies.failures))
        if not replies.answers:
            raise KeyboardInterrupt
        options, examples = self.options, self.of
        scores = np.concatenate([served for served, _ in replies.answers])
        right = [network for _, network in replies.answers if network is not None]
        chosen, classes = scores.argmax(axis=1), examples.classes
        top1 = None if classes is None else float((chosen == classes[: len(chosen)]).mean())
        faults, compared = [], {}
        if options.min_top1 is not None and top1 is None:
            faults.append(f"--min-top1 {options.min_top1} cannot be judged: {examples.about} carry no labels")
        elif options.min_top1 is not None and top1 is not None and top1 < options.min_top1:
            faults.append(f"top-1 is {top1:.4f}, below the {options.min_top1} that --min-top1 asks for")
        if right:
            compared = _compared(examples, scores, np.concatenate(right), options)
            agreement, largest = compared["agreement"], compared["largest_difference"]
            allowed = compared["allowed_difference"]
            if options.min_agreement is not None and agreement < options.min_agreement:
                faults.append(
                    f"agreement is {agreement:.4f}, below the {options.min_agreement} of --min-agreement"
                )
            if not largest <= allowed:
                faults.append(
                    f"answers differ from the network's by {largest:.1e}, where {allowed:.1e} is allowed"
                )
        return NetworkReport(
            model=options.model,
            protocol=self.protocol,
            data=examples.about,
            rows=len(scores),
            batch_size=options.batch_size,
            top1=top1,
            complaints=tuple(faults),
            stopped=replies.stopped,
            **compared,
        )


def _compared(examples: Examples, scores: Scores, right: Scores, options: ClientOptions) -> dict[str, Any]:
    """How the answers differ from the network's."""
    chosen, theirs, apart = scores.argmax(axis=1), right.argmax(axis=1), np.abs(scores - right).max(axis=1)
    return {
        "agreement": float((chosen == theirs).mean()),
        "largest_difference": float(apart.max()),
        "allowed_difference": options.max_difference or tolerance(right, half=options.half),
        "worst": tuple(
            {
                "name": examples.names[row],
                "difference": float(apart[row]),
                "served": int(chosen[row]),
                "network": int(theirs[row]),
            }
            for row in np.argsort(-apart)[:_WORST]
        ),
    }


def prepare(triton: Triton, options: ClientOptions, say: Callable[[str], None]) -> NetworkCheck:
    """The check of a served model; raise GourmetError where it cannot be asked so."""
    info = triton.describe(options.model)
    network = network_of(options.config, options.reference, options.seed) if options.reference else None
    examples = examples_of(info, options, network)
    reference = as_reference(network.module) if network else None
    return NetworkCheck(info, options, triton.protocol, examples, reference, say)


def examples_of(info: ModelInfo, options: ClientOptions, network: Network | None) -> Examples:
    """Those that `options` name, for a model that takes pictures; Triton refuses another precision."""
    shapes = [each.shape for each in info.inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] != 3:
        raise UsageError(
            f"{info.name} takes {', '.join(str(list(shape)) for shape in shapes)}; asked are networks of "
            "pictures, [N, 3, …]"
        )
    data, side = options.data, shapes[0][3]
    if data and data.is_dir():
        return _of_pictures(info, data, side, network)
    if data is None:
        rows = example_rows(side, options.count, options.seed)[: options.count]
        about = f"{len(rows)} rows of noise, seed {options.seed}"
    else:
        kind = np.dtype(np.float16 if options.half else np.float32)
        try:
            rows = np.frombuffer(data.read_bytes(), kind).reshape(-1, 3, side, side)
        except (OSError, ValueError) as exc:
            raise UsageError(
                f"--inference_data {data} is not whole rows of {kind} [3, {side}, {side}]: {exc}"
            ) from exc
        about = f"{len(rows)} rows of {data.name}"
    names = [f"row {number}" for number in range(len(rows))]
    return Examples(about, names, lambda first, last: rows[first:last])


def _of_pictures(info: ModelInfo, folder: Path, side: int, network: Network | None) -> Examples:
    """Prepared as the network of --config wants it, or else as those of ImageNet do."""
    mean, std = (network.mean, network.std) if network else (MEAN, STD)
    prepared = PictureClassifier(info.name, "", "", info.name, (), folder, side, mean=mean, std=std)
    folder = folder / _VALIDATION if (folder / _VALIDATION).is_dir() else folder
    said = info.parameters.get(LABELS_PARAMETER, "")
    labels = json.loads(said) if said else sorted(each.name for each in folder.iterdir() if each.is_dir())
    photos = LabelledPictures(tuple(labels)).listing(folder, ALL)

    def read(first: int, last: int) -> Rows:
        (pixels,) = decode([photos[first:last]], side)
        return prepared.normalise(pixels.images)

    classes = np.array([photo.class_id for photo in photos], dtype=np.int64)
    return Examples(f"{len(photos)} pictures of {folder}", [each.name for each in photos], read, classes)
