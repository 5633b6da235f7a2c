"""The network: Marian's, as transformers has it, so that public checkpoints and ours go the same way."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import nn

from gourmet.errors import GourmetError, UsageError
from gourmet.systems.translator.tokenizer import FILES, Tokenizer
from gourmet.tasks.generation.packages import needed
from gourmet.training.files import load_tensors, put_tensors
from gourmet.training.loop import BEST, LAST
from gourmet.training.torchvision_import import torchvision

CONFIG: Final = "config.json"
WEIGHTS: Final = ("model.safetensors", "pytorch_model.bin")
MOST_TOKENS: Final = 512


@dataclass(frozen=True)
class Checkpoint:
    """A network with the tokenizer that goes with it, and where both are from."""

    network: nn.Module
    tokenizer: Tokenizer
    folder: Path
    weights: Path
    about: dict[str, Any]


def build(config: dict[str, Any]) -> nn.Module:
    """A network with weights drawn by chance; its tensors have the names of public checkpoints."""
    torchvision()  # which transformers imports where it is installed
    with needed():
        from transformers.models import marian
    # On CPUs torch's fused attention is slower than its parts for rows of some twenty pieces, most of all
    # backwards in bfloat16.
    shape = marian.MarianConfig(**{**config, "attn_implementation": "eager"})
    network: nn.Module = marian.MarianMTModel(shape)
    return network


def load(weights: Path) -> Checkpoint:
    """A file of weights beside its config.json and tokenizer, as runs and public checkpoints have them."""
    folder = weights.parent
    if lacking := [name for name in (CONFIG, *FILES) if not (folder / name).is_file()]:
        raise GourmetError(f"{folder} lacks {', '.join(lacking)}, which belong beside {weights.name}")
    tensors, about = load_tensors(weights)
    network = build(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
    if (bias := tensors.get("final_logits_bias")) is not None:
        # Not a parameter, and yet public checkpoints have learned it.
        network.get_buffer("final_logits_bias").copy_(bias)
    put_tensors(network, tensors, weights)
    files = {name: (folder / name).read_bytes() for name in FILES}
    return Checkpoint(network.eval(), Tokenizer(files), folder, weights, about)


def find(checkpoint: str) -> Path:
    """The weights of a checkpoint: a file, a folder, or a public name, which is downloaded."""
    path = Path(checkpoint)
    if path.is_file():
        return path
    if path.is_dir():
        for name in (*WEIGHTS, BEST, LAST):
            if (path / name).is_file():
                return path / name
        raise UsageError(f"{path} holds neither {' nor '.join(WEIGHTS)}")
    if checkpoint.count("/") != 1 or checkpoint.startswith((".", "/")):
        raise UsageError(
            f"{checkpoint} does not exist: name a folder, a file of weights, or a public checkpoint"
        )
    with needed():
        from huggingface_hub import snapshot_download

    try:
        return find(snapshot_download(checkpoint, allow_patterns=[CONFIG, *FILES, *WEIGHTS]))
    except Exception as exc:
        reason = next(iter(str(exc).splitlines()), type(exc).__name__)
        raise GourmetError(
            f"{checkpoint} is not a folder here, and cannot be downloaded ({reason}): get it elsewhere, "
            "and name the folder that holds it"
        ) from exc
