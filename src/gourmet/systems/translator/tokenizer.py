"""A text as numbers and back, as Marian's checkpoints have it: source.spm, target.spm and vocab.json.

Those of other architectures are brought into the same files (vocabularies.py), with how their sources and
answers begin beside them. SentencePiece only: the served models need this, and no torch.
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
# Where texts begin otherwise than Marian's: `start`, the piece that a decoder begins with; pieces before a
# `source`, and those that an `answer` is made to begin with; a `text` before each text.
BEGINNINGS: Final = "beginnings.json"
END: Final = "</s>"
PAD: Final = "<pad>"
UNKNOWN: Final = "<unk>"
# How a piece begins that is one byte of a letter.
_BYTE: Final = "<0x"
# Of what all texts begin with, and of what all answers do: a sentence has 120 pieces with it.
_MOST_BEFORE: Final = 40
_MOST_CHARACTERS: Final = 1_000


class Tokenizer:
    """Fulfils gourmet.runtime.decoding.answers.Vocabulary."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """`files`: the content of each of FILES, and of BEGINNINGS where there is one."""
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
        begin = json.loads(files.get(BEGINNINGS, b"{}"))
        self.start: int = self._ids[begin.get("start", PAD)]  # Marian's decoders begin with a pad
        self._before = [self._ids[piece] for piece in begin.get("source", ())]
        # What every answer begins with, whatever the network would say: the language that it is in.
        self.first: list[int] = [self._ids[piece] for piece in begin.get("answer", ())]
        self._text: str = begin.get("text", "")
        self._signs = {self.end, self.pad, *self._before, *self.first}
        self.unknown: int = self._ids[UNKNOWN]
        if (
            len(self._text) > _MOST_CHARACTERS
            or max(len(self.first), len(self._before)) > _MOST_BEFORE
            or len(self.encode("")) > _MOST_BEFORE
        ):
            raise GourmetError(
                f"its texts or answers begin with more than {_MOST_BEFORE} pieces, which leave a sentence "
                "too little room"
            )

    @property
    def max_id(self) -> int:
        """The largest number of a piece."""
        return max(self._pieces)

    @property
    def size(self) -> int:
        return len(self._ids)

    def encode(self, text: str, *, sampling: float = 0.0) -> list[int]:
        """The numbers of a Russian text, an end behind them; with `sampling`, cut into pieces by chance."""
        return [*self._before, *self._numbers(self._source, self._text + text, sampling)]

    def encode_target(self, text: str, *, sampling: float = 0.0) -> list[int]:
        """The same for an English one, to learn from."""
        return self._numbers(self._target, text, sampling)

    def decode(self, numbers: Sequence[int]) -> str:
        """The English text that `numbers` say; numbers without a piece of a word say nothing."""
        pieces = [self._pieces.get(number, UNKNOWN) for number in numbers if number not in self._signs]
        return str(self._target.decode_pieces(pieces))

    def settled(self, numbers: Sequence[int]) -> int:
        """All but the last pieces that are a byte each: others may belong to the same letter."""
        places = range(len(numbers) - 1, -1, -1)
        is_byte = (self._pieces.get(numbers[place], "").startswith(_BYTE) for place in places)
        return len(numbers) - len(list(itertools.takewhile(bool, is_byte)))

    def _numbers(self, processor: SentencePieceProcessor, text: str, sampling: float) -> list[int]:
        pieces = processor.encode(
            text, out_type=str, enable_sampling=sampling > 0, alpha=sampling, nbest_size=-1
        )
        return [*(self._ids.get(piece, self.unknown) for piece in pieces), self.end]


def learn(texts: Sequence[str], size: int) -> dict[str, bytes]:
    """The files of a vocabulary that both languages of `texts` share."""
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
