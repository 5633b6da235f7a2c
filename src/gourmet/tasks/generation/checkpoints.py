"""Find published checkpoints, and read the used part of their config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gourmet.errors import GourmetError, UsageError
from gourmet.training.loop import BEST, LAST

CONFIG: Final = "config.json"
WEIGHTS: Final = ("model.safetensors", "pytorch_model.bin")
# Of configurations that do not list them, and read them all the same.
_ALWAYS: Final = ("tie_word_embeddings", "decoder_start_token_id")


def find(checkpoint: str, check: Callable[[Path], None], files: Sequence[str]) -> Path:
    """Find the weights of a checkpoint: a file, a folder, or a public name to download with `files`.

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
    """Return the part of a config.json that describes a network of this class of transformers.

    Any other key may choose code: `_attn_implementation` may be the name of a kernel, which transformers
    downloads and runs.
    """
    known = {*configuration.__annotations__, *_ALWAYS}
    shape = {name: value for name, value in config.items() if name in known}
    return {**shape, "attn_implementation": "eager"}
