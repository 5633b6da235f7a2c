"""The network: BLIP's text decoder as transformers has it, over BLIP's vision encoder or over a small one, so
that public checkpoints and ours go the same way: a picture's hidden states in, words out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Final, cast

import torch
from torch import nn

from gourmet.errors import GourmetError
from gourmet.runtime.reading import in_short, read_table
from gourmet.systems.captioner import vision
from gourmet.systems.captioner.tokenizer import VOCABULARY, WordPieces, settings_of
from gourmet.tasks.generation import checkpoints
from gourmet.tasks.generation.checkpoints import CONFIG, known_to
from gourmet.training.files import load_tensors, put_tensors
from gourmet.training.torchvision_import import torchvision

# What a config calls the small vision encoder.
GRID_VISION: Final = "resnet50_grid"
_BLIP_VISION: Final = "blip_vision_model"
# BLIP's pictures were normalised by these.
_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_STD: Final = (0.26862954, 0.26130258, 0.27577711)
_PLACES: Final = "position_ids"


class CaptionNetwork(nn.Module):
    """`vision_model` and `text_decoder`, by the names that BLIP's checkpoints have for them."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        torchvision()  # which transformers imports where it is installed
        from transformers.models import blip

        seen = dict(config.get("vision_config") or {})
        text = {**known_to(blip.BlipTextConfig, config.get("text_config") or {}), "is_decoder": True}
        self.is_grid = seen.get("model_type") == GRID_VISION
        self.vision_model: Any
        if self.is_grid:
            width = int(seen["hidden_size"])
            channels = int(seen.get("channels", vision.CHANNELS))
            self.vision_model = vision.GridVision(width, float(seen.get("dropout", 0.0)), channels)
            self.side, self.places = int(seen["image_size"]), vision.GRID**2
        else:
            shape: Any = blip.BlipVisionConfig(**known_to(blip.BlipVisionConfig, seen))
            self.vision_model = blip.modeling_blip.BlipVisionModel(shape)
            width, self.side = shape.hidden_size, int(shape.image_size)
            self.places = (self.side // int(shape.patch_size)) ** 2 + 1
        self.config = cast(Any, blip.BlipTextConfig(**{**text, "encoder_hidden_size": width}))
        self.text_decoder: Any = blip.modeling_blip_text.BlipTextLMHeadModel(self.config)
        self.start, self.end = int(self.config.bos_token_id), int(self.config.sep_token_id)
        if self.config.vocab_size <= max(self.start, self.end):
            raise ValueError("the start or the end of its captions is not in its vocabulary")
        # Signs that are never an answer.
        self.never = sorted({int(self.config.pad_token_id), self.start} - {self.end})

    def states(self, pixel_values: torch.Tensor) -> torch.Tensor:
        found = self.vision_model(pixel_values)
        return found if self.is_grid else found.last_hidden_state  # type: ignore[no-any-return]

    def normalised(self, pixels: torch.Tensor) -> torch.Tensor:
        """uint8 [N, side, side, 3] -> float [N, 3, side, side]"""
        return vision.normalised(pixels) if self.is_grid else vision.normalised(pixels, _MEAN, _STD)

    @torch.inference_mode()
    def generate(
        self, states: torch.Tensor, prompt: Sequence[int], max_tokens: int, **options: Any
    ) -> torch.Tensor:
        """transformers' own loop, called as BlipForConditionalGeneration calls it: start, prompt, words.

        It takes the likeliest words, unless `options` say something else.
        """
        begun = torch.tensor([[self.start, *prompt]] * len(states), device=states.device)
        return self.text_decoder.generate(  # type: ignore[no-any-return]
            input_ids=begun,
            encoder_hidden_states=states,
            encoder_attention_mask=torch.ones(states.shape[:2], dtype=torch.long, device=states.device),
            eos_token_id=self.end,
            pad_token_id=self.config.pad_token_id,
            suppress_tokens=self.never,
            max_new_tokens=max_tokens,
            **{"do_sample": False, "num_beams": 1, **options},
        )


@dataclass(frozen=True)
class CaptionerCheckpoint:
    """A network with the tokenizer that goes with it, and where both are from."""

    network: CaptionNetwork
    tokenizer: WordPieces
    files: dict[str, bytes]  # vocabulary and settings, as a package has them
    folder: Path
    weights: Path
    about: dict[str, Any]


def load(weights: Path) -> CaptionerCheckpoint:
    """A file of weights beside its config.json and vocab.txt, as runs and public checkpoints have them."""
    folder = weights.parent
    check_architecture(folder)
    if lacking := [name for name in (CONFIG, VOCABULARY) if not (folder / name).is_file()]:
        raise GourmetError(f"{folder} lacks {', '.join(lacking)}, which belong beside {weights.name}")
    tensors, about = load_tensors(weights)
    try:
        network = CaptionNetwork(read_table(folder / CONFIG))
        words = (folder / VOCABULARY).read_bytes()
        files = {VOCABULARY: words, **settings_of(network.side, network.places, network.start, network.end)}
        tokenizer = WordPieces(files)
    except GourmetError:
        raise
    except Exception as exc:  # what transformers makes of what somebody wrote
        raise GourmetError(f"{folder} is not a checkpoint that can be used: {in_short(exc)}") from exc
    # Numbers in order, which transformers saved once and computes today.
    kept = {name: each for name, each in tensors.items() if not name.endswith(_PLACES)}
    put_tensors(network, kept, weights)
    network.never = sorted({*network.never, tokenizer.unknown})
    return CaptionerCheckpoint(network.eval(), tokenizer, files, folder, weights, about)


def check_architecture(folder: Path) -> None:
    """Raise GourmetError where the config.json of `folder` is of a network that is not served here."""
    try:
        config = read_table(folder / CONFIG)
    except (OSError, ValueError):
        return  # which is said where it is read
    kind = str(config.get("model_type", "blip"))
    if kind != "blip":
        raise GourmetError(
            f"{folder} holds {shorten(kind, 40)}: only captioners of BLIP's architecture are served, such as "
            "Salesforce/blip-image-captioning-base"
        )
    seen = config.get("vision_config")
    by = str(seen.get("model_type", _BLIP_VISION)) if isinstance(seen, dict) else _BLIP_VISION
    if by not in (GRID_VISION, _BLIP_VISION):
        raise GourmetError(f"{folder} sees by {shorten(by, 40)}: there are {_BLIP_VISION} and {GRID_VISION}")


def find(checkpoint: str) -> Path:
    return checkpoints.find(checkpoint, check_architecture, (VOCABULARY,))
