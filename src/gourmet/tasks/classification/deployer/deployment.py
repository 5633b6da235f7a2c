"""What `gourmet deployer` is asked for, made into a model that builds and verifies itself."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gourmet.client.model_config import Config
from gourmet.client.triton import Triton
from gourmet.contracts import LABELS_PARAMETER
from gourmet.deploying.target import Check, Deployment, Target
from gourmet.errors import GourmetError, UsageError
from gourmet.repository import versions
from gourmet.repository.config_file import model_config, tensor
from gourmet.runtime.manifest import facts as facts_of
from gourmet.tasks.classification import gate
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.deployer import networks, tensorrt_engine
from gourmet.tasks.classification.formats import FORMATS, INPUT, OUTPUT, Format, eager
from gourmet.tasks.classification.gate import Answers
from gourmet.training.task import Tick

# Of the largest score, or of 1 where that is less. Half precision has eleven bits, and a hundred layers to
# lose some: se-resnext101-32x4d at random differs by 0.036, a ResNet18 by 0.0025.
TOLERANCE: Final = 1e-3
HALF_TOLERANCE: Final = 0.1
_MADE_BY: Final = "deployer"

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

    def __post_init__(self) -> None:
        if self.delay_ms > 0 and self.max_batch_size < 1:
            raise UsageError(
                f"--triton-dyn-batching-delay {self.delay_ms:g} needs a --triton-max-batch-size of at least "
                f"1: {self.max_batch_size} has Triton put no requests together"
            )
        if self.form == "trt" and self.no_cuda:
            raise UsageError(
                "--trt and --triton-no-cuda: an engine runs on a GPU alone; leave one of them out"
            )


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
    network = networks.network_of(options.config, options.checkpoint, options.seed, len(options.labels))
    tick(0.2, "computing its answers")
    rows = example_rows(network.side, options.batch_size, options.seed)
    rows = rows.astype(np.float16) if options.half else rows
    right = as_reference(network.module)(rows)
    if not np.isfinite(right).all():
        raise GourmetError(f"{options.config} itself has answers that are not finite: check its weights")
    allowed = tolerance(right, half=options.half or (options.form == "trt" and options.trt_fp16))
    tick(0.4, f"exporting {options.form}")
    served = copy.deepcopy(network.module).half() if options.half else network.module

    def build(path: Path) -> dict[str, Any]:
        facts = form.write(served, torch.from_numpy(rows[:2]), path)
        return {**facts, "input": f"{rows.dtype} [N, 3, {network.side}, {network.side}]"}

    def compare(answers: Answers) -> Sequence[Check]:
        return list(_compared(right, answers, rows, allowed, tick))

    outputs = right.shape[1]
    config = config_of(options, form, network.side, outputs)
    verify = gate.verify(form.open, compare)
    target = Target(options.model, form.file, build, verify, config, options.labels, replaces=True)
    facts = {
        _MADE_BY: options.form,
        "network": {"config": options.config, "outputs": outputs},
        "training": networks.weights_of(options.checkpoint, options.seed),
        "preprocessing": {"size": network.side, "mean": network.mean, "std": network.std},
    }
    return Made(Deployment({options.form: target}, facts), rows, right, allowed)


def config_of(options: DeployerOptions, form: Format, side: int, outputs: int) -> Config:
    """How Triton serves a network of so many outputs, for square pictures of this side."""
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


def as_reference(network: nn.Module) -> Answers:
    """The eager network, which computes in full precision whatever it is given."""
    asked = eager(network)
    return lambda rows: asked(rows.astype(np.float32))


def example_rows(side: int, count: int, seed: int) -> Rows:
    """As many rows as a batch, at least two: noise, normalised as pictures are."""
    shape = (max(2, count), 3, side, side)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tolerance(scores: Scores, *, half: bool) -> float:
    """By how much scores like these may differ from one program to another."""
    return (HALF_TOLERANCE if half else TOLERANCE) * max(1.0, float(np.abs(scores).max()))


def _compared(right: Scores, model: Answers, rows: Rows, allowed: float, tick: Tick) -> Iterator[Check]:
    sizes = sorted({1, 2, len(rows)})
    checks = gate.near_answers(lambda asked: right[: len(asked)], model, rows, sizes, allowed)
    for done, check in enumerate(checks, 1):
        tick(0.6 + 0.4 * done / (len(sizes) + 1), check.what)
        yield check


def is_there(options: DeployerOptions, repository: Path) -> bool:
    """Whether the version is one of these weights in this format already, and takes as many rows."""
    about = facts_of(repository / options.model / str(options.version))
    return (about.get(_MADE_BY), about.get("network", {}).get("config"), about.get("training")) == (
        options.form,
        options.config,
        networks.weights_of(options.checkpoint, options.seed),
    ) and about.get("config", {}).get("max_batch_size") == options.max_batch_size


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
