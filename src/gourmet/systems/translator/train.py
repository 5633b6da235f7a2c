"""Train the translator: its sentences, their pieces, and its measures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import sentencepiece
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from gourmet.evaluation.system_parts import Reference
from gourmet.export.checkpoints import CONFIG
from gourmet.export.text_int8 import rounded
from gourmet.learning.text_training import MEASURED, GenerationTraining, padded
from gourmet.progress import ReportProgress
from gourmet.systems.translator.data import DATA, SOFTWARE, SYNTHETIC, pairs_of_file
from gourmet.systems.translator.evaluate import translate
from gourmet.systems.translator.network import MAX_POSITIONS, build
from gourmet.systems.translator.tokenizer import Tokenizer, learn
from gourmet.training.muon import half_is_fast
from gourmet.training.task import Phase, Training, TrainOptions

# Sentences are sorted by length within this many batches.
_SORTED_BATCHES: Final = 50


@dataclass(frozen=True)
class Config:
    """The configuration that `gourmet train translator NAME=VALUE …` may change."""

    vocabulary: int = 6000
    width: int = 256
    heads: int = 4
    encoder_layers: int = 4
    decoder_layers: int = 2
    feed_forward: int = 1024
    dropout: float = 0.2
    label_smoothing: float = 0.1
    # SentencePiece's alpha: the higher, the rarer are unusual ways to cut a word into pieces; 0 is off.
    # Sentences become a twentieth longer with 0.5, and half as long again near 0.
    sampling: float = 0.5
    # Sentences of software.tsv in an epoch, drawn again for each.
    software: int = 2_500
    # Pairs of synthetic.tsv in an epoch.
    synthetic: int = 60_000
    # Train from English to Russian, to write synthetic pairs.
    reverse: bool = False
    longest: int = 64  # pieces of a sentence to learn from
    batch: int = 128
    epochs: int = 16
    rate: float = 0.01  # of matrices; the other weights take a fifth of it
    warmup: float = 0.02


@dataclass(frozen=True)
class TranslatorTraining(GenerationTraining):
    """Fulfils `gourmet.training.task.Training`."""

    config: Config = Config()
    ema_decay = 0.999
    not_pretrained = "there are no pretrained weights for the translator: train without --pretrained"

    def prepare(self, data: Path, options: TrainOptions, tick: ReportProgress) -> TranslatorTask:
        limit = options.limit
        held = DATA.references(data, "validation", min(limit or MEASURED, MEASURED))
        train = DATA.references(data, "train", limit)
        more, synthetic = (
            pairs_of_file(data, name)[: limit and limit // 2] if count else ()
            for name, count in ((SOFTWARE, self.config.software), (SYNTHETIC, self.config.synthetic))
        )
        if self.config.reverse:
            held, train, more, synthetic = (
                tuple(replace(pair, text=pair.answer, answer=pair.text) for pair in part)
                for part in (held, train, more, synthetic)
            )
        tick(0.2)
        # The pieces are learned from the sentences of an epoch without synthetic pairs.
        some = more[:: max(1, len(more) // max(self.config.software, 1))]
        texts = [text for pair in (*train, *some) for text in (pair.text, pair.answer)]
        files = learn(texts, self.config.vocabulary)
        tick(0.9)
        torch.manual_seed(options.seed)
        shape = shape_of(self.config, Tokenizer(files))
        network = build(shape)
        files[CONFIG] = (json.dumps(shape, indent=2) + "\n").encode()
        return TranslatorTask(self.config, network.to(options.device), files, train, more, synthetic, held)


def shape_of(config: Config, tokenizer: Tokenizer) -> dict[str, Any]:
    """Describe the network as the config.json of a Marian checkpoint does."""
    return {
        "vocab_size": tokenizer.size,
        "d_model": config.width,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.feed_forward,
        "decoder_ffn_dim": config.feed_forward,
        "dropout": config.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "activation_function": "swish",
        "max_position_embeddings": MAX_POSITIONS,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "pad_token_id": tokenizer.pad,
        "eos_token_id": tokenizer.end,
        "forced_eos_token_id": None,
        "decoder_start_token_id": tokenizer.pad,
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
    }


class TranslatorTask:
    """The network and its sentences; fulfils `gourmet.training.task.TrainingTask`."""

    def __init__(
        self,
        config: Config,
        network: nn.Module,
        files: dict[str, bytes],
        everyday: Sequence[Reference],
        more: Sequence[Reference],
        synthetic: Sequence[Reference],
        held: Sequence[Reference],
    ) -> None:
        self.config, self.network, self.files, self.held = config, network, files, held
        self.tokenizer = tokenizer = Tokenizer(files)
        self.pairs = (*everyday, *more, *synthetic)
        cut = [(tokenizer.encode(pair.text), tokenizer.encode_target(pair.answer)) for pair in self.pairs]
        lengths = {number: (len(source), len(target)) for number, (source, target) in enumerate(cut)}
        self.lengths = {number: pair for number, pair in lengths.items() if max(pair) <= config.longest}
        self.everyday = [number for number in self.lengths if number < len(everyday)]
        first = len(everyday) + len(more)
        self.more = [number for number in self.lengths if len(everyday) <= number < first]
        self.synthetic = [number for number in self.lengths if number >= first]
        self.about: dict[str, Any] = {
            "system": "translator",
            "architecture": "Marian",
            **asdict(config),
            "everyday": len(self.everyday),
            "of_programs": len(self.more),
            "synthetic_pairs": len(self.synthetic),
        }

    def order(self, generator: torch.Generator) -> torch.Tensor:
        """Return every everyday sentence once and some of the others, grouped by length."""
        drawn = list(self.everyday)
        for others, count in ((self.more, self.config.software), (self.synthetic, self.config.synthetic)):
            lots = torch.randperm(len(others), generator=generator)[:count]
            drawn += [others[lot] for lot in lots.tolist()]
        numbers = torch.tensor(drawn)[torch.randperm(len(drawn), generator=generator)]
        batches: list[torch.Tensor] = []
        for some in torch.split(numbers, self.config.batch * _SORTED_BATCHES):
            alike = sorted(some.tolist(), key=lambda number: self.lengths[number])
            batches += torch.split(torch.tensor(alike), self.config.batch)
        # The batch that is not full stays last, since the engine cuts the order into batches.
        full = len(numbers) // self.config.batch
        shuffled = [batches[number] for number in torch.randperm(full, generator=generator).tolist()]
        return torch.cat([*shuffled, *batches[full:]])

    def loss(self, examples: torch.Tensor, phase: Phase, generator: torch.Generator) -> torch.Tensor:
        shown = [self.pairs[number] for number in examples.tolist()]
        sampling, pad, end = self.config.sampling, self.tokenizer.pad, self.config.longest
        sentencepiece.set_random_generator_seed(generator.initial_seed() % 2**32)
        device = next(self.network.parameters()).device
        # With sampling, a sentence may have more pieces than `longest`.
        source = padded(
            [self.tokenizer.encode(pair.text, sampling=sampling)[-2 * end :] for pair in shown], pad
        ).to(device)
        target = padded(
            [self.tokenizer.encode_target(pair.answer, sampling=sampling)[: 2 * end] for pair in shown], pad
        ).to(device)
        decoder_ids = torch.cat([torch.full_like(target[:, :1], pad), target[:, :-1]], dim=1)
        # bfloat16 throughout: autocast would cast between operations.
        kind = torch.bfloat16 if half_is_fast(device) else torch.float32
        model = self.network.get_submodule("model")
        hidden = functional_call(
            model,
            {name: weights.to(kind) for name, weights in model.named_parameters()},
            kwargs={
                "input_ids": source,
                "attention_mask": (source != pad).long(),
                "decoder_input_ids": decoder_ids,
                "use_cache": False,
            },
        ).last_hidden_state
        words = target != pad
        scores = hidden[words] @ self.network.get_parameter("lm_head.weight").to(kind).T
        return F.cross_entropy(scores.float(), target[words], label_smoothing=self.config.label_smoothing)

    def module_to_save(self, network: nn.Module) -> nn.Module:
        return rounded(network)

    def measure(self, network: nn.Module) -> dict[str, float]:
        """Return BLEU of the held-out sentences, translated without beam search."""
        import sacrebleu

        answers = translate(network, self.tokenizer, [pair.text for pair in self.held])
        bleu = sacrebleu.corpus_bleu(answers, [[pair.answer for pair in self.held]]).score
        return {"score": bleu / 100, "bleu": bleu / 100}


TRAINING: Final[Training] = TranslatorTraining()
