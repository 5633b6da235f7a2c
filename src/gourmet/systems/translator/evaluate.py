"""Answers of the network without a server, to measure it and to compare with the served one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from gourmet.evaluation.text_evaluation import TextEvaluation
from gourmet.learning.text_training import padded, until
from gourmet.progress import ReportProgress
from gourmet.systems.translator.data import DATA
from gourmet.systems.translator.network import load
from gourmet.systems.translator.serving import MAX_SOURCE_TOKENS
from gourmet.systems.translator.texts import split
from gourmet.systems.translator.tokenizer import Tokenizer

MAX_TOKENS: Final = 128  # pieces of an answer
_ROWS: Final = 64


def translate(
    network: nn.Module,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    tick: ReportProgress = lambda share, words="": None,
) -> list[str]:
    """Translate each text, cut into sentences and joined as when it is served."""
    cut = [split(text, lambda piece: len(tokenizer.encode(piece)), MAX_SOURCE_TOKENS) for text in texts]
    sources = [tokenizer.encode(part.text) for text in cut for part in text if part.is_sentence]
    answers = iter(answered(network, tokenizer, sources, tick))
    return [
        "".join(tokenizer.decode(next(answers)) if part.is_sentence else part.text for part in text)
        for text in cut
    ]


def answered(
    network: nn.Module,
    tokenizer: Tokenizer,
    sources: Sequence[Sequence[int]],
    tick: ReportProgress = lambda share, words="": None,
) -> list[list[int]]:
    """Return the answers of transformers' own loop, without the end; texts of one length go together."""
    order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
    answers: list[list[int]] = [[] for _ in sources]
    device = next(network.parameters()).device
    for first in range(0, len(order), _ROWS):
        together = order[first : first + _ROWS]
        rows = padded([sources[number] for number in together], tokenizer.pad).to(device)
        with torch.inference_mode():
            rows_out = network.generate(  # type: ignore[operator]
                input_ids=rows,
                attention_mask=(rows != tokenizer.pad).long(),
                num_beams=1,
                do_sample=False,
                max_new_tokens=MAX_TOKENS,
                bad_words_ids=[[tokenizer.pad]],
            )
        for number, answer in zip(together, rows_out.tolist(), strict=True):
            answers[number] = until(tokenizer.end, answer[1:])
        tick((first + len(together)) / len(order), f"{first + len(together)}/{len(order)}")
    return answers


def _network(weights: Path, _: str) -> tuple[nn.Module, dict[str, Any]]:
    checkpoint = load(weights)
    return checkpoint.network, checkpoint.about


def _translate_with(weights: Path, texts: Sequence[str], device: str, tick: ReportProgress) -> Sequence[str]:
    checkpoint = load(weights)
    return translate(checkpoint.network.to(device), checkpoint.tokenizer, texts, tick)


EVALUATION: Final = TextEvaluation(_network, DATA, _translate_with)
