"""A classifier that is only data: made from a file of weights, and the parts that the registry asks for.

The parts have the names of a system's modules: data, train, evaluate, export.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gourmet.contracts import SUBJECT_THRESHOLD_PARAMETER
from gourmet.errors import GourmetError, UsageError
from gourmet.evaluation import same_answers
from gourmet.evaluation.calibration import Calibration
from gourmet.evaluation.labelled_pictures import LabelledPictures
from gourmet.evaluation.picture_evaluation import ClassifierEvaluation, calibrated
from gourmet.evaluation.same_answers import Answers, Pixels
from gourmet.evaluation.system_parts import Evaluation
from gourmet.pictures.classifier import IMAGENET_MEAN, IMAGENET_STD, PictureClassifier
from gourmet.pictures.made_up import clouds
from gourmet.progress import ReportProgress
from gourmet.reports.report import Report
from gourmet.reports.table import columns
from gourmet.repository.gate import Calibrated, Deployment, ModelFile, Target
from gourmet.served.manifest import sha256
from gourmet.served.reading import check_weights
from gourmet.training.task import Training

if TYPE_CHECKING:  # torch and onnx, which a verb that measures or learns a last layer does without
    from gourmet.export.given_onnx import GivenOnnx
    from gourmet.export.picture_export import ClassifierExport
    from gourmet.export.torchvision_network import TorchvisionNetwork

ONNX: Final = "onnx"
_SIDE: Final = 224
_OUTPUTS: Final = ("probability_outputs", "logit_outputs")
_CARD: Final = """# {system.title}

Tells which of {count} labels a picture shows.

- network: {network}
- pictures: {system.input_size}×{system.input_size} pixels
- weights: {weights}

- trained on: say on what, under which licence, and what it does not show
- accuracy: `gourmet evaluate {system.name} --data …` measures it; write down here what it says
- meant for: say for what, and for what not

Labels:

