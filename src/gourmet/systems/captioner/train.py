"""Teach the captioner to say what its frozen vision encoder sees: by what people said, then by reward."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from gourmet.errors import UsageError
from gourmet.runtime.files import written_aside
from gourmet.runtime.manifest import sha256
from gourmet.systems.captioner.data import decoded, photos
from gourmet.systems.captioner.int8_vision import BODY, body
from gourmet.systems.captioner.learning import CaptionerConfig, CaptionerTask, spoken
from gourmet.systems.captioner.network import GRID_VISION, CaptionNetwork, load
from gourmet.systems.captioner.seen import pixels, seen
from gourmet.systems.captioner.tokenizer import VOCABULARY, learn
from gourmet.systems.captioner.vision import folded
from gourmet.tasks.generation.checkpoints import CONFIG
from gourmet.tasks.generation.learning import changed
from gourmet.training.files import load_tensors
from gourmet.training.task import Phase, Recipe, Tick, Training

SIDE: Final = 128
_START, _END = 2, 3  # the numbers of the signs in a vocabulary that is learned
_MOST_WORDS: Final = 64
_MEASURED: Final = 500
_CALIBRATED_ON: Final = 100


@dataclass(frozen=True)
class CaptionerTraining:
    """Fulfils `gourmet.training.task.Training`."""

    config: CaptionerConfig = field(default_factory=CaptionerConfig)

    def configured(self, overrides: Sequence[str]) -> CaptionerTraining:
        """Return the training with some configuration as `name=value`; raise UsageError."""
        return replace(self, config=changed(self.config, overrides))

    def recipe(
        self, *, epochs: int | None, rate: float | None, seed: int, device: str, pretrained: bool
    ) -> Recipe:
        config = self.config
        if pretrained:
            raise UsageError("name the weights that the captioner sees with: vision=FILE, not --pretrained")
        return Recipe(
            epochs or config.epochs,
            (Phase(0.0, config.batch),),
            rate or config.rate,
            warmup=config.warmup,
            ema_decay=0.998,
            seed=seed,
        )

    def prepare(
        self, data: Path, *, limit: int | None, seed: int, device: str, pretrained: bool, tick: Tick
    ) -> CaptionerTask:
        config = self.config
        if not config.vision:
            raise UsageError(
                "the captioner does not learn to see: vision=FILE names the weights of a ResNet50"
            )
        train = photos(data, "train", limit)
        held = photos(data, "validation", min(limit or _MEASURED, _MEASURED))
        vocabulary = learn((spoken(text) for photo in train for text in photo.captions), config.least)
        weights, folder = Path(config.vision), Path(config.seen)
        sees_by = folded(load_tensors(weights)[0])
        shape = shape_of(config, vocabulary.count(b"\n"), len(sees_by["conv1.bias"]))
        torch.manual_seed(seed)
        network = CaptionNetwork(shape)
        network.vision_model.load_state_dict(sees_by, strict=False)
        sees = folder / f"{sha256(weights)[:16]}.onnx"
        if not sees.is_file():
            some = train[:: max(1, len(train) // _CALIBRATED_ON)]
            with written_aside(sees) as aside:
                squares = np.stack(list(decoded(data, some, SIDE, pixels)))
                aside.write_bytes(body(network.vision_model, squares))
        graph, views = sees.read_bytes(), [(train, view) for view in range(config.views)]
        looked = [
            seen(graph, data, each, side=SIDE, folder=folder, view=view, tick=tick)
            for each, view in (*views, (held, 0))
        ]
        files = {
            CONFIG: (json.dumps(shape, indent=2) + "\n").encode(),
            VOCABULARY: vocabulary,
            BODY: graph,
        }
        teacher = load(Path(config.teacher)).network.to(device) if config.teacher else None
        return CaptionerTask(config, network.to(device), files, (train, held), looked, teacher)

    def bundled_data(self) -> None:
        """Return None: a folder of photos with captions has to be named."""


def shape_of(config: CaptionerConfig, words: int, channels: int) -> dict[str, Any]:
    """Describe the network as the config.json of a BLIP checkpoint does, but for its vision part."""
    return {
        "model_type": "blip",
        "text_config": {
            "vocab_size": words,
            "hidden_size": config.width,
            "intermediate_size": config.feed_forward,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "max_position_embeddings": _MOST_WORDS,
            "hidden_act": "gelu",
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": 0.0,
            "pad_token_id": 0,
            "bos_token_id": _START,
            "eos_token_id": _END,
            "sep_token_id": _END,
        },
        "vision_config": {
            "model_type": GRID_VISION,
            "image_size": SIDE,
            "hidden_size": config.width,
            "channels": channels,
            "dropout": config.dropout,
        },
    }


TRAINING: Final[Training] = CaptionerTraining()
