"""Train a network to classify pictures: its phases, its augmentation, its measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import update_bn

from gourmet.evaluation.accuracy import balanced_accuracy
from gourmet.evaluation.labelled_pictures import LabelledPictures, Pixels, decode, natural_side
from gourmet.evaluation.system_parts import check_classes
from gourmet.export.torchvision_network import TorchvisionNetwork, build, describe
from gourmet.learning import augment
from gourmet.pictures.classifier import PictureClassifier
from gourmet.progress import ReportProgress
from gourmet.training.task import Phase, Recipe, TrainOptions

# Photos a class on which the average is measured after every epoch, at the serving size.
_MEASURED_PER_CLASS: Final = 30
_REFRESHED: Final = 160
_ROWS: Final = 64  # at the serving size
# On two idle cores, which train MobileNetV2 on 400 photos of 64 pixels a second, 16 epochs take an hour.
_EPOCHS: Final = {"cpu": 16, "cuda": 60}
_RATE: Final = 0.02
SMOOTHING: Final = 0.05


def phase(start: float, width: int, batch: int) -> Phase:
    """Return a phase with pictures `width` pixels wide; their cost grows with the area."""
    return Phase(start, batch, work=float(width**2), size=width, name=f"{width} px")


@dataclass(frozen=True)
class PictureTraining:
    """Train a classifier of pictures; fulfils `gourmet.training.task.Training`."""

    system: PictureClassifier
    data: LabelledPictures
    network: TorchvisionNetwork | None = None

    def recipe(self, options: TrainOptions) -> Recipe:
        """Return a recipe with small pictures first, which are cheap, and the serving size at the end.

        On a CPU a photo of 64 pixels costs a twelfth of one of 224.
        """
        full = self.system.input_size
        on_cpu = [(0.0, 64, 128), (0.6, 96, 96), (0.85, 128, 64), (0.965, full, 32)]
        on_gpu = [(0.0, 128, 256), (0.4, 176, 256), (0.75, full, 256)]
        steps = on_cpu if options.device == "cpu" else on_gpu
        phases = tuple(phase(start, min(width, full), batch) for start, width, batch in steps)
        peak = options.rate or (_RATE / 5.0 if options.pretrained else _RATE)
        return Recipe(options.epochs or _EPOCHS[options.device], phases, peak, seed=options.seed)

    def prepare(self, data: Path, options: TrainOptions, tick: ReportProgress) -> PictureTask:
        limit = options.limit
        photos = self.data.listing(data, "train", limit)
        check_classes(data, (photo.class_id for photo in photos), self.system.labels)
        labels = len(self.system.labels)
        per_class = min(_MEASURED_PER_CLASS, max(limit // labels // 5, 1)) if limit else _MEASURED_PER_CLASS
        held = self.data.listing(data, "validation", per_class * labels)
        train, validation = decode((photos, held), natural_side(photos, self.system.input_size), tick)
        torch.manual_seed(options.seed)
        assert self.network
        architecture = self.network.architecture
        network = build(architecture, labels, pretrained=options.pretrained)
        about = describe(self.system, architecture)
        return PictureTask(self.system, network, about, train, validation, options.device)

    def bundled_data(self) -> tuple[Path, str] | None:
        return None


class PictureTask:
    """A network and its pictures; fulfils `gourmet.training.task.TrainingTask`."""

    smoothing = SMOOTHING  # of the labels

    def __init__(
        self,
        system: PictureClassifier,
        network: nn.Module,
        about: dict[str, Any],
        train: Pixels,
        held: Pixels,
        device: str = "cpu",
    ) -> None:
        self.system = system
        self.about: dict[str, Any] = {**about, "examples": len(train.images)}
        self.files: dict[str, bytes] = {}
        self.network: nn.Module = network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.device = torch.device(device)
        self.images = torch.from_numpy(train.images).to(device)
        self.classes = torch.from_numpy(train.classes)
        self.held_images = torch.from_numpy(held.images)
        self.held_classes = torch.from_numpy(held.classes)

    def order(self, generator: torch.Generator) -> torch.Tensor:
        """Return as many photos as there are, with every class equally often.

        A class with fewer photos than its share shows some of them again, one with more leaves some
        for the next epoch.
        """
        present = sorted(set(self.classes.tolist()))
        share = -(-len(self.classes) // len(present))
        drawn = []
        for class_id in present:
            of_class = torch.nonzero(self.classes == class_id).view(-1)
            rounds = [
                of_class[torch.randperm(len(of_class), generator=generator)]
                for _ in range(-(-share // len(of_class)))
            ]
            drawn.append(torch.cat(rounds)[:share])
        order = torch.cat(drawn)
        return order[torch.randperm(len(order), generator=generator)]

    def loss(self, examples: torch.Tensor, phase: Phase, generator: torch.Generator) -> torch.Tensor:
        logits = self.logits_of(self.network, self.images[examples.to(self.device)], phase, generator)
        classes = self.classes[examples].to(self.device)
        return F.cross_entropy(logits, classes, label_smoothing=self.smoothing)

    def logits_of(
        self,
        network: Callable[[torch.Tensor], torch.Tensor],
        photos: torch.Tensor,
        phase: Phase,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Return the network's answers to some photos, varied."""
        images = self.varied(photos, phase.size, generator)
        # On GPUs half precision is several times as fast; on CPUs bfloat16's depthwise filters are not.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return network(images).float()

    def varied(self, photos: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
        """Return augmented photos, as the network learns from them."""
        return augment.varied(photos, size, generator, self.system)

    def as_served(self, photos: torch.Tensor) -> torch.Tensor:
        return augment.served(photos, self.system)

    def module_to_save(self, network: nn.Module) -> nn.Module:
        return network

    def adapt(self, network: nn.Module) -> None:
        """Take the statistics of batch normalisation at the serving size."""
        generator = torch.Generator().manual_seed(0)
        some = torch.randperm(len(self.images), generator=generator)[:_REFRESHED]
        size = self.system.input_size
        shown = (self.varied(self.images[rows], size, generator) for rows in torch.split(some, _ROWS))
        update_bn(shown, network)

    @torch.no_grad()
    def measure(self, network: nn.Module) -> dict[str, float]:
        """Return the mean loss and, as `score`, balanced accuracy on held-out photos, as served."""
        self.adapt(network)
        logits, classes = self.served(network), self.held_classes
        score = balanced_accuracy(logits.argmax(dim=1).numpy(), classes.numpy())
        return {"validation_loss": float(F.cross_entropy(logits, classes)), "score": score}

    @torch.no_grad()
    def served(self, network: nn.Module) -> torch.Tensor:
        """Return the network's answers to the held-out photos, prepared as when it is served."""
        logits = [
            network(self.as_served(rows.to(self.device))).cpu()
            for rows in torch.split(self.held_images, _ROWS)
        ]
        return torch.cat(logits)