{labels}
"""


@dataclass(frozen=True)
class PictureOptions:
    """The options of `gourmet new` about pictures and tensors; None or empty where one is missing."""

    size: int | None = None
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    scale: float | None = None
    layout: str = ""
    outputs: str = ""

    def statistics(self) -> dict[str, Any]:
        """Return mean and standard deviation of pictures from 0 to 1; empty if no option sets them."""
        if not (self.mean or self.std or self.scale):
            return {}
        unit = 255.0 * (self.scale or 1 / 255.0)
        means, stds = self.mean or (0.0,), self.std or (1.0,)
        return {"mean": [value / unit for value in means], "std": [value / unit for value in stds]}


_NOTHING: Final = PictureOptions()


def card(system: PictureClassifier, weights: Path | None) -> str:
    """Return the model card of a new system, which its owner completes."""
    trained = f"those of `gourmet train {system.name}`; the manifest.json beside a served model says which"
    return _CARD.format(
        system=system,
        count=len(system.labels),
        network=system.architecture or "an ONNX file exported elsewhere",
        weights=f"`{weights.name}`" if weights else trained,
        labels="\n".join(f"- {label}" for label in system.labels),
    )


def prepared(
    system: PictureClassifier,
    weights: Path | None,
    options: PictureOptions,
    known: Sequence[tuple[str, Mapping[str, Any]]],
    show: Callable[[str], None],
) -> tuple[PictureClassifier, GivenOnnx | None]:
    """Return `system` with its pictures prepared as `weights` need it, and the file if that is ONNX."""
    from gourmet.export.torchvision_network import pictures

    is_onnx = bool(weights and weights.suffix == ".onnx")
    if weights and is_onnx == bool(system.architecture):
        raise UsageError(
            f"--weights {weights}: add --architecture for .pth and .safetensors, which do not say what they "
            "are weights of, as in torchvision:resnet18; drop it for .onnx"
        )
    if weights and is_onnx:
        return as_given(system, weights, options, known, show)
    if options.layout == "NHWC" or options.outputs == "probabilities":
        raise UsageError("--layout NHWC and --outputs probabilities are for ONNX files alone")
    system = replace(system, architecture=system.architecture or "torchvision:mobilenet_v2")
    of_network = (f"{system.architecture}, as first trained", pictures(system.architecture))
    return _with_pictures(system, options, [*known, of_network], show), None


def _with_pictures(
    system: PictureClassifier,
    options: PictureOptions,
    known: Sequence[tuple[str, Mapping[str, Any]]],
    show: Callable[[str], None],
) -> PictureClassifier:
    """Return `system` with the pictures' size and statistics, and show a table of their sources.

    Options come first, then the `known` sources in their order, then the usual values.
    """
    channels, takes = len(system.mean), system.datatypes[0]
    usual = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD} if channels == 3 else {"mean": [0.0], "std": [1.0]}
    ours: dict[str, Any] = options.statistics() | ({"size": options.size} if options.size else {})
    sources = [("asked for", ours), *known, ("assumed, as nothing says it", {"size": _SIDE, **usual})]
    chosen = {
        key: next(source for source in sources if source[1].get(key)) for key in ("size", "mean", "std")
    }
    size, mean, std = (source[1][key] for key, source in chosen.items())
    if takes == "UINT8":
        if options.statistics():
            raise UsageError("--mean, --std and --scale: this network takes pixels, and prepares them itself")
        mean, std = [0.0], [1.0]
    for option, values in (("--mean", mean), ("--std", std)):
        if len(values) not in (1, channels) or not all(std) or not all(map(math.isfinite, values)):
            raise UsageError(
                f"{option} {','.join(map(str, values))}: give one number, or one for each of {channels} "
                "channels; no standard deviation is 0"
            )
    mean, std = (tuple(values) * (channels if len(values) == 1 else 1) for values in (mean, std))
    rows = [("size", f"{size}×{size}, {'RGB' if channels == 3 else 'grey'}", chosen["size"][0])]
    if takes == "UINT8":
        rows.append(("values", "pixels from 0 to 255", "its type"))
    else:
        rows += [
            (key, ", ".join(f"{value:.4g}" for value in values), f"of values from 0 to 1; {chosen[key][0]}")
            for key, values in (("mean", mean), ("std", std))
        ]
    rows.append(("input", f"{takes} {system.layout or 'NCHW'}", ""))
    show(columns([("pictures", "", "from"), *rows]))
    return replace(system, input_size=size, mean=mean, std=std)


def next_file(system: PictureClassifier, weights: Path) -> GivenOnnx:
    """Open an ONNX file as the next version of a system; raise UsageError unless it fits the description."""
    check_weights(weights)
    size = ("its description", {"size": system.input_size})
    options = PictureOptions(
        layout=system.layout, outputs="probabilities" if system.probability_outputs else ""
    )
    made, network = as_given(system, weights, options, [size])
    if len(made.mean) == len(system.mean):  # pictures go on being prepared in the same way
        made = replace(made, mean=system.mean, std=system.std)
    differ = []
    for name in (field.name for field in fields(system)):
        value, described_value = getattr(made, name), getattr(system, name)
        # The description may also name the outputs of other models.
        if value != described_value and not (name in _OUTPUTS and set(value) <= set(described_value)):
            differ.append(f"{name} {value!r}, not {described_value!r}")
    if differ:
        raise UsageError(
            f"{weights} cannot be the next version of {system.name}, whose description says otherwise: "
            f"{'; '.join(differ)}. Make a system of its own of it with `gourmet new`"
        )
    return network


def as_given(
    system: PictureClassifier,
    path: Path,
    options: PictureOptions = _NOTHING,
    known: Sequence[tuple[str, Mapping[str, Any]]] = (),
    show: Callable[[str], None] = lambda _shown: None,
) -> tuple[PictureClassifier, GivenOnnx]:
    """Return `system` adapted to the file's pictures and tensors, and the open file. `show` the settings."""
    from gourmet.export.given_onnx import GivenOnnx
    from gourmet.export.torchvision_network import check_outputs

    network = GivenOnnx(path, options.layout)
    signature = network.signature
    check_outputs(path, signature.labels, len(system.labels))
    side = signature.side
    if side and options.size not in (None, side):
        raise UsageError(f"--size {options.size}: {path} takes pictures of {side} pixels, and no others")
    system = replace(
        system,
        datatypes=(signature.datatype,),
        layout=signature.layout,
        mean=(0.0,) * signature.channels,
        probability_outputs=(),
        logit_outputs=(signature.output,),
    )
    file = ("the file", {"size": side, **signature.statistics})
    system = _with_pictures(system, options, [file, *known], show)
    try:
        rows = network.scores_for(system, batched=False)(some_pictures(system, 4))
    except GourmetError as exc:
        if signature.rows < 2:
            raise
        raise GourmetError(
            f"{path} takes {signature.rows} pictures at a time, also within the network: export it again "
            "with a free batch, or one of 1"
        ) from exc
    within = bool(((rows >= 0) & (rows <= 1)).all() and rows.any())
    are_probabilities = within and system.are_probabilities(rows)
    if options.outputs == "probabilities" and not are_probabilities:
        raise UsageError(
            f"--outputs probabilities: {path} gives numbers that are none, such as {rows[0, :3]}"
        )
    if within and not are_probabilities and not options.outputs:
        raise UsageError(
            f"{path} gives numbers from 0 to 1 that do not sum to 1: say --multi-label where a picture may "
            "have several labels, or --outputs logits"
        )
    if options.outputs == "logits" or not are_probabilities:
        function = "a sigmoid of each" if system.multi_label else "their softmax"
        show(f"output    {signature.output}, logits: shown is {function}")
        return system, network
    show(f"output    {signature.output}, probabilities already: shown as they are")
    return replace(system, probability_outputs=(signature.output,), logit_outputs=()), network


