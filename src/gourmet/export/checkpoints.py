"""Find and open checkpoints of networks that generate text, published ones and those of our runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

from gourmet.errors import GourmetError, UsageError
from gourmet.served.reading import error_summary, read_table
from gourmet.training.files import Tensors, load_tensors
from gourmet.training.loop import BEST, LAST

CONFIG: Final = "config.json"
WEIGHTS: Final = ("model.safetensors", "pytorch_model.bin")
# Settings that configurations read, though they do not list them.
_ALWAYS: Final = ("tie_word_embeddings", "decoder_start_token_id")


@dataclass(frozen=True)
class Checkpoint:
    """A network with its tokenizer, and the origin of both."""

    network: Any
    tokenizer: Any
    files: dict[str, bytes]  # the tokenizer's, as a package has them
    weights: Path
    about: dict[str, Any]

    @property
    def folder(self) -> Path:
        return self.weights.parent


@dataclass(frozen=True)
class Architecture:
    """How checkpoints of one architecture are found and opened."""

    kind: str  # the `model_type` in a config.json
    served: str  # what is served, in messages
    files: Sequence[str]  # that belong beside the weights
    # Build an untrained network and its tokenizer of a config.json and the `files`; return more `files` too.
    build: Callable[[dict[str, Any], dict[str, bytes]], tuple[Any, Any, dict[str, bytes]]]
    # Raise GourmetError for a config.json of a network that is not served.
    check: Callable[[dict[str, Any], Path], None] = lambda config, folder: None

    def find(self, checkpoint: str) -> Path:
        """Find the weights of a checkpoint: a file, a folder, or a public name to download."""
        path = Path(checkpoint)
        if path.is_file():
            return path
        if path.is_dir():
            self.check_folder(path)
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
            patterns = [CONFIG, *self.files, *WEIGHTS]
            return self.find(snapshot_download(checkpoint, allow_patterns=patterns))
        except GourmetError:
            raise
        except Exception as exc:
            raise GourmetError(
                f"{checkpoint} is not a folder here, and cannot be downloaded ({error_summary(exc)}): get it "
                "elsewhere, and name the folder that holds it"
            ) from exc

    def check_folder(self, folder: Path) -> None:
        """Raise GourmetError if the config.json in `folder` describes a network that is not served here."""
        try:
            config = read_table(folder / CONFIG)
        except (OSError, ValueError):
            return  # which is reported where it is opened
        if (kind := str(config.get("model_type", self.kind))) != self.kind:
            raise GourmetError(f"{folder} holds {shorten(kind, 40)}: only {self.served}")
        self.check(config, folder)

    def open(self, weights: Path) -> tuple[Checkpoint, Tensors]:
        """Open a checkpoint; return it with the tensors of its file, which are not in the network yet."""
        folder = weights.parent
        self.check_folder(folder)
        if lacking := [name for name in (CONFIG, *self.files) if not (folder / name).is_file()]:
            raise GourmetError(f"{folder} lacks {', '.join(lacking)}, which belong beside {weights.name}")
        try:
            tensors, about = load_tensors(weights)
            read = {name: (folder / name).read_bytes() for name in self.files}
            network, tokenizer, files = self.build(read_table(folder / CONFIG), read)
        except GourmetError:
            raise
        except Exception as exc:  # what transformers and tokenizers make of what somebody wrote
            raise GourmetError(
                f"{folder} is not a checkpoint that can be used: {error_summary(exc)}"
            ) from exc
        return Checkpoint(network.eval(), tokenizer, files, weights, about), tensors


def known_to(configuration: type, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a config.json that describes a network of this class of transformers.

    Any other key may choose code: `_attn_implementation` may be the name of a kernel, which transformers
    downloads and runs.
    """
    known = {*configuration.__annotations__, *_ALWAYS}
    shape = {name: value for name, value in config.items() if name in known}
    return {**shape, "attn_implementation": "eager"}
