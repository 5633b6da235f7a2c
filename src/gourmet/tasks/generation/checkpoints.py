"""Checkpoints that others publish: where they lie, and whether they are as large as they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from gourmet.errors import GourmetError, UsageError
from gourmet.tasks.generation.packages import needed
from gourmet.training.files import Tensors
from gourmet.training.loop import BEST, LAST

CONFIG: Final = "config.json"
WEIGHTS: Final = ("model.safetensors", "pytorch_model.bin")
# What is in a network and not in the file: places are computed, and what is shared is stored once.
_SPARE: Final = 1 << 24
# More than in any network that is published. One is built before its numbers are counted.
_MOST_LAYERS: Final = 128
# Of configurations that do not list them, and read them all the same.
_ALWAYS: Final = ("tie_word_embeddings", "decoder_start_token_id")


def find(checkpoint: str, check: Callable[[Path], None], files: Sequence[str]) -> Path:
    """The weights of a checkpoint: a file, a folder, or a public name, which is downloaded with `files`.

    `check` raises GourmetError for a folder whose checkpoint is not of an architecture that is served.
    """
    path = Path(checkpoint)
    if path.is_file():
        return path
    if path.is_dir():
        check(path)
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
        return find(snapshot_download(checkpoint, allow_patterns=[CONFIG, *files, *WEIGHTS]), check, files)
    except GourmetError:
        raise
    except Exception as exc:
        reason = next(iter(str(exc).splitlines()), type(exc).__name__)
        raise GourmetError(
            f"{checkpoint} is not a folder here, and cannot be downloaded ({reason}): get it elsewhere, "
            "and name the folder that holds it"
        ) from exc


def known_to(configuration: type, config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a config.json, what says how the network of this class of transformers is made.

    Any other key may be a second name of a size, which was not held against the weights, or choose code:
    `_attn_implementation` may be the name of a kernel, which transformers downloads and runs.
    """
    known = {*configuration.__annotations__, *_ALWAYS}
    shape = {name: value for name, value in config.items() if name in known}
    return {**shape, "attn_implementation": "eager"}


def most_layers(tensors: Tensors) -> int:
    return min(len(tensors), _MOST_LAYERS)


def check_sizes(config: Mapping[str, Any], limits: Mapping[str, int]) -> None:
    """Raise ValueError where a size is one that the weights do not have."""
    for name, limit in limits.items():
        if not 0 < int(config.get(name, 1)) <= limit:
            raise ValueError(f"{CONFIG} says {name} {config[name]!r}, and the weights allow {limit:,}")


def built_for(build: Callable[[], nn.Module], tensors: Tensors) -> nn.Module:
    """The network that `build` makes, unless it would have far more numbers than there are."""
    with torch.device("meta"):  # which allocates nothing
        claimed = sum(each.numel() for each in build().state_dict().values())
    if claimed > 2 * sum(tensor.numel() for tensor in tensors.values()) + _SPARE:
        raise ValueError(f"{CONFIG} describes {claimed:,} numbers, and the weights have fewer")
    return build()
