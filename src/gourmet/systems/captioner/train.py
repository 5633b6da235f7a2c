"""Train the captioner behind its frozen vision encoder: on captions by people, then by reward.

What ResNet50 sees of a photo is computed once and kept in a file, which is read in place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from gourmet.errors import UsageError
from gourmet.export.checkpoints import CONFIG
from gourmet.export.static_int8 import PIXELS
from gourmet.export.text_int8 import rounded
from gourmet.generation.engine import onnx_graph
from gourmet.learning.text_training import MEASURED, GenerationTraining, padded, until
from gourmet.progress import ReportProgress
from gourmet.served.files import written_aside
from gourmet.served.manifest import sha256
from gourmet.systems.captioner.data import CaptionedPhoto, Cider, decoded, photos
from gourmet.systems.captioner.export import BODY, GRID_OUTPUT, body
from gourmet.systems.captioner.network import GRID_VISION, CaptionNetwork, folded
from gourmet.systems.captioner.tokenizer import VOCABULARY, WordPieces, learn, settings_of
from gourmet.training.files import load_tensors
from gourmet.training.muon import half_is_fast
from gourmet.training.task import Phase, Training, TrainOptions

SIDE: Final = 128
_START, _END = 2, 3  # the numbers of the signs in a vocabulary that is learned
_MAX_WORDS: Final = 64
_CALIBRATED_ON: Final = 100
_SEEN_TOGETHER: Final = 8
_MEASURED_TOGETHER: Final = 50
# Other photos that a caption is scored against.
_OTHERS: Final = 4
# The paths of files are left out: they do not describe the network.
_NOT_ABOUT: Final = ("vision", "seen")

Seen = npt.NDArray[np.float16]


@dataclass(frozen=True)
class CaptionerConfig:
    """The configuration that `gourmet train captioner NAME=VALUE …` may change."""

    # torchvision's tensors of a ResNet50, as scripts/keras_resnet50.py writes them.
    vision: str = ""
    # Folder of the grids of all photos, 200 KB each.
    seen: str = "runs/captioner-seen"
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
    # Self-critical training: draw this many captions of each photo, and make those above the mean reward
    # likelier. Begin with the best weights of a run without it.
    drawn: int = 0
    # The weight of a caption's reward for other photos, which is subtracted: it makes vague captions rarer.
    apart: float = 0.0


@dataclass(frozen=True)
class CaptionerTraining(GenerationTraining):
    """Fulfils `gourmet.training.task.Training`."""

    config: CaptionerConfig = field(default_factory=CaptionerConfig)
    ema_decay = 0.998
    not_pretrained = "name the weights that the captioner sees with: vision=FILE, not --pretrained"

    def prepare(self, data: Path, options: TrainOptions, tick: ReportProgress) -> CaptionerTask:
        config = self.config
        if not config.vision:
            raise UsageError(
                "the captioner does not learn to see: vision=FILE names the weights of a ResNet50"
            )
        train = photos(data, "train", options.limit)
        held = photos(data, "validation", min(options.limit or MEASURED, MEASURED))
        vocabulary = learn((spoken(text) for photo in train for text in photo.captions), config.least)
        weights, folder = Path(config.vision), Path(config.seen)
        vision = folded(load_tensors(weights)[0])
        shape = shape_of(config, vocabulary.count(b"\n"), len(vision["conv1.bias"]))
        torch.manual_seed(options.seed)
        network = CaptionNetwork(shape)
        network.vision_model.load_state_dict(vision, strict=False)
        graph_file = folder / f"{sha256(weights)[:16]}.onnx"
        if not graph_file.is_file():
            some = train[:: max(1, len(train) // _CALIBRATED_ON)]
            with written_aside(graph_file) as aside:
                aside.write_bytes(body(network.vision_model, np.stack(list(decoded(data, some, SIDE)))))
        graph = graph_file.read_bytes()
        files = {
            CONFIG: (json.dumps(shape, indent=2) + "\n").encode(),
            VOCABULARY: vocabulary,
            BODY: graph,
        }
        shown, measured = ((part, seen(graph, data, part, folder, tick)) for part in (train, held))
        return CaptionerTask(config, network.to(options.device), files, shown, measured)


def shape_of(config: CaptionerConfig, words: int, channels: int) -> dict[str, Any]:
    """Describe the network as the config.json of a BLIP checkpoint does, but for its vision part."""
    return {
        "model_type": "blip",
        "text_config": {
            "vocab_size": words,
            "hidden_size": config.width,
            "intermediate_size": config.feed_forward,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "max_position_embeddings": _MAX_WORDS,
            "hidden_act": "gelu",
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": 0.0,
            "pad_token_id": 0,
            "bos_token_id": _START,
            "eos_token_id": _END,
            "sep_token_id": _END,
        },
        "vision_config": {
            "model_type": GRID_VISION,
            "image_size": SIDE,
            "hidden_size": config.width,
            "channels": channels,
            "dropout": config.dropout,
        },
    }


def spoken(caption: str) -> str:
    """Return a caption as it is spoken, without signs."""
    return "".join(letter if letter.isalnum() or letter in "'-" else " " for letter in caption)


def seen(
    body: bytes, data: Path, shown: Sequence[CaptionedPhoto], folder: Path, tick: ReportProgress
) -> Seen:
    """Return the grids [photos, channels, rows, columns] of the graph `body`, from `folder` if kept there."""
    key = f"{hashlib.sha256(body).hexdigest()} {SIDE} {[photo.name for photo in shown]}"
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.npy"
    if not path.is_file():
        run, grids = onnx_graph(body, 1), None
        with written_aside(path) as aside:
            for first in range(0, len(shown), _SEEN_TOGETHER):
                squares = [*decoded(data, shown[first : first + _SEEN_TOGETHER], SIDE)]
                (rows,) = run([GRID_OUTPUT], {PIXELS: np.stack(squares)})
                if grids is None:
                    grids = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]
                        aside, "w+", np.float16, (len(shown), *rows.shape[1:])
                    )
                grids[first : first + len(rows)] = rows
                done = first + len(rows)
                tick(done / len(shown), f"looked at {done}/{len(shown)}")
    opened: Any = np.load(path, mmap_mode="r")
    return opened  # type: ignore[no-any-return]


class CaptionerTask:
    """The network and its photos; fulfils `gourmet.training.task.TrainingTask`."""

    def __init__(
        self,
        config: CaptionerConfig,
        network: CaptionNetwork,
        files: dict[str, bytes],
        train: tuple[Sequence[CaptionedPhoto], Seen],
        held: tuple[Sequence[CaptionedPhoto], Seen],
    ) -> None:
        self.config, self.captioner, self.files = config, network, files
        self.network: nn.Module = network
        network.vision_model.freeze()
        settings = settings_of(network.side, network.places, network.start, network.end)
        self.tokenizer = WordPieces({**files, **settings})
        network.never = sorted({*network.never, self.tokenizer.unknown})
        photos, self.seen = train
        self.held, self.seen_held = held
        cut = [[self.tokenizer.encode(spoken(text)) for text in photo.captions] for photo in photos]
        self.captions = [[caption for caption in texts if len(caption) < config.longest] for texts in cut]
        self.photos = [number for number, texts in enumerate(self.captions) if texts]
        self.reward = Cider([photo.captions for photo in photos]) if config.drawn else None
        self.measured = Cider([photo.captions for photo in self.held])
        kept = {name: value for name, value in asdict(config).items() if name not in _NOT_ABOUT}
        self.about: dict[str, Any] = {
            "system": "captioner",
            "architecture": "BLIP's decoder over ResNet50",
            **kept,
            "photos": len(self.photos),
        }

    def order(self, generator: torch.Generator) -> torch.Tensor:
        return torch.tensor(self.photos)[torch.randperm(len(self.photos), generator=generator)]

    def loss(self, examples: torch.Tensor, phase: Phase, generator: torch.Generator) -> torch.Tensor:
        shown = examples.tolist()
        # A mirrored grid is nearly the grid of a mirrored photo.
        mirrored = torch.randint(2, (len(shown),), generator=generator).tolist()
        rows = zip(shown, mirrored, strict=True)
        grid = self._tensor(
            np.stack([self.seen[photo][..., :: -1 if mirror else 1] for photo, mirror in rows])
        )
        if self.reward:
            return self._self_critical(shown, grid)
        captions = [self.captions[photo] for photo in shown]
        scores, targets = self._scores(grid, captions)
        return F.cross_entropy(scores, targets, label_smoothing=self.config.label_smoothing)

    def _self_critical(self, shown: Sequence[int], grid: torch.Tensor) -> torch.Tensor:
        """A caption's reward is its CIDEr-D less that of the others drawn of its photo, on average."""
        assert self.reward
        drawn, end = self.config.drawn, self.tokenizer.end
        self.network.eval()
        with torch.no_grad():
            states = self.captioner.vision_model.states(grid).repeat_interleave(drawn, dim=0)
            drawn_rows = self.captioner.generate(states, [], self.config.longest, do_sample=True, top_k=0)
        captions = [until(end, row[1:]) for row in drawn_rows.tolist()]
        rewards = torch.tensor(
            [
                self._reward(shown, number // drawn, self.tokenizer.decode(caption))
                for number, caption in enumerate(captions)
            ]
        ).view(-1, drawn)
        others = (rewards.sum(dim=1, keepdim=True) - rewards) / (drawn - 1)
        grouped = [captions[first : first + drawn] for first in range(0, len(captions), drawn)]
        scores, targets = self._scores(grid, grouped)
        lengths = torch.tensor([len(caption) + 1 for caption in captions])
        worth = (rewards - others).flatten().repeat_interleave(lengths)
        return (F.cross_entropy(scores, targets, reduction="none") * worth).mean()

    def _reward(self, shown: Sequence[int], number: int, text: str) -> float:
        assert self.reward
        own = self.reward.score(shown[number], text)
        if not self.config.apart:
            return own
        others = [shown[(number + step) % len(shown)] for step in range(1, _OTHERS + 1)]
        return own - self.config.apart * sum(self.reward.score(other, text) for other in others) / _OTHERS

    def _tensor(self, grid: Seen) -> torch.Tensor:
        device = next(self.network.parameters()).device
        return torch.from_numpy(np.asarray(grid, np.float32)).to(device)

    def _scores(
        self, grid: torch.Tensor, captions: Sequence[Sequence[Sequence[int]]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits at every position of every caption, and the right words.

        The captions of a photo are one row: they share its memory, and do not attend to each other.
        """
        start, end = self.tokenizer.start, self.tokenizer.end
        decoder_inputs = [[token for caption in texts for token in (start, *caption)] for texts in captions]
        right = [token for texts in captions for caption in texts for token in (*caption, end)]
        positions = [[at for caption in texts for at in range(len(caption) + 1)] for texts in captions]
        whose = [
            [number for number, caption in enumerate(texts) for _ in range(len(caption) + 1)]
            for texts in captions
        ]
        device = grid.device
        ids, at, of = (padded(rows, -1).to(device) for rows in (decoder_inputs, positions, whose))
        hidden = (of[:, :, None] != of[:, None, :]) | (at[:, :, None] < at[:, None, :])
        mask = torch.zeros(hidden.shape, device=device).masked_fill(hidden, torch.finfo(torch.float32).min)
        with torch.autocast(device.type, torch.bfloat16, enabled=half_is_fast(device)):
            states = self.captioner.text_decoder.bert(
                input_ids=ids.clamp(min=0),
                attention_mask=mask[:, None],
                position_ids=at.clamp(min=0),
                encoder_hidden_states=self.captioner.vision_model.states(grid),
                use_cache=False,
                is_decoder=True,
            ).last_hidden_state
            scores = self.captioner.text_decoder.cls(states[of >= 0])
        return scores.float(), torch.tensor(right, device=device)

    def module_to_save(self, network: nn.Module) -> nn.Module:
        return rounded(network)

    def measure(self, network: nn.Module) -> dict[str, float]:
        """Return CIDEr-D of held-out photos, without beam search, and the share of distinct captions."""
        assert isinstance(network, CaptionNetwork)
        answers: list[str] = []
        for first in range(0, len(self.held), _MEASURED_TOGETHER):
            with torch.inference_mode():
                states = network.vision_model.states(
                    self._tensor(self.seen_held[first : first + _MEASURED_TOGETHER])
                )
            rows = network.generate(states, [], self.config.longest).tolist()
            answers += [self.tokenizer.decode(until(self.tokenizer.end, row[1:])) for row in rows]
        cider = self.measured.mean(answers)
        return {"score": cider, "cider": cider, "distinct": len(set(answers)) / len(answers)}


TRAINING: Final[Training] = CaptionerTraining()
