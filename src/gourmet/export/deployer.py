"""Translate the flags of NVIDIA's deployer into a deployment, with the export that `new` and `deploy` use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from gourmet.contracts import LABELS_PARAMETER
from gourmet.errors import GourmetError, UsageError
from gourmet.evaluation.calibration import Calibration
from gourmet.export.picture_export import ONNX, Exported, Source
from gourmet.export.torchvision_network import TorchvisionNetwork, build, pictures
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.made_up import clouds
from gourmet.progress import ReportProgress
from gourmet.repository.config_file import LABELS_FILE, model_config, tensor
from gourmet.repository.gate import Deployment
from gourmet.repository.versions import version_numbers
from gourmet.served.manifest import facts as facts_of
from gourmet.served.manifest import sha256
from gourmet.triton_client.model_config import Config

# As in NVIDIA's example, whose clients ask by these names.
_INPUT: Final = "input__0"
_OUTPUT: Final = "output__0"
_CLASSES: Final = 1000  # of ImageNet
# Allowed differences, as shares of the largest score, or of 1 if that is less. fp16 has eleven bits.
_TOLERANCE: Final = {False: 1e-3, True: 0.1}
# Triton's names of the backend and the platform, without and with ONNX.
_TRITONS: Final = {False: ("pytorch", "pytorch_libtorch"), True: ("onnxruntime", "onnxruntime_onnx")}
_MADE_BY: Final = "deployer"


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

    def __post_init__(self) -> None:
        if "/" in self.model or self.model.startswith("."):
            raise UsageError(f"{self.model!r} is not a valid name of a folder")
        if self.delay_ms > 0 and self.max_batch_size < 1:
            raise UsageError("--triton-dyn-batching-delay needs a --triton-max-batch-size of at least 1")


def deployment_of(options: DeployerOptions, repository: Path, tick: ReportProgress) -> Deployment:
    """Read the checkpoint, or make weights at random; raise GourmetError if they cannot be deployed."""
    system = PictureClassifier(
        *(options.model, options.model, "", options.model),
        labels=tuple(options.labels or map(str, range(_CLASSES))),
        sample_file=Path(),
        **{{"size": "input_size"}.get(name, name): value for name, value in pictures(options.config).items()},
    )
    torch.manual_seed(options.seed)
    if options.checkpoint:
        network, _ = TorchvisionNetwork(system, options.config)(options.checkpoint)
    else:
        network = _settled(build(options.config, len(system.labels)), system.input_size)
    tick(0.2, "computing its answers")
    rows = np.stack([system.pixels(clouds(seed=seed)) for seed in range(max(2, options.batch_size))])
    checkpoint = options.checkpoint or Path()
    source = Source(system, network, Calibration(), rows[:0], rows, None, checkpoint)
    largest = float(np.abs(source.eager(rows)).max())
    if not np.isfinite(largest):
        raise GourmetError(f"{options.config} itself has answers that are not finite: check its weights")
    tick(0.4, f"exporting {options.form}")
    exported = Exported(
        *(options.model, _INPUT, _OUTPUT),
        form=options.form,
        half=options.half,
        max_difference=_TOLERANCE[options.half] * max(1.0, largest),
    )
    _check_free(repository / options.model, options.version, exported.file)
    target = replace(
        exported(source),
        config=_config(options, system),
        labels=options.labels,
        replaces=True,
    )
    training = {"weights": f"none: initialised at random from seed {options.seed}"}
    if options.checkpoint:
        training = {"weights": checkpoint.name, "weights_sha256": sha256(checkpoint)}
    facts = {
        _MADE_BY: options.form,
        "network": {"config": options.config, "outputs": len(system.labels)},
        "training": training,
        "preprocessing": {"size": system.input_size, "mean": system.mean, "std": system.std},
    }
    return Deployment({options.form: target}, facts)


def _config(options: DeployerOptions, system: PictureClassifier) -> Config:
    backend, platform = _TRITONS[options.form == ONNX]
    full, kind, side = options.max_batch_size, "FP16" if options.half else "FP32", system.input_size
    rows = [] if full else [-1]
    config = model_config(
        options.model,
        backend,
        full,
        tensor(_INPUT, kind, [*rows, 3, side, side], layout="NCHW" if full else ""),
        tensor(_OUTPUT, kind, [*rows, len(system.labels)], labels_file=LABELS_FILE if options.labels else ""),
        kind="CPU" if options.no_cuda else "AUTO",
        instances=options.engines,
        parameters={LABELS_PARAMETER: json.dumps(options.labels)} if options.labels else {},
    )
    config["platform"] = platform
    if options.delay_ms > 0:
        config["dynamic_batching"] = {
            "max_queue_delay_microseconds": round(1000 * options.delay_ms),
            "preferred_batch_size": sorted({max(1, full // 2), full}),
        }
    return config


def _settled(network: nn.Module, size: int) -> nn.Module:
    """Take the statistics of batch norms from noise: with the initial ones half precision overflows."""
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = None  # the mean of all batches, of which there is one
    with torch.no_grad():
        network.train()(torch.randn(8, 3, size, size))
    return network.eval()


def _check_free(model: Path, version: int, file: str) -> None:
    """Refuse a folder with a model of another origin, or with other versions in another format."""
    for number in version_numbers(model) if model.exists() else ():
        about, other = facts_of(model / str(number)), "choose another --triton-model-name or --save-dir"
        if _MADE_BY not in about:
            raise UsageError(f"{model} holds a model that the deployer did not make: {other}")
        if number != version and about.get("file") != file:
            raise UsageError(
                f"version {number} of {model} is {about.get('file')}, and all versions of a model have one "
                f"format: replace it with --triton-model-version {number}, or {other}"
            )
