"""Convert the network for CTranslate2, which runs the whole loop itself."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from ctranslate2.converters.transformers import BartLoader, MarianMTLoader

from gourmet.systems.translator.tokenizer import END, PAD, UNKNOWN, VOCABULARY
from gourmet.tasks.generation.checkpoints import Checkpoint


class _Loader(MarianMTLoader):  # type: ignore[misc]
    """Loads a network whose pad is any word of the vocabulary, not the last one as in Marian."""

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
