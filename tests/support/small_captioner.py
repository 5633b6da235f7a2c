"""Captioners drawn by chance, as checkpoints and as packages: of BLIP's real ratios, or as small as ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gourmet.export.checkpoints import Checkpoint
from gourmet.export.text_int8 import rounded
from gourmet.systems.captioner.export import decoder_graph, vision_graph
from gourmet.systems.captioner.network import GRID_VISION, CaptionNetwork, load
from gourmet.systems.captioner.tokenizer import VOCABULARY, learn
from gourmet.training.files import save_tensors

_TEXTS = (
    "a photograph of a dog running through the snow beside a brown ball",
    "two children in red shirts play on a bench near the water while a man looks on",
)

# By which captions differ, and some end early.
_DRAWN = {"blip": (0, 2.0), "grid": (2, 1.0)}


def config(kind: str, words: int) -> dict[str, Any]:
    """BLIP's is of 384 pixels in squares of 16, so that there are 577 places; it is narrow and shallow."""
    text = {
        **{"vocab_size": words, "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "max_position_embeddings": 64, "hidden_act": "gelu"},
        **{"pad_token_id": 0, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3},
    }
    vision: dict[str, Any] = {
        **{"model_type": "blip_vision_model", "hidden_size": 48, "intermediate_size": 192},
        **{"num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 384, "patch_size": 16},
    }
    if kind == "grid":
        vision = {"model_type": GRID_VISION, "image_size": 128, "hidden_size": 32, "channels": 8}
    return {"model_type": "blip", "text_config": text, "vision_config": vision}


def checkpoint(folder: Path, kind: str = "blip") -> Checkpoint:
    """Written to `folder` as a run or a public checkpoint is, and opened."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = learn(_TEXTS, min_count=1)
    shape = config(kind, vocabulary.count(b"\n"))
    seed, wish_to_end = _DRAWN[kind]
    torch.manual_seed(seed)
    network = CaptionNetwork(shape)
    _draw(network, wish_to_end)
    (folder / VOCABULARY).write_bytes(vocabulary)
    (folder / "config.json").write_text(json.dumps(shape))
    save_tensors(folder / "model.safetensors", rounded(network).state_dict(), {})  # as runs keep them
    return load(folder / "model.safetensors")


def files(opened: Checkpoint) -> dict[str, bytes]:
    network = opened.network
    graphs = {"vision.onnx": vision_graph(network), "decoder.onnx": decoder_graph(network)}
    return opened.files | {name: graph.file() for name, graph in graphs.items()}


def _draw(network: CaptionNetwork, wish_to_end: float) -> None:
    """So large that pictures differ, and words, and that captions end somewhere."""
    with torch.no_grad():
        for name, part in network.named_modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, 0, part.weight.shape[1] ** -0.5 * 1.5)
            elif isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
                part.weight *= 0.5 if name.endswith("conv3") else 1.0
        network.text_decoder.cls.predictions.bias[network.end] = wish_to_end
