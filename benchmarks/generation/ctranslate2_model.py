"""The network as CTranslate2 has it, which turns its loop itself: there is no step to ask it for."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ctranslate2 import Translator
from ctranslate2.converters.transformers import BartLoader, MarianMTLoader

from gourmet.systems.translator.network import Checkpoint
from gourmet.systems.translator.tokenizer import END, PAD, UNKNOWN, VOCABULARY


class _Loader(MarianMTLoader):  # type: ignore[misc]
    """Of a network whose pad is one word among the others, and not the last, as Marian's own is."""

    def set_decoder(self, spec: Any, decoder: Any) -> None:
        BartLoader.set_decoder(self, spec, decoder)

    def _remove_pad_weights(self, spec: Any) -> None:
        pass


def convert(checkpoint: Checkpoint, folder: Path, form: str) -> None:
    """Write the network into `folder`; `form` is one of CTranslate2's, such as int8."""
    loader = _Loader()
    # A copy, since the spec shares the network's memory, and makes its numbers eight bits there.
    spec = loader.get_model_spec(copy.deepcopy(checkpoint.network))
    pieces = _pieces(checkpoint)
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.eos_token, spec.config.unk_token, spec.config.decoder_start_token = END, UNKNOWN, PAD
    spec.config.bos_token = PAD
    spec.validate()
    spec.optimize(quantization=form)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def _pieces(checkpoint: Checkpoint) -> list[str]:
    numbers = json.loads((checkpoint.folder / VOCABULARY).read_text(encoding="utf-8"))
    return sorted(numbers, key=numbers.__getitem__)


def open_model(
    folder: Path, checkpoint: Checkpoint, max_tokens: int, threads: int
) -> Callable[[Sequence[Sequence[int]], int], list[list[int]]]:
    """What answers sources, so many at once, by a folder that `convert` wrote."""
    translator = Translator(str(folder), inter_threads=1, intra_threads=threads)
    pieces = _pieces(checkpoint)
    ids = {piece: number for number, piece in enumerate(pieces)}

    def answer(sources: Sequence[Sequence[int]], at_once: int) -> list[list[int]]:
        found = translator.translate_batch(
            [[pieces[number] for number in source] for source in sources],
            max_batch_size=at_once,
            beam_size=1,
            min_decoding_length=0,
            max_decoding_length=max_tokens,
            suppress_sequences=[[PAD]],
        )
        return [[ids[piece] for piece in each.hypotheses[0]] for each in found]

    return answer
