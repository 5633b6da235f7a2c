"""Translators of other architectures, of random weights, as transformers and their authors save them.

Their weights are larger than a first draw, so that answers depend on where a word stands and end at times.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from gourmet.systems.translator.contract import SYSTEM
from gourmet.systems.translator.network import build

# Behind the pieces, as M2M100's own tokenizer numbers them: 100 languages and 8 words made up.
_BEHIND: Final = 108
M2M100: Final = {
    "model_type": "m2m_100",
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 32 for side in ("encoder", "decoder")},
    "d_model": 16,
    "max_position_embeddings": 512,
    "decoder_start_token_id": 2,
}
T5: Final = {
    "model_type": "t5",
    "d_model": 16,
    "d_kv": 12,
    "num_heads": 2,
    "d_ff": 32,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
}


def saved_m2m100(folder: Path, **config: Any) -> Path:
    model = _pieces(bos_id=1, eos_id=2, unk_id=0, pad_id=-1)
    own = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [*own, *(piece for piece in _of(model) if piece not in own)]
    ids = {piece: number for number, piece in enumerate(pieces)}
    _save(folder, {**M2M100, "vocab_size": len(ids) + _BEHIND, **config}, "model.shared.weight")
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    (folder / "vocab.json").write_text(json.dumps(ids))
    return folder


def saved_t5(folder: Path, **config: Any) -> Path:
    model = _pieces(pad_id=0, eos_id=1, unk_id=2, bos_id=-1, pad_piece="<pad>")
    _save(folder, {**T5, "vocab_size": len(_of(model)) + 8, **config}, "shared.weight")
    (folder / "spiece.model").write_bytes(model)
    return folder


SAVED: Final[Mapping[str, Callable[..., Path]]] = {"M2M100": saved_m2m100, "T5": saved_t5}


def _pieces(**ids: Any) -> bytes:
    model, texts = io.BytesIO(), [text.decode() for text in SYSTEM.examples(200, seed=0)]
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=120, minloglevel=2, num_threads=1, **ids
    )
    return model.getvalue()


def _of(model: bytes) -> list[str]:
    processor = SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(number) for number in range(processor.get_piece_size())]


def _save(folder: Path, config: dict[str, Any], words: str) -> None:
    torch.manual_seed(1)
    network: Any = build(config)
    # transformers ties them all the same, and reads them apart.
    if config.get("tie_word_embeddings") is False:
        network.lm_head.weight = torch.nn.Parameter(torch.zeros_like(network.lm_head.weight))
    with torch.no_grad():
        for name, each in network.named_parameters():
            if each.dim() == 2 and name != words:
                each.normal_(std=2.0 * each.shape[1] ** -0.5)
            if "relative_attention_bias" in name:
                each.normal_(std=2.0)
    network.save_pretrained(folder)
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | config))