def doubt(system: PictureClassifier, served: Path) -> str:
    """Return why a served file seems not to be a trained network; empty if it seems to be one."""
    from gourmet.export.given_onnx import GivenOnnx

    network = GivenOnnx(served, system.layout)
    pictures = some_pictures(system, 16)
    scores = network.scores_for(system, batched=network.signature.rows != 1)(pictures)
    rows = system.probabilities_from({(*system.logit_outputs, *system.probability_outputs)[0]: scores})
    small = 1e-5 * float(np.abs(scores).max())
    if np.ptp(scores, axis=1).max() <= small:
        return "it gives all labels the same score, as a network does whose last layer is all zeros"
    if np.ptp(scores, axis=0).max() <= small:
        return f"it answers {len(pictures)} different pictures all the same"
    if (np.abs(rows - 0.5) >= 0.49999).all():
        return (
            f"its answers are saturated: to each of {len(pictures)} made-up pictures every probability is 0 "
            "or 1, as where pictures have to be prepared in another way (--scale, --mean, --std)"
        )
    return ""


def some_pictures(system: PictureClassifier, count: int) -> Pixels:
    return np.stack([system.pixels(clouds(seed=seed)) for seed in range(count)])


def data(system: PictureClassifier) -> LabelledPictures:
    return LabelledPictures(system.labels)


def train(system: PictureClassifier) -> Training:
    from gourmet.learning.picture_training import PictureTraining

    return PictureTraining(system, data(system), _network(_of_one_label(system)))


def evaluate(system: PictureClassifier) -> Evaluation:
    return ClassifierEvaluation(system, data(system), _network(_of_one_label(system)))


def export(system: PictureClassifier) -> DescribedExport:
    return DescribedExport(system)


