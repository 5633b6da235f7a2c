"""Marian's network as transformers has it, so that public checkpoints and ours are loaded in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from torch import nn

from gourmet.errors import GourmetError
from gourmet.export.checkpoints import CONFIG, Architecture, Checkpoint, known_to
from gourmet.systems.translator.contract import MAX_NEW_TOKENS
from gourmet.systems.translator.tokenizer import FILES, Tokenizer
from gourmet.training.files import put_tensors, torchvision

MAX_POSITIONS: Final = 512
_POSITIONS: Final = "embed_positions.weight"
_ACTIVATIONS: Final = ("relu", "gelu", "gelu_new", "silu", "swish")


def build(config: dict[str, Any]) -> nn.Module:
    """Build a network with random weights; its tensors have the names of public checkpoints."""
    torchvision()  # which transformers imports where it is installed
    from transformers import MarianConfig, MarianMTModel

    # On CPUs torch's fused attention is slower than its parts for rows of some twenty pieces, most of all
    # backwards in bfloat16.
    network: nn.Module = MarianMTModel(MarianConfig(**known_to(MarianConfig, config)))
    return network


def _opened(config: dict[str, Any], files: dict[str, bytes]) -> tuple[nn.Module, Tokenizer, dict[str, bytes]]:
    tokenizer = Tokenizer(files)
    return build({"decoder_start_token_id": tokenizer.pad, **config}), tokenizer, files


def load(weights: Path) -> Checkpoint:
    """Load the weights of a run or public checkpoint, with the config.json and tokenizer beside them."""
    checkpoint, tensors = MARIAN.open(weights)
    network: nn.Module = checkpoint.network
    _check_words(network, checkpoint.tokenizer, checkpoint.folder)
    if (bias := tensors.get("final_logits_bias")) is not None:
        # Not a parameter, and yet public checkpoints have learned it.
        network.get_buffer("final_logits_bias").copy_(bias)
    # Computed, and nothing that transformers saves today.
    positions = {name: own for name, own in network.state_dict().items() if name.endswith(_POSITIONS)}
    put_tensors(network, positions | tensors, weights)
    return checkpoint


def _check(config: dict[str, Any], folder: Path) -> None:
    if (activation := config.get("activation_function", _ACTIVATIONS[0])) not in _ACTIVATIONS:
        raise GourmetError(
            f"{folder} has the activation_function {str(activation)[:40]!r}, which must be one of "
            f"{', '.join(_ACTIVATIONS)}"
        )
    size, shared = config.get("vocab_size"), config.get("share_encoder_decoder_embeddings", True)
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


MARIAN: Final = Architecture(
    "marian", "translators of Marian's architecture are served", FILES, _opened, _check
)
