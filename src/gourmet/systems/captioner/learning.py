"""Training of the captioner on photos and captions, and its measurement on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from gourmet.systems.captioner.cider import Cider
from gourmet.systems.captioner.data import CaptionedPhoto
from gourmet.systems.captioner.network import CaptionNetwork
from gourmet.systems.captioner.seen import Seen
from gourmet.systems.captioner.tokenizer import WordPieces, settings_of
from gourmet.tasks.generation.int8 import rounded
from gourmet.tasks.generation.learning import padded
from gourmet.training.muon import half_is_fast
from gourmet.training.task import Phase

_ROWS: Final = 50
# Photos that a caption is not of, and is held against.
_OTHERS: Final = 4
# Where files lie and how many there are says nothing about the network.
_NOT_ABOUT: Final = ("vision", "seen", "views", "teacher")


@dataclass(frozen=True)
class CaptionerConfig:
    """The configuration that `gourmet train captioner NAME=VALUE …` may change."""

    # torchvision's tensors of a ResNet50, as scripts/keras_resnet50.py writes them.
    vision: str = ""
    # Where what it sees of each photo is kept, 200 KB each and for each view.
    seen: str = "runs/captioner-seen"
    views: int = 1  # of each photo: whole, and parts of it
    least: int = 4  # times that a word is said to be one piece
    width: int = 256
    heads: int = 4
    layers: int = 2
    feed_forward: int = 1024
    dropout: float = 0.3
    label_smoothing: float = 0.1
    longest: int = 24  # pieces of a caption to learn from
    batch: int = 24  # photos, with all their captions
    epochs: int = 10
    rate: float = 0.01  # of matrices; the other weights take a fifth of it
    warmup: float = 0.05
    # Self-critical: so many captions of each photo are drawn, and what is better than their mean is made
    # likelier. Begin with the best weights of a run without.
    drawn: int = 0
    # What a caption would be worth for other photos counts so much against it: without, captions become
    # likelier that say little.
    apart: float = 0.0
    # Weights of a run with the same words: half of what is learned is then how likely it finds each.
    teacher: str = ""


def spoken(caption: str) -> str:
    """A caption without what is not said."""
    return "".join(letter if letter.isalnum() or letter in "'-" else " " for letter in caption)


class CaptionerTask:
    """The network and its photos, as the training engine wants them."""

    def __init__(
        self,
        config: CaptionerConfig,
        network: CaptionNetwork,
        files: dict[str, bytes],
        parts: tuple[Sequence[CaptionedPhoto], Sequence[CaptionedPhoto]],
        looked: Sequence[Seen],
        teacher: CaptionNetwork | None = None,
    ) -> None:
        self.config, self.captioner, self.files, self.teacher = config, network, files, teacher
        self.network: nn.Module = network
        network.vision_model.freeze()
        settings = settings_of(network.side, network.places, network.start, network.end)
        self.tokenizer = WordPieces({**files, **settings})
        network.never = sorted({*network.never, self.tokenizer.unknown})
        train, self.held = parts
        *self.views, self.seen_held = looked
        cut = [[self.tokenizer.encode(spoken(text)) for text in photo.captions] for photo in train]
        self.captions = [[each for each in texts if len(each) < config.longest] for texts in cut]
        self.photos = [place for place, texts in enumerate(self.captions) if texts]
        self.reward = Cider([photo.captions for photo in train]) if config.drawn else None
        self.measured = Cider([photo.captions for photo in self.held])
        kept = {name: value for name, value in asdict(config).items() if name not in _NOT_ABOUT}
        self.about: dict[str, Any] = {
            "system": "captioner",
            "architecture": "BLIP's decoder over ResNet50",
            **kept,
            **({"taught": True} if teacher else {}),
            "photos": len(self.photos),
        }

    def order(self, generator: torch.Generator) -> torch.Tensor:
        return torch.tensor(self.photos)[torch.randperm(len(self.photos), generator=generator)]

    def loss(self, examples: torch.Tensor, phase: Phase, generator: torch.Generator) -> torch.Tensor:
        shown = examples.tolist()
        views = torch.randint(len(self.views), (len(shown),), generator=generator).tolist()
        # A grid that is mirrored is nearly what is seen in a mirror.
        mirrored = torch.randint(2, (len(shown),), generator=generator).tolist()
        grid = np.stack(
            [
                self.views[view][photo][..., :: -1 if mirror else 1]
                for view, photo, mirror in zip(views, shown, mirrored, strict=True)
            ]
        )
        if self.reward:
            return self._self_critical(shown, self._seen(grid))
        captions, seen = [self.captions[photo] for photo in shown], self._seen(grid)
        scores, targets = self._scores(self.captioner, seen, captions)
        said = F.cross_entropy(scores, targets, label_smoothing=self.config.label_smoothing)
        if not self.teacher:
            return said
        with torch.no_grad():
            taught = F.softmax(self._scores(self.teacher, seen, captions)[0], dim=-1)
        return (said + F.cross_entropy(scores, taught)) / 2

    def _self_critical(self, shown: Sequence[int], grid: torch.Tensor) -> torch.Tensor:
        """A caption's reward is its CIDEr-D less that of the others drawn of its photo, on average."""
        assert self.reward
        drawn, end = self.config.drawn, self.tokenizer.end
        self.network.eval()
        with torch.no_grad():
            states = self.captioner.vision_model.states(grid).repeat_interleave(drawn, dim=0)
            found = self.captioner.generate(states, [], self.config.longest, do_sample=True, top_k=0)
        captions = [_until(end, row[1:]) for row in found.tolist()]
        rewards = torch.tensor(
            [
                self._reward(shown, place // drawn, self.tokenizer.decode(caption))
                for place, caption in enumerate(captions)
            ]
        ).view(-1, drawn)
        others = (rewards.sum(dim=1, keepdim=True) - rewards) / (drawn - 1)
        grouped = [captions[first : first + drawn] for first in range(0, len(captions), drawn)]
        scores, targets = self._scores(self.captioner, grid, grouped)
        lengths = torch.tensor([len(caption) + 1 for caption in captions])
        worth = (rewards - others).flatten().repeat_interleave(lengths)
        return (F.cross_entropy(scores, targets, reduction="none") * worth).mean()

    def _reward(self, shown: Sequence[int], place: int, text: str) -> float:
        assert self.reward
        own = self.reward.score(shown[place], text)
        if not self.config.apart:
            return own
        others = [shown[(place + step) % len(shown)] for step in range(1, _OTHERS + 1)]
        return own - self.config.apart * sum(self.reward.score(each, text) for each in others) / _OTHERS

    def _seen(self, grid: Seen) -> torch.Tensor:
        found = torch.from_numpy(np.asarray(grid, np.float32))
        return found.to(next(self.network.parameters()).device)

    def _scores(
        self, network: CaptionNetwork, grid: torch.Tensor, captions: Sequence[Sequence[Sequence[int]]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits of every place of every caption, and which word is right.

        Those of a photo are one row, where they attend to the same memory, and not to each other.
        """
        start, end = self.tokenizer.start, self.tokenizer.end
        begun = [[token for caption in texts for token in (start, *caption)] for texts in captions]
        right = [token for texts in captions for caption in texts for token in (*caption, end)]
        places = [[place for caption in texts for place in range(len(caption) + 1)] for texts in captions]
        whose = [
            [number for number, caption in enumerate(texts) for _ in range(len(caption) + 1)]
            for texts in captions
        ]
        device = grid.device
        ids, at, of = (padded(rows, -1).to(device) for rows in (begun, places, whose))
        hidden = (of[:, :, None] != of[:, None, :]) | (at[:, :, None] < at[:, None, :])
        mask = torch.zeros(hidden.shape, device=device).masked_fill(hidden, torch.finfo(torch.float32).min)
        with torch.autocast(device.type, torch.bfloat16, enabled=half_is_fast(device)):
            states = network.text_decoder.bert(
                input_ids=ids.clamp(min=0),
                attention_mask=mask[:, None],
                position_ids=at.clamp(min=0),
                encoder_hidden_states=network.vision_model.states(grid),
                use_cache=False,
                is_decoder=True,
            ).last_hidden_state
            scores = network.text_decoder.cls(states[of >= 0])
        return scores.float(), torch.tensor(right, device=device)

    def kept(self, network: nn.Module) -> nn.Module:
        return rounded(network)

    def measure(self, network: nn.Module) -> dict[str, float]:
        """CIDEr-D of photos held out, said without a search, and the share of captions that are distinct."""
        assert isinstance(network, CaptionNetwork)
        answers: list[str] = []
        for first in range(0, len(self.held), _ROWS):
            with torch.inference_mode():
                states = network.vision_model.states(self._seen(self.seen_held[first : first + _ROWS]))
            found = network.generate(states, [], self.config.longest).tolist()
            answers += [self.tokenizer.decode(_until(self.tokenizer.end, row[1:])) for row in found]
        cider = self.measured.mean(answers)
        return {"score": cider, "cider": cider, "distinct": len(set(answers)) / len(answers)}


def _until(end: int, row: Sequence[int]) -> Sequence[int]:
    return row[: row.index(end)] if end in row else row
