"""Classifiers of pictures in folders of Hugging Face's transformers.

Such a folder has config.json, preprocessor_config.json and model.safetensors. No code in it is run.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import nn

from gourmet.errors import GourmetError, UsageError
from gourmet.evaluation.same_answers import Answers
from gourmet.export.checkpoints import CONFIG, known_to
from gourmet.export.picture_export import write_onnx
from gourmet.pictures import made_up
from gourmet.pictures.classifier import PictureClassifier
from gourmet.served.reading import error_summary, read_table
from gourmet.training.files import load_tensors, torchvision

PREFIX: Final = "hf:"
_PICTURES: Final = "preprocessor_config.json"
_WEIGHTS: Final = "model.safetensors"
_FILES: Final = (CONFIG, _PICTURES, _WEIGHTS)
# The problem_type of a model whose pictures may have several labels.
_SEVERAL: Final = "multi_label_classification"
_COMPARED: Final = 20
_MAX_DIFFERENCE: Final = 1e-3


def find(source: str) -> Path:
    """Return the folder of a model: one of this machine, or hf:OWNER/MODEL after its download."""
    if not source.startswith(PREFIX):
        folder = Path(source)
        lacking = [name for name in _FILES if not (folder / name).is_file()]
        if lacking:
            raise UsageError(
                f"{source} lacks {', '.join(lacking)}: name a folder that `save_pretrained` wrote for the "
                f"model and its image processor, or {PREFIX}OWNER/MODEL"
            )
        return folder
    from huggingface_hub import snapshot_download

    name = source.removeprefix(PREFIX)
    try:
        folder = Path(snapshot_download(name, allow_patterns=list(_FILES)))
    except Exception as exc:  # of the hub's client, and of the network
        raise GourmetError(
            f"{name} cannot be downloaded from the hub ({error_summary(exc)}): get its files elsewhere, and "
            "name their folder"
        ) from exc
    return find(str(folder))


@dataclass(frozen=True)
class Given:
    """A model of such a folder."""

    folder: Path
    network: nn.Module
    labels: tuple[str, ...]
    multi_label: bool
    pictures: Mapping[str, Any]  # fields of a PictureClassifier

    @property
    def weights(self) -> Path:
        return self.folder / _WEIGHTS

    def write(self, path: Path) -> None:
        """Write the network as an ONNX file that takes normalised pictures."""
        side = self.pictures["input_size"]
        with warnings.catch_warnings(action="ignore"):  # the exporter's advice
            write_onnx(_Logits(self.network).eval(), torch.rand(2, 3, side, side), path, "input", "output")

    def compare(self, system: PictureClassifier, answers: Answers) -> str:
        """Compare answers to pixels with transformers' own pipeline; raise GourmetError if they differ."""
        import transformers

        library: Any = transformers
        processor = library.AutoImageProcessor.from_pretrained(self.folder, local_files_only=True)
        pipeline = library.ImageClassificationPipeline(self.network, image_processor=processor)
        worst = 0.0
        for photo in made_up.pictures(_COMPARED, seed=0):
            ours = system.to_probabilities(answers(system.pixels(photo)[None]))[0]
            answer = pipeline(Image.open(BytesIO(photo)).convert("RGB"), top_k=len(self.labels))
            by_label = {entry["label"]: entry["score"] for entry in answer}
            theirs = np.array([by_label[label] for label in self.labels])
            worst = max(worst, float(np.abs(ours - theirs).max()))
            if worst > _MAX_DIFFERENCE or ours.argmax() != theirs.argmax():
                label = self.labels[int(theirs.argmax())]
                raise GourmetError(
                    f"{self.folder} is not served: transformers' pipeline says {label} of a made-up picture, "
                    f"with {theirs.max():.4f}, and here it would be {ours[theirs.argmax()]:.4f}. Its "
                    "pictures are prepared in a way that is not known here"
                )
        return f"as transformers' pipeline on {_COMPARED} pictures: probabilities within {worst:.0e}"


def open_folder(folder: Path) -> Given:
    """Open a folder; raise GourmetError unless it is a classifier of pictures with known preparation."""
    torchvision()  # which transformers imports
    from transformers import CONFIG_MAPPING, MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING

    mapping: Any = CONFIG_MAPPING
    networks: Any = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING

    try:
        config = read_table(folder / CONFIG)
        kind = str(config.get("model_type", ""))
        if kind not in mapping or mapping[kind] not in networks:
            raise GourmetError(f"{folder} has a model of the type {kind!r}, which classifies no pictures")
        labels = _labels(config)
        known = known_to(mapping[kind], config)
        shape: Any = mapping[kind](**known, num_labels=len(labels), id2label=dict(enumerate(labels)))
        tensors, _ = load_tensors(folder / _WEIGHTS)
        network, loading = networks[type(shape)].from_pretrained(
            None, config=shape, state_dict=tensors, output_loading_info=True
        )
        if missing := [*loading["missing_keys"], *loading["mismatched_keys"]]:
            raise GourmetError(f"{folder / _WEIGHTS} lacks {missing[0]} of the network in {CONFIG}")
        multi_label = config.get("problem_type") == _SEVERAL
        shape.problem_type = _SEVERAL if multi_label else None  # by which the pipeline chooses its function
        pictures = _pictures(read_table(folder / _PICTURES))
        return Given(folder, network.eval(), labels, multi_label, pictures)
    except GourmetError:
        raise
    except Exception as exc:  # what transformers makes of what somebody wrote
        raise GourmetError(f"{folder} is not a classifier that can be used: {error_summary(exc)}") from exc


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = {int(number): str(name) for number, name in config["id2label"].items()}
    return tuple(names[number] for number in range(len(names)))


def _pictures(about: Any) -> dict[str, Any]:
    """Return how pictures are prepared; a way that is not read here shows in the comparison."""
    size, crop = about["size"], about.get("crop_size")
    edge = int(size.get("shortest_edge", 0))
    if share := about.get("crop_pct") if edge and edge < 384 else None:
        edge, crop = int(edge / share), edge  # ConvNeXT's way
    elif edge and not about.get("do_center_crop"):
        edge, crop = 0, edge
    side = crop if about.get("do_center_crop") or edge else size.get("height", crop)
    side = int(side["height"] if isinstance(side, Mapping) else side)
    unit = 1 / 255.0 / float(about.get("rescale_factor", 1 / 255.0))
    normal = bool(about.get("do_normalize", True))
    mean, std = (about["image_mean"], about["image_std"]) if normal else ([0.0], [1.0])
    return {
        "input_size": side,
        "edge": edge,
        "squash": not edge,
        "resample": Image.Resampling(int(about.get("resample", 2))).name.lower(),
        "mean": tuple(value * unit for value in mean),
        "std": tuple(value * unit for value in std),
    }


class _Logits(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.network(pixel_values=pixels).logits  # type: ignore[no-any-return]
