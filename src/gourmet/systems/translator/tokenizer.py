"""Convert texts to numbers and back as Marian's checkpoints do: source.spm, target.spm and vocab.json.

SentencePiece only: the served models need this, and no torch.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Final

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from gourmet.errors import GourmetError

SOURCE: Final = "source.spm"
TARGET: Final = "target.spm"
VOCABULARY: Final = "vocab.json"
FILES: Final = (SOURCE, TARGET, VOCABULARY)
END: Final = "</s>"
PAD: Final = "<pad>"
UNKNOWN: Final = "<unk>"
# The beginning of a piece that is one byte of a letter.
_BYTE: Final = "<0x"


class Tokenizer:
    """Fulfils gourmet.generation.loop.Vocabulary."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Read the vocabulary; `files` maps each of FILES to its content."""
        self._source, self._target = (
            SentencePieceProcessor(model_proto=files[name]) for name in (SOURCE, TARGET)
        )
        self._ids: dict[str, int] = json.loads(files[VOCABULARY])
        if not all(isinstance(number, int) and 0 <= number < 2**31 for number in self._ids.values()):
            raise GourmetError(f"{VOCABULARY} does not number its pieces")
        if lacking := [sign for sign in (END, PAD, UNKNOWN) if sign not in self._ids]:
            raise GourmetError(f"{VOCABULARY} has no {', '.join(lacking)}")
        self._pieces: dict[int, str] = {number: piece for piece, number in self._ids.items()}
        self.end: int = self._ids[END]
        self.pad: int = self._ids[PAD]
        self.start = self.pad  # Marian's decoders begin with a pad
        self.unknown: int = self._ids[UNKNOWN]

    @property
    def max_id(self) -> int:
        """The largest number of a piece."""
        return max(self._pieces)

    @property
    def size(self) -> int:
        return len(self._ids)

    def encode(self, text: str, *, sampling: float = 0.0) -> list[int]:
        """Return the numbers of a source text and the end; with `sampling`, the pieces are random."""
        return self._numbers(self._source, text, sampling)

    def encode_target(self, text: str, *, sampling: float = 0.0) -> list[int]:
        """Return the numbers of a target text and the end, for training."""
        return self._numbers(self._target, text, sampling)

    def decode(self, numbers: Sequence[int]) -> str:
        """Return the target text of `numbers`; numbers of special tokens have no text."""
        pieces = [
            self._pieces.get(number, UNKNOWN) for number in numbers if number not in (self.end, self.pad)
        ]
        return str(self._target.decode_pieces(pieces))

    def settled(self, numbers: Sequence[int]) -> int:
        """Return the number of settled tokens: bytes at the end may be part of an unfinished letter."""
        indices = range(len(numbers) - 1, -1, -1)
        is_byte = (self._pieces.get(numbers[index], "").startswith(_BYTE) for index in indices)
        return len(numbers) - len(list(itertools.takewhile(bool, is_byte)))

    def _numbers(self, processor: SentencePieceProcessor, text: str, sampling: float) -> list[int]:
        pieces = processor.encode(
            text, out_type=str, enable_sampling=sampling > 0, alpha=sampling, nbest_size=-1
        )
        return [*(self._ids.get(piece, self.unknown) for piece in pieces), self.end]


def learn(texts: Sequence[str], size: int) -> dict[str, bytes]:
    """Learn a vocabulary that both languages of `texts` share, and return its files."""
    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=size,
            model_type="unigram",
            character_coverage=0.9998,
            # `onnx-model` pads with 1, as its first users' clients do.
            eos_id=0,
            pad_id=1,
            unk_id=2,
            bos_id=-1,
            eos_piece=END,
            pad_piece=PAD,
            unk_piece=UNKNOWN,
            num_threads=1,  # with more, the same texts do not always give the same pieces
            minloglevel=2,
        )
    except RuntimeError as exc:
        raise GourmetError(
            f"a vocabulary of {size:,} pieces cannot be made of {len(texts):,} texts: {exc}"
        ) from exc
    processor = SentencePieceProcessor(model_proto=model.getvalue())
    ids = {processor.id_to_piece(number): number for number in range(processor.get_piece_size())}
    vocabulary = json.dumps(ids, ensure_ascii=False, indent=0) + "\n"
    return {SOURCE: model.getvalue(), TARGET: model.getvalue(), VOCABULARY: vocabulary.encode()}
