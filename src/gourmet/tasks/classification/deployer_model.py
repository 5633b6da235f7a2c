"""Export any network for Triton, as `gourmet deployer` does, and ask the served one, as its client does."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from gourmet.pictures.classifier import IMAGENET_MEAN, IMAGENET_STD, PictureClassifier
from gourmet.repository import versions
from gourmet.repository.config_file import model_config, tensor
from gourmet.runtime.manifest import facts as facts_of
from gourmet.runtime.manifest import sha256
from gourmet.serving.connect import LOADS_WITHIN_S
from gourmet.tasks.classification import gate
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.formats import FORMATS, INPUT, OUTPUT, Format, eager
from gourmet.tasks.classification.gate import Answers
from gourmet.tasks.classification.labelled_pictures import ALL, LabelledPictures, decode
from gourmet.tasks.classification.nvidia_networks import Network, network_of
from gourmet.tasks.classification.tensorrt_engine import engine_format
from gourmet.training.task import Tick

# Of the largest score, or of 1 where that is less; half precision has eleven bits. se-resnext101-32x4d at
# random differs by 0.036.
_TOLERANCE: Final = {False: 1e-3, True: 0.1}
_MADE_BY: Final = "deployer"
Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class DeployerOptions:
    """The flags of `gourmet deployer`."""

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
    delay_ms: float = 0.0
    engines: int = 1
    no_cuda: bool = False
    workspace: int = 0
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
        """Ask the served model for a row; raise GourmetError unless it answers as the network."""
        answer = server.infer(model, {INPUT: self.rows[:1]}).outputs.get(OUTPUT)
        if answer is None or answer.shape != self.right[:1].shape:
            raise GourmetError(f"the {model} that Triton serves is another model: it gives no such {OUTPUT}")
        difference = float(np.abs(answer - self.right[:1]).max())
        if not difference <= self.allowed:
            raise GourmetError(
                f"the {model} that Triton serves answers otherwise than the network, by {difference:.1e} "
                f"where {self.allowed:.1e} is allowed: is its repository the --save-dir?"
            )
        return f"{model} answers over {server.protocol}: within {difference:.1e} of the network"


def made(options: DeployerOptions, repository: Path, tick: Tick) -> Made:
    """Read the checkpoint and compute its answers; raise GourmetError if it cannot be deployed."""
    rows_at_most = max(options.max_batch_size, options.batch_size, 2)
    form = FORMATS.get(options.form) or engine_format(
        rows_at_most, max(options.max_batch_size, 1), options.workspace, half=options.trt_fp16
    )
    _check_free(repository / options.model, options.version, form.file)
    network = network_of(options.config, options.checkpoint, options.seed, len(options.labels))
    tick(0.2, "computing its answers")
    rows = _noise(network.size, max(2, options.batch_size), options.seed, half=options.half)
    right = _reference(network)(rows)
    if not np.isfinite(right).all():
        raise GourmetError(f"{options.config} itself has answers that are not finite: check its weights")
    allowed = _tolerance(right, half=options.half or (options.form == "trt" and options.trt_fp16))
    tick(0.4, f"exporting {options.form}")
    module = copy.deepcopy(network.module).half() if options.half else network.module

    def build(path: Path) -> dict[str, Any]:
        facts = form.write(module, torch.from_numpy(rows[:2]), path)
        return {**facts, "input": f"{rows.dtype} [N, 3, {network.size}, {network.size}]"}

    def compare(answers: Answers) -> Sequence[Check]:
        sizes = sorted({1, 2, len(rows)})
        return list(gate.near_answers(lambda some: right[: len(some)], answers, rows, sizes, allowed))

    config = config_of(options, form, network.size, right.shape[1])
    verify = gate.verify(form.open, compare)
    target = Target(options.model, form.file, build, verify, config, options.labels, replaces=True)
    training = {"weights": f"none: initialised at random from seed {options.seed}"}
    if options.checkpoint:
        training = {"weights": options.checkpoint.name, "weights_sha256": sha256(options.checkpoint)}
    facts = {
        _MADE_BY: options.form,
        "network": {"config": options.config, "outputs": right.shape[1]},
        "training": training,
        "preprocessing": {"size": network.size, "mean": network.mean, "std": network.std},
    }
    return Made(Deployment({options.form: target}, facts), rows, right, allowed)


def config_of(options: DeployerOptions, form: Format, size: int, outputs: int) -> Config:
    """Return Triton's config of a network with so many outputs and pictures of this size."""
    full, kind = options.max_batch_size, "FP16" if options.half else "FP32"
    rows = [] if full else [-1]
    config = model_config(
        options.model,
        form.backend,
        full,
        tensor(INPUT, kind, [*rows, 3, size, size], layout="NCHW" if full else ""),
        tensor(OUTPUT, kind, [*rows, outputs], has_labels=bool(options.labels)),
        kind="CPU" if options.no_cuda else "AUTO",
        instances=options.engines,
        parameters={LABELS_PARAMETER: json.dumps(options.labels)} if options.labels else {},
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


def _check_free(model: Path, version: int, file: str) -> None:
    """Refuse a folder with a model of another origin, or with other versions in another format."""
    for number in versions(model) if model.exists() else ():
        about, other = facts_of(model / str(number)), "choose another --triton-model-name or --save-dir"
        if _MADE_BY not in about:
            raise UsageError(f"{model} holds a model that the deployer did not make: {other}")
        if number != version and about.get("file") != file:
            raise UsageError(
                f"version {number} of {model} is {about.get('file')}, and all versions of a model have one "
                f"format: replace it with --triton-model-version {number}, or {other}"
            )


def _reference(network: Network) -> Answers:
    """Return the network's own answers, computed in full precision."""
    answers = eager(network.module)
    return lambda rows: answers(rows.astype(np.float32))


def _noise(size: int, count: int, seed: int, *, half: bool) -> Rows:
    rows = np.random.default_rng(seed).standard_normal((count, 3, size, size))
    return rows.astype(np.float32).astype(np.float16 if half else np.float32)


def _tolerance(scores: Scores, *, half: bool) -> float:
    return _TOLERANCE[half] * max(1.0, float(np.abs(scores).max()))


@dataclass(frozen=True)
class ClientOptions:
    """The flags of `gourmet deployer client`."""

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


def ask(
    triton: Triton, options: ClientOptions, tick: Tick, say: Callable[[str], None]
) -> tuple[dict[str, Any], list[str]]:
    """Ask the served model for all rows; return the figures, and why they are not good enough."""
    info = triton.describe(options.model)
    network = network_of(options.config, options.reference, options.seed) if options.reference else None
    count, data, read, classes = _rows(info, options, network)
    scores, right = list[Scores](), list[Scores]()
    for first in range(0, count, options.batch_size):
        rows = read(slice(first, min(count, first + options.batch_size)))
        rows = rows.astype(np.float16 if options.half else np.float32)
        sent = {info.inputs[0].name: rows}
        answer = triton.infer(info.name, sent, Deadline(LOADS_WITHIN_S)).outputs[info.outputs[0].name]
        right += [_reference(network)(rows)] if network else []
        shape = right[-1].shape if network else (len(rows), *answer.shape[1:])
        if answer.shape != shape or not np.isfinite(answer).all():
            raise GourmetError(
                f"{info.name} answered with {list(answer.shape)}, or with values that are not finite, where "
                f"{list(shape)} is expected: name the checkpoint that was deployed"
            )
        scores.append(answer.astype(np.float32))
        shown = ", ".join(map(str, answer.argmax(axis=1)[:5]))
        say(f"rows {first} to {first + len(rows) - 1}: classes {shown}")
        tick((first + len(rows)) / count, f"{first + len(rows)}/{count}")
    served, faults = np.concatenate(scores), list[str]()
    figures = {"model": info.name, "protocol": triton.protocol, "data": data, "rows": count}
    figures |= {"batch_size": options.batch_size, "top1": None, "agreement": None}

    def check(name: str, right: npt.NDArray[Any], goal: float | None) -> None:
        share = figures[name] = float((served.argmax(axis=1) == right).mean())
        if goal is not None and share < goal:
            faults.append(f"{name} is {share:.4f}, below the {goal} of --min-{name}")

    if classes is not None:
        check("top1", classes, options.min_top1)
    elif options.min_top1 is not None:
        faults.append(f"--min-top1 {options.min_top1} cannot be judged: {data} carry no labels")
    if network:
        expected = np.concatenate(right)
        check("agreement", expected.argmax(axis=1), options.min_agreement)
        largest = figures["largest_difference"] = float(np.abs(served - expected).max())
        allowed = options.max_difference or _tolerance(expected, half=options.half)
        figures["allowed_difference"] = allowed
        if not largest <= allowed:
            faults.append(
                f"answers differ from the network's by {largest:.1e}, where {allowed:.1e} is allowed"
            )
    return figures, faults


Read = Callable[[slice], Rows]


def _rows(
    info: ModelInfo, options: ClientOptions, network: Network | None
) -> tuple[int, str, Read, npt.NDArray[np.int64] | None]:
    """Return the number of rows, their kind, a function that reads some, and their classes if known."""
    shapes, data = [spec.shape for spec in info.inputs], options.data
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] != 3:
        raise UsageError(f"{info.name} takes {shapes}: the client asks networks of pictures, [N, 3, …]")
    size = shapes[0][3]
    if data is None:
        rows = _noise(size, options.count, options.seed, half=False)
        return len(rows), f"{len(rows)} rows of noise, seed {options.seed}", rows.__getitem__, None
    if data.is_dir():
        return _pictures(info, data, size, network)
    kind = np.dtype(np.float16 if options.half else np.float32)
    try:
        rows = np.frombuffer(data.read_bytes(), kind).reshape(-1, 3, size, size)
    except (OSError, ValueError) as exc:
        raise UsageError(
            f"--inference_data {data} is not whole rows of {kind} [3, {size}, {size}]: {exc}"
        ) from exc
    return len(rows), f"{len(rows)} rows of {data.name}", rows.__getitem__, None


def _pictures(
    info: ModelInfo, folder: Path, size: int, network: Network | None
) -> tuple[int, str, Read, npt.NDArray[np.int64] | None]:
    """Read pictures as the network of --config takes them, or else as those of ImageNet do."""
    mean, std = (network.mean, network.std) if network else (IMAGENET_MEAN, IMAGENET_STD)
    system = PictureClassifier(info.name, "", "", info.name, (), folder, size, mean=mean, std=std)
    # NVIDIA's scripts put the pictures of ImageNet there that nobody trained on.
    folder = folder / "val-jpeg" if (folder / "val-jpeg").is_dir() else folder
    named = info.parameters.get(LABELS_PARAMETER, "")
    labels = json.loads(named) if named else sorted(path.name for path in folder.iterdir() if path.is_dir())
    photos = LabelledPictures(tuple(labels)).listing(folder, ALL)
    classes = np.array([photo.class_id for photo in photos], dtype=np.int64)

    def read(some: slice) -> Rows:
        return system.normalise(decode([photos[some]], size)[0].images)

    return len(photos), f"{len(photos)} pictures of {folder}", read, classes
