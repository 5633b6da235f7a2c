"""The network: BLIP's text decoder as transformers has it, over BLIP's vision encoder or over ResNet50, so
that public checkpoints and ours go the same way: a picture's hidden states in, words out.

ResNet50 goes up to its last grid of 7 × 7 places, which is projected to the decoder's width. Its batch norms
are part of its convolutions, as weights for serving have them. As first published, the first convolution of a
block halves a picture, not the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch import nn

from gourmet.errors import GourmetError
from gourmet.export.checkpoints import Architecture, Checkpoint, known_to
from gourmet.systems.captioner.tokenizer import VOCABULARY, WordPieces, settings_of
from gourmet.training.files import put_tensors, torchvision

# The `model_type` of ResNet50 and of BLIP's own encoder in a config.json.
GRID_VISION: Final = "resnet50_grid"
_BLIP_VISION: Final = "blip_vision_model"
GRID: Final = 7
# ImageNet's; BLIP has its own.
MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)
_BLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_BLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
_SEEN_SIDE: Final = 224
_CHANNELS: Final = 64
_BLOCKS: Final = (3, 4, 6, 3)
_EPSILON: Final = 1e-5
_PLACES: Final = "position_ids"


class _Bottleneck(nn.Module):
    def __init__(self, width: int, middle: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, middle, 1, stride)
        self.conv2 = nn.Conv2d(middle, middle, 3, padding=1)
        self.conv3 = nn.Conv2d(middle, 4 * middle, 1)
        self.downsample = None if width == 4 * middle else nn.Conv2d(width, 4 * middle, 1, stride)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        output = self.conv3(F.relu(self.conv2(F.relu(self.conv1(seen)))))
        return F.relu(output + (seen if self.downsample is None else self.downsample(seen)))


class GridVision(nn.Module):
    """float [N, 3, any, any], normalised -> hidden states [N, 49, width]"""

    def __init__(self, width: int, dropout: float, channels: int = _CHANNELS) -> None:
        """Build it; with fewer `channels` it is small enough for tests."""
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 7, 2, padding=3)
        before = channels
        for stage, blocks in enumerate(_BLOCKS):
            middle = channels << stage
            parts = [
                _Bottleneck(4 * middle if number else before, middle, 2 if stage and not number else 1)
                for number in range(blocks)
            ]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*parts))
            before = 4 * middle
        self.seen_channels = before
        self.project = nn.Linear(before, width)
        self.places = nn.Parameter(torch.randn(GRID * GRID, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout1d(dropout)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.states(self.seen(pictures))

    def seen(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return the last grid: [N, channels, rows, columns]."""
        large = F.interpolate(pictures, (_SEEN_SIDE, _SEEN_SIDE), mode="bilinear", align_corners=False)
        grid = F.max_pool2d(F.relu(self.conv1(large)), 3, 2, padding=1)
        for stage in self.stages():
            grid = stage(grid)
        return grid

    def states(self, seen: torch.Tensor) -> torch.Tensor:
        """Return the hidden states of the grid that `seen` returned."""
        grid = self.dropout(seen.flatten(2)).transpose(1, 2)
        return self.norm(self.project(grid) + self.places)  # type: ignore[no-any-return]

    def freeze(self) -> None:
        """Freeze everything before `project`."""
        for part in (self.conv1, *self.stages()):
            part.requires_grad_(False)

    def stages(self) -> list[nn.Module]:
        return [self.get_submodule(f"layer{stage + 1}") for stage in range(len(_BLOCKS))]


