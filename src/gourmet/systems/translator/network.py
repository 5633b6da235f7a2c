"""Marian's network as transformers has it, so that public checkpoints and ours are loaded in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

from torch import nn

from gourmet.errors import GourmetError
from gourmet.runtime.reading import in_short, read_table
from gourmet.systems.translator.contract import MAX_NEW_TOKENS
from gourmet.systems.translator.tokenizer import FILES, Tokenizer
from gourmet.tasks.generation import checkpoints
from gourmet.tasks.generation.checkpoints import CONFIG, known_to
from gourmet.training.files import load_tensors, put_tensors, torchvision

MOST_TOKENS: Final = 512
_POSITIONS: Final = "embed_positions.weight"
# By the `model_type` of a config.json: names of others, to refuse them by.
_OTHERS: Final = {
    **{"bart": "BART", "mbart": "mBART", "m2m_100": "M2M100", "gpt2": "GPT-2"},
    **{"t5": "T5", "mt5": "mT5", "umt5": "umT5"},
}
_ACTIVATIONS: Final = ("relu", "gelu", "gelu_new", "silu", "swish")


@dataclass(frozen=True)
class Checkpoint:
    """A network with its tokenizer, and the origin of both."""

    network: nn.Module
    tokenizer: Tokenizer
    files: dict[str, bytes]  # the tokenizer's
    weights: Path
    about: dict[str, Any]

    @property
    def folder(self) -> Path:
        return self.weights.parent


def build(config: dict[str, Any]) -> nn.Module:
    """Build a network with random weights; its tensors have the names of public checkpoints."""
    torchvision()  # which transformers imports where it is installed
    from transformers import MarianConfig, MarianMTModel

    # On CPUs torch's fused attention is slower than its parts for rows of some twenty pieces, most of all
    # backwards in bfloat16.
    network: nn.Module = MarianMTModel(MarianConfig(**known_to(MarianConfig, config)))
    return network


def load(weights: Path) -> Checkpoint:
    """Load the weights of a run or public checkpoint, with the config.json and tokenizer beside them."""
    folder = weights.parent
    check_architecture(folder)
    if not (folder / CONFIG).is_file():
        raise GourmetError(f"{folder} lacks {CONFIG}, which belongs beside {weights.name}")
    try:
        config = read_table(folder / CONFIG)
        files = _vocabulary(folder)
        tensors, about = load_tensors(weights)
        tokenizer = Tokenizer(files)
        network = build({"decoder_start_token_id": tokenizer.pad, **config})
    except GourmetError:
        raise
    except Exception as exc:  # what transformers and sentencepiece make of what somebody wrote
        raise GourmetError(f"{folder} is not a checkpoint that can be used: {in_short(exc)}") from exc
    _check_words(network, tokenizer, folder)
    if (bias := tensors.get("final_logits_bias")) is not None:
        # Not a parameter, and yet public checkpoints have learned it.
        network.get_buffer("final_logits_bias").copy_(bias)
    # Computed, and nothing that transformers saves today.
    positions = {name: own for name, own in network.state_dict().items() if name.endswith(_POSITIONS)}
    put_tensors(network, positions | tensors, weights)
    return Checkpoint(network.eval(), tokenizer, files, weights, about)


def _vocabulary(folder: Path) -> dict[str, bytes]:
    if lacking := [name for name in FILES if not (folder / name).is_file()]:
        raise GourmetError(
            f"{folder} lacks {', '.join(lacking)}: the vocabulary of SentencePiece that belongs beside the "
            "weights"
        )
    return {name: (folder / name).read_bytes() for name in FILES}


def check_architecture(folder: Path) -> None:
    """Raise GourmetError if the config.json in `folder` describes a network that is not served here."""
    try:
        config = read_table(folder / CONFIG)
    except (OSError, ValueError):
        return  # which is said where it is read
    kind, size = str(config.get("model_type", "marian")), config.get("vocab_size")
    if kind != "marian":
        raise GourmetError(
            f"{folder} holds {_OTHERS.get(kind, shorten(kind, 40))}: only translators of Marian's "
            "architecture are served"
        )
    if (activation := config.get("activation_function", _ACTIVATIONS[0])) not in _ACTIVATIONS:
        raise GourmetError(
            f"{folder} has the activation_function {str(activation)[:40]!r}, which must be one of "
            f"{', '.join(_ACTIVATIONS)}"
        )
    shared = config.get("share_encoder_decoder_embeddings", True)
    if not shared or (config.get("decoder_vocab_size") or size) != size:
        raise GourmetError(f"{folder} has a vocabulary for each language, and only a shared one is served")


def _check_words(network: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Check that the network knows every word of its vocabulary, and positions for the longest answer."""
    if tokenizer.max_id >= (size := int(network.config.vocab_size)):
        raise GourmetError(
            f"{folder}: its vocabulary goes up to {tokenizer.max_id:,}, and {CONFIG} says vocab_size {size:,}"
        )
    places = network.config.max_position_embeddings
    if places < MAX_NEW_TOKENS:
        raise GourmetError(
            f"{folder}: {CONFIG} says max_position_embeddings {places:,}, and answers have up to "
            f"{MAX_NEW_TOKENS:,}"
        )


def find(checkpoint: str) -> Path:
    return checkpoints.find(checkpoint, check_architecture, FILES)
