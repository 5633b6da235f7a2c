"""A translator of random weights with a vocabulary, as transformers saves one; its answers have no end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gourmet.systems.translator import tokenizer as tokenizers
from gourmet.systems.translator.contract import SYSTEM
from gourmet.systems.translator.network import build

GERMAN = (
    "Ich mag Tee.",
    "Er liebt Kaffee.",
    "Wo ist der Bahnhof?",
    "Das Zimmer ist sehr schön.",
    "Morgen fahren wir nach Köln.",
    "Können Sie mir bitte helfen?",
    "Ich habe zwei Katzen und einen Hund.",
    "Das Wetter ist heute schlecht.",
    "Sie liest ein Buch im Garten.",
    "Das Frühstück gibt es von 7 bis 10 Uhr.",
    "Öffnen Sie das Fenster.",
    "Über den Fluss führt eine Brücke.",
)


def saved_translator(
    folder: Path,
    texts: list[str] | None = None,
    size: int = 120,
    layers: tuple[int, int] = (1, 1),
    **config: Any,
) -> Path:
    """Write it to `folder`, with pieces of `texts`, and so many layers of its encoder and its decoder."""
    files = tokenizers.learn(texts or [text.decode() for text in SYSTEM.examples(200, seed=0)], size)
    tokenizer = tokenizers.Tokenizer(files)
    sides = {
        f"{side}_{what}": of
        for side, count in zip(("encoder", "decoder"), layers, strict=True)
        for what, of in {"layers": count, "attention_heads": 2, "ffn_dim": 16}.items()
    }
    ends = {
        "pad_token_id": tokenizer.pad,
        "eos_token_id": tokenizer.end,
        "forced_eos_token_id": tokenizer.end,
    }
    torch.manual_seed(1)
    start = {"decoder_start_token_id": tokenizer.pad, "max_position_embeddings": 512}
    network: Any = build({"vocab_size": tokenizer.size, "d_model": 16, **start, **sides, **ends, **config})
    with torch.no_grad():
        # As drawn, its answer to each text is the same.
        for name, weights in network.named_parameters():
            if weights.dim() == 2 and "embed_positions" not in name:
                weights *= 15 if ".encoder_attn.v" in name or ".encoder_attn.out" in name else 3
        network.final_logits_bias[0, tokenizer.end] = -1e4
    network.save_pretrained(folder)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