def normalised(
    pixels: torch.Tensor, mean: Sequence[float] = MEAN, std: Sequence[float] = STD
) -> torch.Tensor:
    """uint8 [N, rows, columns, 3] -> float [N, 3, rows, columns]"""
    shares = pixels.permute(0, 3, 1, 2).float() / 255.0
    return (shares - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


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
            channels = int(seen.get("channels", _CHANNELS))
            self.vision_model = GridVision(width, float(seen.get("dropout", 0.0)), channels)
            self.side, self.places = int(seen["image_size"]), GRID**2
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
        # Tokens that are never an answer.
        self.never = sorted({int(self.config.pad_token_id), self.start} - {self.end})

    def states(self, pixel_values: torch.Tensor) -> torch.Tensor:
        output = self.vision_model(pixel_values)
        return output if self.is_grid else output.last_hidden_state  # type: ignore[no-any-return]

    def normalised(self, pixels: torch.Tensor) -> torch.Tensor:
        """uint8 [N, side, side, 3] -> float [N, 3, side, side]"""
        return normalised(pixels) if self.is_grid else normalised(pixels, _BLIP_MEAN, _BLIP_STD)

    @torch.inference_mode()
    def generate(
        self, states: torch.Tensor, prompt: Sequence[int], max_tokens: int, **options: Any
    ) -> torch.Tensor:
        """transformers' own loop, called as BlipForConditionalGeneration calls it: start, prompt, words.

        It takes the likeliest words, unless `options` say something else.
        """
        first_tokens = torch.tensor([[self.start, *prompt]] * len(states), device=states.device)
        return self.text_decoder.generate(  # type: ignore[no-any-return]
            input_ids=first_tokens,
            encoder_hidden_states=states,
            encoder_attention_mask=torch.ones(states.shape[:2], dtype=torch.long, device=states.device),
            eos_token_id=self.end,
            pad_token_id=self.config.pad_token_id,
            suppress_tokens=self.never,
            max_new_tokens=max_tokens,
            **{"do_sample": False, "num_beams": 1, **options},
        )


def _opened(
    config: dict[str, Any], files: dict[str, bytes]
) -> tuple[CaptionNetwork, WordPieces, dict[str, bytes]]:
    network = CaptionNetwork(config)
    files |= settings_of(network.side, network.places, network.start, network.end)
    tokenizer = WordPieces(files)
    network.never = sorted({*network.never, tokenizer.unknown})
    return network, tokenizer, files


def _check(config: dict[str, Any], folder: Path) -> None:
    vision = config.get("vision_config")
    kind = str(vision.get("model_type", _BLIP_VISION)) if isinstance(vision, dict) else _BLIP_VISION
    if kind not in (GRID_VISION, _BLIP_VISION):
        raise GourmetError(
            f"{folder} sees by {shorten(kind, 40)}: there are {_BLIP_VISION} and {GRID_VISION}"
        )


BLIP: Final = Architecture(
    "blip",
    "captioners of BLIP's architecture are served, such as Salesforce/blip-image-captioning-base",
    (VOCABULARY,),
    _opened,
    _check,
)


def load(weights: Path) -> Checkpoint:
    """Load the weights of a run or public checkpoint, with the config.json and vocab.txt beside them."""
    checkpoint, tensors = BLIP.open(weights)
    # Position numbers, which older versions of transformers saved.
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(_PLACES)}
    put_tensors(checkpoint.network, kept, weights)
    return checkpoint


def folded(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert torchvision's tensors of a ResNet50 for `GridVision`: fold each norm into its convolution."""
    folded_tensors = {}
    for name in [name for name in tensors if _norm_of(name)]:
        conv, norm = name.removesuffix(".weight"), _norm_of(name)
        scale = tensors[f"{norm}.weight"] / (tensors[f"{norm}.running_var"] + _EPSILON).sqrt()
        conv = conv.removesuffix(".0") if "downsample" in conv else conv
        folded_tensors[f"{conv}.weight"] = tensors[name] * scale[:, None, None, None]
        folded_tensors[f"{conv}.bias"] = tensors[f"{norm}.bias"] - tensors[f"{norm}.running_mean"] * scale
    return folded_tensors


def _norm_of(name: str) -> str:
    """Return the name of the norm after the convolution with this tensor; empty for other tensors."""
    *path, part, _ = ("", *name.split(".")) if name.endswith(".weight") else ("", "")
    if part.startswith("conv"):
        return ".".join([*path, part.replace("conv", "bn")]).lstrip(".")
    return name.replace("downsample.0.weight", "downsample.1") if "downsample.0." in name else ""