@dataclass(frozen=True)
class DescribedExport:
    """An ONNX file as it is, other weights as the network that the system names."""

    system: PictureClassifier
    formats: Sequence[str] = (ONNX,)

    def open(
        self,
        weights: Path,
        labelled: Path | None,
        tick: ReportProgress,
        *,
        architecture: str = "",
        network: GivenOnnx | None = None,
    ) -> Deployment:
        """`network` is the open ONNX file of a new system; otherwise it must fit the description."""
        if weights.suffix == ".onnx":
            network = network or next_file(self.system, weights)
            deployment = self._as_given(weights, labelled, tick, network)
        else:
            deployment = self._trained.open(weights, labelled, tick, architecture=architecture)
        if not self.system.multi_label:
            return deployment
        # The probability at which a label applies if several may; the model's config can change it.
        return replace(deployment, calibration={**deployment.calibration, "threshold": 0.5})

    def _as_given(
        self, weights: Path, labelled: Path | None, tick: ReportProgress, network: GivenOnnx
    ) -> Deployment:
        system, calibration, accuracy = self.system, Calibration(), dict[str, Any]()
        if labelled and not system.multi_label:
            calibration, report = self._measured(labelled, network, tick)
            accuracy = dict(report.measures)
        tick(1.0)
        facts = {
            "network": {"system": system.name, "architecture": "onnx", "labels": list(system.labels)},
            "training": {"weights_sha256": sha256(weights)},
            "accuracy": accuracy,
            "verified_on": "made-up pictures",
        }
        return Deployment({ONNX: _target_of_onnx(system, weights, network)}, facts, vars(calibration))

    def _measured(
        self, labelled: Path, network: GivenOnnx, tick: ReportProgress
    ) -> tuple[Calibration, Report]:
        answers = network.scores_for(self.system, batched=network.signature.rows != 1)
        return calibrated(self.system, data(self.system), labelled, answers, tick)

    def find(self, checkpoint: str) -> Path:
        return self._trained.find(checkpoint)

    def calibrated(self, version: Path, labelled: Path, tick: ReportProgress) -> Calibrated:
        from gourmet.export.given_onnx import GivenOnnx

        system = _of_one_label(self.system)
        network = GivenOnnx(version / "model.onnx", system.layout)
        calibration, report = self._measured(labelled, network, tick)
        chosen = dict(vars(calibration))
        if not system.subject:
            chosen.pop(SUBJECT_THRESHOLD_PARAMETER)
        return Calibrated(chosen, {"accuracy": report.measures}, [report.text()])

    @property
    def _trained(self) -> ClassifierExport:
        from gourmet.export.picture_export import ClassifierExport, Exported

        models = {ONNX: Exported(self.system.default_model)}
        return ClassifierExport(self.system, data(self.system), _network(self.system), models)


def _of_one_label(system: PictureClassifier) -> PictureClassifier:
    if system.multi_label:
        raise UsageError(
            f"pictures of {system.name!r} may have several labels, which nothing here trains or measures"
        )
    return system


def _network(system: PictureClassifier) -> TorchvisionNetwork:
    from gourmet.export.torchvision_network import TorchvisionNetwork

    if not system.architecture:
        raise UsageError(
            f"the system {system.name!r} names no architecture, as its model was given as an ONNX file: "
            f"there is no network to train or evaluate; the next version is an ONNX file, for "
            f"`gourmet deploy {system.name} --weights FILE`"
        )
    return TorchvisionNetwork(system, system.architecture)


def _target_of_onnx(system: PictureClassifier, file: Path, network: GivenOnnx) -> Target:
    """Return the target of an ONNX file, which is compared with its own answers to single pictures."""
    from gourmet.export.given_onnx import GivenOnnx
    from gourmet.export.picture_export import onnx_config

    signature, model = network.signature, system.default_model
    batched = signature.rows != 1

    def opened(path: Path) -> Answers:
        return GivenOnnx(path, system.layout).scores_for(system, batched=batched)

    def write(path: Path) -> dict[str, Any]:
        if network.changed is None:
            shutil.copyfile(file, path)
            return {"form": "ONNX, exported elsewhere"}
        path.write_bytes(network.changed)
        return {"form": "ONNX, exported elsewhere, made one file that takes any number of pictures"}

    alone = partial(
        same_answers.same_answers,
        network.scores_for(system, batched=False),
        photos=some_pictures(system, 16),
    )
    row = system.tensor(some_pictures(system, 1), system.datatypes[0]).shape[1:]
    types = (signature.datatype, signature.scores)
    config = onnx_config(system, model, signature.input, row, signature.output, batched=batched, types=types)
    files = [ModelFile("model.onnx", write, same_answers.verify(opened, alone))]
    return Target(model, files, config, system.labels)
