"""What `gourmet deployer` is asked for, made into a model that builds and verifies itself."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gourmet.client.triton import Triton
from gourmet.contracts import LABELS_PARAMETER
from gourmet.deploying.target import Check, Deployment, Target
from gourmet.errors import GourmetError, UsageError
from gourmet.repository import RepositoryError, read_config, versions
from gourmet.repository.model_config import LABELS_FILE, ModelConfig, Tensor
from gourmet.runtime.manifest import MANIFEST, PARAMETER, REQUIRED, sha256
from gourmet.tasks.classification import gate
from gourmet.tasks.classification.accuracy import Scores
from gourmet.tasks.classification.deployer import checkpoints, networks, tensorrt_engine
from gourmet.tasks.classification.formats import FORMATS, INPUT, OUTPUT, Format, eager
from gourmet.tasks.classification.gate import Answers
from gourmet.training.task import Tick

IMAGENET_CLASSES: Final = 1000
# Of the largest score, or of 1 where that is less. Half precision has eleven bits, and a hundred layers to
# lose some: se-resnext101-32x4d at random differs by 0.036, a ResNet18 by 0.0025.
TOLERANCE: Final = 1e-3
HALF_TOLERANCE: Final = 0.1
_POLLED_EVERY_S: Final = 0.5
_MADE_BY: Final = "deployer"

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class Serving:
    """How Triton is to serve a model; a delay of 0 or less is static batching."""

    max_batch_size: int = 8
    delay_ms: float = 0.0
    engines: int = 1
    cpu: bool = False  # and nowhere else; where not, a GPU if Triton has one
    cuda_graphs: bool = True  # TensorRT alone has them

    def __post_init__(self) -> None:
        if self.delay_ms > 0 and self.max_batch_size < 1:
            raise UsageError(
                f"--triton-dyn-batching-delay {self.delay_ms:g} needs a --triton-max-batch-size of at least "
                f"1: {self.max_batch_size} has Triton put no requests together"
            )


@dataclass(frozen=True)
class DeployerOptions:
    """A network, its weights, and how it is to be written and served."""

    model: str
    version: int
    form: str
    config: str
    checkpoint: Path | None
    batch_size: int
    half: bool
    serving: Serving
    labels: Sequence[str] = ()
    seed: int = 0
    # Of TensorRT alone.
    workspace: int | None = None  # bytes that its builder may take
    engine_half: bool = False


@dataclass(frozen=True)
class Made:
    """A model ready to be deployed, and what it is to answer."""

    deployment: Deployment
    rows: Rows
    right: Scores
    allowed: float

    @property
    def weights(self) -> str:
        return str(self.deployment.facts["training"]["weights"])

    def ask(self, server: Triton, model: str, within_s: float) -> str:
        """What the served model says to a row, in a sentence; raise GourmetError unless it is the answer.

        A server that polls may serve another one for so long still.
        """
        deadline = time.monotonic() + within_s
        while True:
            try:
                return self._ask(server, model)
            except GourmetError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_POLLED_EVERY_S)

    def _ask(self, server: Triton, model: str) -> str:
        server.describe(model)
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
    form = _format(options)
    _check_place(repository / options.model, options, form)
    network, weights = network_of(options.config, options.checkpoint, options.seed, len(options.labels))
    tick(0.2, "computing its answers")
    rows = example_rows(network.side, options.batch_size, options.seed)
    if options.half:
        rows = rows.astype(np.float16)
    right = as_reference(network.module)(rows)
    if not np.isfinite(right).all():
        raise GourmetError(f"{options.config} itself has answers that are not finite: check its weights")
    allowed = tolerance(right, half=options.half or options.engine_half)
    outputs = right.shape[1]
    tick(0.4, f"exporting {options.form}")
    served = copy.deepcopy(network.module).half() if options.half else network.module
    config = model_config(options, form, network.side, outputs)

    def build(path: Path) -> dict[str, Any]:
        kind = "float16" if options.half else "float32"
        facts = form.write(served, torch.from_numpy(rows[:2]), path)
        return {**facts, "input": f"{kind} [N, 3, {network.side}, {network.side}]"}

    def compare(answers: Answers) -> Sequence[Check]:
        return list(_compared(right, answers, rows, allowed, tick))

    verify = gate.verify(form.open, compare)
    target = Target(options.model, form.file, build, verify, config, options.labels, replaces=True)
    facts = {
        _MADE_BY: options.form,
        "network": {"config": options.config, "outputs": outputs},
        "training": weights,
        "preprocessing": {"size": network.side, "mean": network.mean, "std": network.std},
    }
    return Made(Deployment({options.form: target}, facts), rows, right, allowed)


def model_config(options: DeployerOptions, form: Format, side: int, outputs: int) -> ModelConfig:
    """How Triton serves a network of so many outputs, for square pictures of this side."""
    serving, kind = options.serving, "FP16" if options.half else "FP32"
    full = serving.max_batch_size
    rows, layout = ((), "NCHW") if full else ((-1,), "")
    labels = {LABELS_PARAMETER: json.dumps(options.labels, ensure_ascii=False)} if options.labels else {}
    return ModelConfig(
        options.model,
        form.backend,
        full,
        (Tensor(INPUT, kind, (*rows, 3, side, side), layout),),
        (Tensor(OUTPUT, kind, (*rows, outputs), label_filename=LABELS_FILE if labels else ""),),
        platform=form.platform,
        kind="CPU" if serving.cpu else "AUTO",
        instances=serving.engines,
        delay_us=round(1000 * serving.delay_ms) if serving.delay_ms > 0 else None,
        preferred_batches=tuple(sorted({max(1, full // 2), full})) if serving.delay_ms > 0 else (),
        # Without the manifest.json that the deployer writes, no version of it is loaded.
        parameters={PARAMETER: REQUIRED, **labels},
        files_by_capability=form.by_capability,
        cuda_graphs=serving.cuda_graphs if form.platform == "tensorrt_plan" else None,
    )


def _format(options: DeployerOptions) -> Format:
    if options.form in FORMATS:
        return FORMATS[options.form]
    if options.serving.cpu:
        raise UsageError("--trt and --triton-no-cuda: an engine runs on a GPU alone; leave one of them out")
    return tensorrt_engine.engine_format(
        rows=max(options.serving.max_batch_size, options.batch_size, 2),
        usual_rows=max(options.serving.max_batch_size, 1),
        workspace=options.workspace,
        half=options.engine_half,
    )


def network_of(
    config: str, checkpoint: Path | None, seed: int, labels: int = 0
) -> tuple[networks.Network, dict[str, Any]]:
    """The network of that name with the weights of `checkpoint`, and what a manifest says of those."""
    outputs = labels or IMAGENET_CLASSES
    network = networks.build(config, outputs, seed)
    if checkpoint is None:
        networks.settle(network.module, torch.zeros(1, 3, network.side, network.side))
        return network, weights_of(checkpoint, seed)
    tensors = checkpoints.read(checkpoint)
    found = checkpoints.outputs(network.module, tensors)
    if found not in (None, outputs):
        if labels:
            raise UsageError(f"{checkpoint} has {found} classes, and --labels names {labels}: name as many")
        network = networks.build(config, found, seed)
    checkpoints.fill(network.module, tensors, checkpoint, config)
    return network, weights_of(checkpoint, seed)


def weights_of(checkpoint: Path | None, seed: int) -> dict[str, Any]:
    """What a manifest says of the weights."""
    if checkpoint is None:
        return {"weights": f"none: initialised at random from seed {seed}"}
    return {"weights": checkpoint.name, "weights_sha256": sha256(checkpoint)}


def as_reference(network: nn.Module) -> Answers:
    """The eager network, which computes in full precision whatever it is given."""
    asked = eager(network)
    return lambda rows: asked(rows.astype(np.float32))


def example_rows(side: int, count: int, seed: int) -> Rows:
    """As many rows as a batch, at least two: noise, normalised as pictures are."""
    shape = (max(2, count), 3, side, side)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tolerance(scores: npt.NDArray[Any], *, half: bool) -> float:
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
    model = repository / options.model
    try:
        about = json.loads((model / str(options.version) / MANIFEST).read_text(encoding="utf-8"))
        rows = read_config(model).max_batch_size
    except (OSError, ValueError, RepositoryError):
        return False
    named = about.get("network", {}).get("config"), about.get("training"), about.get(_MADE_BY)
    same = named == (options.config, weights_of(options.checkpoint, options.seed), options.form)
    return same and rows == options.serving.max_batch_size


def _check_place(model: Path, options: DeployerOptions, form: Format) -> None:
    """Refuse a folder that holds somebody else's model, or other versions in another format."""
    if not model.exists():
        return
    for number in versions(model):
        manifest = model / str(number) / MANIFEST
        try:
            about = json.loads(manifest.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            about = {}
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
