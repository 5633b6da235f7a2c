"""The model side of NVIDIA's deployer and its client: export a network for Triton, and measure the served
one.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from gourmet.client.deadline import Deadline
from gourmet.client.model_config import Config
from gourmet.client.triton import Triton
from gourmet.contracts import LABELS_PARAMETER, ModelInfo
from gourmet.deploying.target import Check, Deployment, Target
from gourmet.errors import GourmetError, UsageError
from gourmet.pictures.classifier import PictureClassifier
from gourmet.reports.table import columns
from gourmet.repository import versions
from gourmet.repository.config_file import model_config, tensor
from gourmet.runtime.manifest import facts as facts_of
from gourmet.serving.connect import LOADS_WITHIN_S
from gourmet.tasks.classification import gate, nvidia_networks, tensorrt_engine
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.formats import FORMATS, INPUT, OUTPUT, Format, eager
from gourmet.tasks.classification.gate import Answers
from gourmet.tasks.classification.labelled_pictures import ALL, LabelledPictures, decode
from gourmet.training.task import Tick

# Of the largest score, or of 1 where that is less. Half precision has eleven bits, and a hundred layers to
# lose some: se-resnext101-32x4d at random differs by 0.036, a ResNet18 by 0.0025.
TOLERANCE: Final = 1e-3
HALF_TOLERANCE: Final = 0.1
_MADE_BY: Final = "deployer"
# Where NVIDIA's scripts put the pictures of ImageNet that nobody trained on.
_VALIDATION: Final = "val-jpeg"
_SHOWN: Final = 5

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class DeployerOptions:
    """A network, its weights, and how it is written and served: the flags of `gourmet deployer`."""

    form: str
    config: str
    checkpoint: Path | None = None
    model: str = "model"
    version: int = 1
    batch_size: int = 16
    half: bool = False
    seed: int = 0
    labels: Sequence[str] = ()
    max_batch_size: int = 8
    delay_ms: float = 0.0  # 0 or less is static batching
    engines: int = 1
    no_cuda: bool = False  # on the CPU and nowhere else; where not, on a GPU if Triton has one
    # Of TensorRT alone.
    workspace: int = 0  # bytes that its builder may take
    trt_fp16: bool = False
    cuda_graphs: bool = True


@dataclass(frozen=True)
class Made:
    """A model ready to be deployed, and what it is to answer."""

    deployment: Deployment
    rows: Rows
    right: Scores
    allowed: float

    def ask(self, server: Triton, model: str) -> str:
        """What the served model says to a row, in a sentence; raise GourmetError unless it is the answer."""
        answer = server.infer(model, {INPUT: self.rows[:1]}).outputs.get(OUTPUT)
        if answer is None or answer.shape != self.right[:1].shape:
            raise GourmetError(
                f"the {model} that Triton serves is another model: it gives no {OUTPUT} like this one's"
            )
        difference = float(np.abs(answer - self.right[:1]).max())
        if not difference <= self.allowed:
            raise GourmetError(
                f"the {model} that Triton serves answers otherwise than the network, by {difference:.1e} "
                f"where {self.allowed:.1e} is allowed: is its repository the --save-dir?"
            )
        return f"{model} answers over {server.protocol}: within {difference:.1e} of the network"


def made(options: DeployerOptions, repository: Path, tick: Tick) -> Made:
    """Read the checkpoint; raise GourmetError for anything that can be refused before the work."""
    form = FORMATS.get(options.form) or tensorrt_engine.engine_format(
        rows=max(options.max_batch_size, options.batch_size, 2),
        usual_rows=max(options.max_batch_size, 1),
        workspace=options.workspace,
        half=options.trt_fp16,
    )
    _check_place(repository / options.model, options, form)
    network = nvidia_networks.network_of(
        options.config, options.checkpoint, options.seed, len(options.labels)
    )
    tick(0.2, "computing its answers")
    rows = _noise(network.side, max(2, options.batch_size), options.seed)
    rows = rows.astype(np.float16) if options.half else rows
    reference = _reference(network)
    right = reference(rows)
    if not np.isfinite(right).all():
        raise GourmetError(f"{options.config} itself has answers that are not finite: check its weights")
    allowed = _tolerance(right, half=options.half or (options.form == "trt" and options.trt_fp16))
    tick(0.4, f"exporting {options.form}")
    served = copy.deepcopy(network.module).half() if options.half else network.module

    def build(path: Path) -> dict[str, Any]:
        facts = form.write(served, torch.from_numpy(rows[:2]), path)
        return {**facts, "input": f"{rows.dtype} [N, 3, {network.side}, {network.side}]"}

    def compare(answers: Answers) -> Sequence[Check]:
        sizes = sorted({1, 2, len(rows)})
        return list(gate.near_answers(lambda asked: right[: len(asked)], answers, rows, sizes, allowed))

    verify = gate.verify(form.open, compare)
    config = config_of(options, form, network.side, right.shape[1])
    target = Target(options.model, form.file, build, verify, config, options.labels, replaces=True)
    facts = {
        _MADE_BY: options.form,
        "network": {"config": options.config, "outputs": right.shape[1]},
        "training": nvidia_networks.weights_of(options.checkpoint, options.seed),
        "preprocessing": {"size": network.side, "mean": network.mean, "std": network.std},
    }
    return Made(Deployment({options.form: target}, facts), rows, right, allowed)


def config_of(options: DeployerOptions, form: Format, side: int, outputs: int) -> Config:
    """Return Triton's config for a network with this number of outputs and square pictures of this side."""
    full, kind = options.max_batch_size, "FP16" if options.half else "FP32"
    rows = [] if full else [-1]
    labels = {LABELS_PARAMETER: json.dumps(options.labels, ensure_ascii=False)} if options.labels else {}
    config = model_config(
        options.model,
        form.backend,
        full,
        tensor(INPUT, kind, [*rows, 3, side, side], layout="NCHW" if full else ""),
        tensor(OUTPUT, kind, [*rows, outputs], has_labels=bool(labels)),
        kind="CPU" if options.no_cuda else "AUTO",
        instances=options.engines,
        parameters=labels,
    )
    config |= {"platform": form.platform, "cc_model_filenames": dict(form.by_capability)}
    if options.delay_ms > 0:
        config["dynamic_batching"] = {
            "max_queue_delay_microseconds": round(1000 * options.delay_ms),
            "preferred_batch_size": sorted({max(1, full // 2), full}),
        }
    if form.platform == "tensorrt_plan":
        config["optimization"] = {"cuda": {"graphs": bool(options.cuda_graphs)}}
    return config


def _check_place(model: Path, options: DeployerOptions, form: Format) -> None:
    """Refuse a folder that holds somebody else's model, or other versions in another format."""
    for number in versions(model) if model.exists() else ():
        about = facts_of(model / str(number))
        if _MADE_BY not in about:
            raise UsageError(
                f"{model} holds a model that the deployer did not make: choose another --triton-model-name, "
                "or another --save-dir"
            )
        if number != options.version and about.get("file") != form.file:
            raise UsageError(
                f"version {number} of {model} is {about.get('file')}, and all versions of a model have one "
                f"format: replace it with --triton-model-version {number}, or choose another "
                "--triton-model-name"
            )


def _reference(network: nvidia_networks.Network) -> Answers:
    """The eager network, which computes in full precision whatever it is given."""
    answers = eager(network.module)
    return lambda rows: answers(rows.astype(np.float32))


def _noise(side: int, count: int, seed: int) -> Rows:
    """Rows of noise, normalised as pictures are."""
    return np.random.default_rng(seed).standard_normal((count, 3, side, side)).astype(np.float32)


def _tolerance(scores: Scores, *, half: bool) -> float:
    """Return the difference that two programs may have in scores of this size."""
    return (HALF_TOLERANCE if half else TOLERANCE) * max(1.0, float(np.abs(scores).max()))


# The client


@dataclass(frozen=True)
class ClientOptions:
    """The questions of the client, and the answers to compare with."""

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


@dataclass(frozen=True)
class NetworkReport:
    """The client's result; shares are of the rows, None where there was nothing to compare with."""

    model: str
    protocol: str
    data: str
    rows: int
    batch_size: int
    top1: float | None
    agreement: float | None
    largest_difference: float | None
    allowed_difference: float | None
    faults: tuple[str, ...]

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
        return asdict(self)


def ask(triton: Triton, options: ClientOptions, tick: Tick, say: Callable[[str], None]) -> NetworkReport:
    """Ask the served model for one row and describe the answer; raise GourmetError unless it is the
    network's.
    """
    info = triton.describe(options.model)
    named = options.reference is not None
    network = nvidia_networks.network_of(options.config, options.reference, options.seed) if named else None
    reference = _reference(network) if network else None
    count, about, read, classes = _rows(info, options, network)
    scores, right = list[Scores](), list[Scores]()
    for first in range(0, count, options.batch_size):
        rows = read(first, min(count, first + options.batch_size))
        rows = rows.astype(np.float16 if options.half else np.float32)
        given = {info.inputs[0].name: rows}
        answer = triton.infer(info.name, given, Deadline(LOADS_WITHIN_S)).outputs[info.outputs[0].name]
        expected = reference(rows) if reference else None
        shape = (len(rows), *answer.shape[1:]) if expected is None else expected.shape
        if answer.shape != shape or not np.isfinite(answer).all():
            raise GourmetError(
                f"{info.name} answered with {list(answer.shape)}, or with values that are not finite, where "
                f"{list(shape)} is expected: name the checkpoint that was deployed"
            )
        scores.append(answer.astype(np.float32))
        right += [expected] if expected is not None else []
        chosen = ", ".join(map(str, answer.argmax(axis=1)[:_SHOWN]))
        say(f"rows {first} to {first + len(rows) - 1}: classes {chosen}")
        tick((first + len(rows)) / count, f"{first + len(rows)}/{count}")
    return _report(triton.protocol, options, about, np.concatenate(scores), right, classes)


def _report(
    protocol: str,
    options: ClientOptions,
    about: str,
    scores: Scores,
    right: Sequence[Scores],
    classes: npt.NDArray[np.int64] | None,
) -> NetworkReport:
    chosen, faults = scores.argmax(axis=1), list[str]()
    top1 = None if classes is None else float((chosen == classes).mean())
    agreement = largest = allowed = None
    if options.min_top1 is not None and top1 is None:
        faults.append(f"--min-top1 {options.min_top1} cannot be judged: {about} carry no labels")
    elif options.min_top1 is not None and top1 is not None and top1 < options.min_top1:
        faults.append(f"top-1 is {top1:.4f}, below the {options.min_top1} that --min-top1 asks for")
    if right:
        expected = np.concatenate(right)
        agreement = float((chosen == expected.argmax(axis=1)).mean())
        largest = float(np.abs(scores - expected).max())
        allowed = options.max_difference or _tolerance(expected, half=options.half)
        if options.min_agreement is not None and agreement < options.min_agreement:
            faults.append(
                f"agreement is {agreement:.4f}, below the {options.min_agreement} of --min-agreement"
            )
        if not largest <= allowed:
            faults.append(
                f"answers differ from the network's by {largest:.1e}, where {allowed:.1e} is allowed"
            )
    size, figures = options.batch_size, (top1, agreement, largest, allowed)
    return NetworkReport(options.model, protocol, about, len(scores), size, *figures, tuple(faults))


Read = Callable[[int, int], Rows]


def _rows(
    info: ModelInfo, options: ClientOptions, network: nvidia_networks.Network | None
) -> tuple[int, str, Read, npt.NDArray[np.int64] | None]:
    """Return the number of rows, their kind, a function that reads some, and their classes if known."""
    shapes = [each.shape for each in info.inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] != 3:
        raise UsageError(
            f"{info.name} takes {', '.join(str(list(shape)) for shape in shapes)}; asked are networks of "
            "pictures, [N, 3, …]"
        )
    data, side = options.data, shapes[0][3]
    if data and data.is_dir():
        return _pictures(info, data, side, network)
    if data is None:
        rows = _noise(side, options.count, options.seed)
        about = f"{len(rows)} rows of noise, seed {options.seed}"
        return len(rows), about, lambda first, last: rows[first:last], None
    kind = np.dtype(np.float16 if options.half else np.float32)
    try:
        rows = np.frombuffer(data.read_bytes(), kind).reshape(-1, 3, side, side)
    except (OSError, ValueError) as exc:
        raise UsageError(
            f"--inference_data {data} is not whole rows of {kind} [3, {side}, {side}]: {exc}"
        ) from exc
    return len(rows), f"{len(rows)} rows of {data.name}", lambda first, last: rows[first:last], None


def _pictures(
    info: ModelInfo, folder: Path, side: int, network: nvidia_networks.Network | None
) -> tuple[int, str, Read, npt.NDArray[np.int64] | None]:
    """Prepared as the network of --config wants it, or else as those of ImageNet do."""
    mean, std = (network.mean, network.std) if network else (nvidia_networks.MEAN, nvidia_networks.STD)
    prepared = PictureClassifier(info.name, "", "", info.name, (), folder, side, mean=mean, std=std)
    folder = folder / _VALIDATION if (folder / _VALIDATION).is_dir() else folder
    told = info.parameters.get(LABELS_PARAMETER, "")
    labels = json.loads(told) if told else sorted(each.name for each in folder.iterdir() if each.is_dir())
    photos = LabelledPictures(tuple(labels)).listing(folder, ALL)

    def read(first: int, last: int) -> Rows:
        (pixels,) = decode([photos[first:last]], side)
        return prepared.normalise(pixels.images)

    classes = np.array([photo.class_id for photo in photos], dtype=np.int64)
    return len(photos), f"{len(photos)} pictures of {folder}", read, classes
