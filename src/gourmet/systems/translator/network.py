"""The network: Marian's, as transformers has it, so that public checkpoints and ours go the same way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

import torch
from torch import nn

from gourmet.errors import GourmetError, UsageError
from gourmet.runtime.bounded_reading import in_short, read_bytes, read_table
from gourmet.systems.translator.tokenizer import FILES, Tokenizer
from gourmet.tasks.generation.packages import needed
from gourmet.training.files import Tensors, load_tensors, put_tensors
from gourmet.training.loop import BEST, LAST
from gourmet.training.torchvision_import import torchvision

CONFIG: Final = "config.json"
WEIGHTS: Final = ("model.safetensors", "pytorch_model.bin")
MOST_TOKENS: Final = 512
_SIZES: Final = ("d_model", "vocab_size", "encoder_ffn_dim", "decoder_ffn_dim")
_LAYERS: Final = ("encoder_layers", "decoder_layers")
_MAX_POSITIONS: Final = 1 << 16
_MOST_BYTES: Final = 64 << 20
# What is in the network and not in the file: positions are computed, and what is shared is stored once.
_SPARE: Final = 1 << 24
_POSITIONS: Final = "embed_positions.weight"
_OTHERS: Final = {"t5": "T5", "bart": "BART", "mbart": "mBART", "m2m_100": "M2M100", "gpt2": "GPT-2"}


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
    check_architecture(folder)
    if lacking := [name for name in (CONFIG, *FILES) if not (folder / name).is_file()]:
        raise GourmetError(f"{folder} lacks {', '.join(lacking)}, which belong beside {weights.name}")
    tensors, about = load_tensors(weights)
    try:
        network = _built_for(read_table(folder / CONFIG), tensors)
        tokenizer = Tokenizer({name: read_bytes(folder / name, _MOST_BYTES) for name in FILES})
    except GourmetError:
        raise
    except Exception as exc:  # what transformers and sentencepiece make of what somebody wrote
        raise GourmetError(f"{folder} is not a checkpoint that can be used: {in_short(exc)}") from exc
    if (bias := tensors.get("final_logits_bias")) is not None:
        # Not a parameter, and yet public checkpoints have learned it.
        network.get_buffer("final_logits_bias").copy_(bias)
    # Computed, and nothing that transformers saves today.
    positions = {name: own for name, own in network.state_dict().items() if name.endswith(_POSITIONS)}
    put_tensors(network, positions | tensors, weights)
    return Checkpoint(network.eval(), tokenizer, folder, weights, about)


def check_architecture(folder: Path) -> None:
    """Raise GourmetError where the config.json of `folder` is of a network that is not served here."""
    try:
        config = read_table(folder / CONFIG)
    except (OSError, ValueError):
        return  # which is said where it is read
    kind, size = str(config.get("model_type", "marian")), config.get("vocab_size")
    if kind != "marian":
        raise GourmetError(
            f"{folder} holds {_OTHERS.get(kind, shorten(kind, 40))}: only translators of Marian's "
            "architecture are served, such as those of Helsinki-NLP"
        )
    shared = config.get("share_encoder_decoder_embeddings", True)
    if not shared or (config.get("decoder_vocab_size") or size) != size:
        raise GourmetError(f"{folder} has a vocabulary for each language, and only a shared one is served")


def _built_for(config: dict[str, Any], tensors: Tensors) -> nn.Module:
    """The network of `config`, whose sizes are none that the file of weights does not have."""
    longest = max((length for tensor in tensors.values() for length in tensor.shape), default=0)
    limits = dict.fromkeys(_SIZES, longest) | dict.fromkeys(_LAYERS, len(tensors))
    for name, limit in {**limits, "max_position_embeddings": _MAX_POSITIONS}.items():
        if not 0 < int(config.get(name, 1)) <= limit:
            raise ValueError(f"{CONFIG} says {name} {config[name]!r}, and the weights allow {limit:,}")
    with torch.device("meta"):  # which allocates nothing
        claimed = sum(each.numel() for each in build(config).state_dict().values())
    if claimed > 2 * sum(tensor.numel() for tensor in tensors.values()) + _SPARE:
        raise ValueError(f"{CONFIG} describes {claimed:,} numbers, and the weights have fewer")
    return build(config)


def find(checkpoint: str) -> Path:
    """The weights of a checkpoint: a file, a folder, or a public name, which is downloaded."""
    path = Path(checkpoint)
    if path.is_file():
        return path
    if path.is_dir():
        check_architecture(path)
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
    except GourmetError:
        raise
    except Exception as exc:
        reason = next(iter(str(exc).splitlines()), type(exc).__name__)
        raise GourmetError(
            f"{checkpoint} is not a folder here, and cannot be downloaded ({reason}): get it elsewhere, "
            "and name the folder that holds it"
        ) from exc
