"""The network as transformers has it, so that public checkpoints and ours go the same way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

import torch
from torch import nn

from gourmet.errors import GourmetError
from gourmet.runtime.bounded_reading import in_short, read_table
from gourmet.systems.translator.architectures import ARCHITECTURES, Architecture, architecture_of
from gourmet.systems.translator.contract import MAX_NEW_TOKENS, SYSTEM
from gourmet.systems.translator.tokenizer import Tokenizer
from gourmet.systems.translator.vocabularies import DOWNLOADED, Languages, files_of
from gourmet.tasks.generation import checkpoints
from gourmet.tasks.generation.checkpoints import CONFIG, built_for, check_sizes, known_to, most_layers
from gourmet.tasks.generation.packages import needed
from gourmet.training.files import Tensors, load_tensors, put_tensors
from gourmet.training.torchvision_import import torchvision

MOST_TOKENS: Final = 512
_MAX_POSITIONS: Final = 1 << 16
_POSITIONS: Final = "embed_positions.weight"
_HEAD: Final = "lm_head.weight"
_OTHERS: Final = {"bart": "BART", "mbart": "mBART", "umt5": "umT5", "gpt2": "GPT-2"}


@dataclass(frozen=True)
class Checkpoint:
    """A network with the tokenizer that goes with it, and where both are from."""

    network: nn.Module
    tokenizer: Tokenizer
    files: dict[str, bytes]  # the tokenizer's
    architecture: Architecture
    weights: Path
    about: dict[str, Any]

    @property
    def folder(self) -> Path:
        return self.weights.parent


def build(config: dict[str, Any]) -> nn.Module:
    """A network with weights drawn by chance; its tensors have the names of public checkpoints."""
    torchvision()  # which transformers imports where it is installed
    module, configuration, network = architecture_of(config).classes
    with needed():
        classes = import_module(f"transformers.models.{module}")
    # On CPUs torch's fused attention is slower than its parts for rows of some twenty pieces, most of all
    # backwards in bfloat16.
    made = getattr(classes, configuration)
    shape = made(**known_to(made, config))
    found: nn.Module = getattr(classes, network)(shape)
    return found


def load(weights: Path, languages: Languages = (SYSTEM.source, SYSTEM.target)) -> Checkpoint:
    """A file of weights beside its config.json and tokenizer, as runs and public checkpoints have them."""
    folder = weights.parent
    check_architecture(folder)
    if not (folder / CONFIG).is_file():
        raise GourmetError(f"{folder} lacks {CONFIG}, which belongs beside {weights.name}")
    try:
        config = read_table(folder / CONFIG)
        files, architecture = files_of(folder, config, languages), architecture_of(config)
        tensors, about = load_tensors(weights)
        tokenizer = Tokenizer(files)
        network = built_with({"decoder_start_token_id": tokenizer.start, **config}, tensors)
    except GourmetError:
        raise
    except Exception as exc:  # what transformers and sentencepiece make of what somebody wrote
        raise GourmetError(f"{folder} is not a checkpoint that can be used: {in_short(exc)}") from exc
    _check_words(network, tokenizer, folder)
    tensors = {name: each for name, each in tensors.items() if not name.endswith(architecture.unused)}
    if (bias := tensors.get("final_logits_bias")) is not None:
        # Not a parameter, and yet public checkpoints have learned it.
        network.get_buffer("final_logits_bias").copy_(bias)
    _untie(network, tensors)
    # Computed, and nothing that transformers saves today.
    positions = {name: own for name, own in network.state_dict().items() if name.endswith(_POSITIONS)}
    put_tensors(network, positions | tensors, weights)
    return Checkpoint(network.eval(), tokenizer, files, architecture, weights, about)


def check_architecture(folder: Path) -> None:
    """Raise GourmetError where the config.json of `folder` is of a network that is not served here."""
    try:
        config = read_table(folder / CONFIG)
    except (OSError, ValueError):
        return  # which is said where it is read
    kind, size = str(config.get("model_type", "marian")), config.get("vocab_size")
    if kind not in ARCHITECTURES:
        served = ", ".join(each.title for each in ARCHITECTURES.values())
        raise GourmetError(
            f"{folder} holds {_OTHERS.get(kind, shorten(kind, 40))}: only translators of these architectures "
            f"are served: {served}"
        )
    try:
        ARCHITECTURES[kind].check(config)
    except GourmetError as exc:
        raise GourmetError(f"{folder} holds {ARCHITECTURES[kind].title}, and {exc}") from exc
    shared = config.get("share_encoder_decoder_embeddings", True)
    if not shared or (config.get("decoder_vocab_size") or size) != size:
        raise GourmetError(f"{folder} has a vocabulary for each language, and only a shared one is served")


def built_with(config: dict[str, Any], tensors: Tensors) -> nn.Module:
    """The network of `config`, whose sizes are none that the file of weights does not have."""
    known = architecture_of(config)
    longest = max((length for tensor in tensors.values() for length in tensor.shape), default=0)
    limits = dict.fromkeys(known.sizes, longest) | dict.fromkeys(known.counts, most_layers(tensors))
    check_sizes(config, limits | dict.fromkeys(known.places, _MAX_POSITIONS))
    return built_for(partial(build, config), tensors)


def _check_words(network: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """That it knows each word of its vocabulary, and as many places as an answer may have."""
    if tokenizer.max_id >= (size := int(network.config.vocab_size)):
        raise GourmetError(
            f"{folder}: its vocabulary goes up to {tokenizer.max_id:,}, and {CONFIG} says vocab_size {size:,}"
        )
    places = getattr(network.config, "max_position_embeddings", None)
    if places is not None and places < (least := MAX_NEW_TOKENS + len(tokenizer.first)):
        raise GourmetError(
            f"{folder}: {CONFIG} says max_position_embeddings {places:,}, and answers have up to {least:,}"
        )


def _untie(network: Any, tensors: Tensors) -> None:
    """T5's words and answers are the same numbers for transformers, whatever a file says; those of its
    version 1.1 are not, and the file has both.
    """
    own = dict(network.named_parameters(remove_duplicate=False))
    head = own[_HEAD]
    tied = [name for name, each in own.items() if each is head and name in tensors]
    if _HEAD in tied and any(not torch.equal(tensors[name], tensors[_HEAD]) for name in tied):
        network.lm_head.weight = nn.Parameter(torch.empty_like(head))


def find(checkpoint: str) -> Path:
    return checkpoints.find(checkpoint, check_architecture, DOWNLOADED)
