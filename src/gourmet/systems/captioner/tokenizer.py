"""WordPiece, as in the vocabularies of BERT and BLIP: whole words, and ## before continuations."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gourmet.errors import GourmetError

VOCABULARY: Final = "vocab.txt"
SETTINGS: Final = "captioner.json"
PAD, UNKNOWN, START, END = "[PAD]", "[UNK]", "[DEC]", "[SEP]"
MAX_TOKENS: Final = 40  # of a caption, after what it begins with
_MORE: Final = "##"
_LONGEST: Final = 100  # letters of a word
_PARTS: Final = re.compile(r"\w+|[^\w\s]|_")
# Written without a space before them.
_ATTACHED: Final = frozenset(".,!?;:'-")
_ENDINGS: Final = frozenset(("s", "t", "d", "m", "re", "ve", "ll"))


class WordPieces:
    """Fulfils gourmet.generation.loop.Vocabulary."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        try:
            self._pieces = files[VOCABULARY].decode().rstrip("\n").split("\n")
            settings = json.loads(files[SETTINGS])
            self.start, self.end = int(settings["start"]), int(settings["end"])
        except (KeyError, TypeError, ValueError) as exc:
            raise GourmetError(f"{VOCABULARY} and {SETTINGS} are not those of a captioner: {exc!r}") from exc
        self._ids = {piece.rstrip("\r"): number for number, piece in enumerate(self._pieces)}
        if UNKNOWN not in self._ids or PAD not in self._ids:
            raise GourmetError(f"{VOCABULARY} lacks {PAD} or {UNKNOWN}")
        self.size, self.pad, self.unknown = len(self._pieces), self._ids[PAD], self._ids[UNKNOWN]

    def encode(self, text: str) -> list[int]:
        """Return the pieces of `text`, without start and end; raise ValueError if it cannot be spelled."""
        tokens: list[int] = []
        for word in words(text):
            if not (pieces := self._cut(word)):
                raise ValueError(f"{word[:_LONGEST]!r} is not a word that a caption can have")
            tokens += pieces
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; special tokens have none. The text of more tokens begins with it."""
        text, before = "", ""
        for piece in (self._pieces[token] for token in tokens if 0 <= token < self.size):
            if piece.startswith("[") and piece.endswith("]"):
                continue
            joined = (
                piece.startswith(_MORE)
                or piece in _ATTACHED
                or before == "-"
                or (before == "'" and piece in _ENDINGS)
            )
            text += piece.removeprefix(_MORE) if joined or not text else f" {piece}"
            before = piece
        return text

    def settled(self, tokens: Sequence[int]) -> int:
        """Return the number of settled tokens: a word is complete when the next one begins."""
        indices = range(len(tokens) - 1, -1, -1)
        return next((index for index in indices if not self._goes_on(tokens[index])), 0)

    def _goes_on(self, token: int) -> bool:
        return 0 <= token < self.size and self._pieces[token].startswith(_MORE)

    def _cut(self, word: str) -> list[int]:
        """Cut a word into the longest known pieces; return none if a part of the word is unknown."""
        ids, first = [], 0
        while first < len(word) <= _LONGEST:
            sign = _MORE if first else ""
            ends = range(len(word), first, -1)
            end = next((end for end in ends if sign + word[first:end] in self._ids), first)
            if end == first:
                break
            ids.append(self._ids[sign + word[first:end]])
            first = end
        return ids if first == len(word) else []


def settings_of(size: int, places: int, start: int, end: int, prompt: str = "") -> dict[str, bytes]:
    """Return the file of settings beside a vocabulary: size of pictures, number of places, prompt."""
    settings = {"size": size, "places": places, "start": start, "end": end, "prompt": prompt}
    return {SETTINGS: (json.dumps({**settings, "max_tokens": MAX_TOKENS}, indent=2) + "\n").encode()}


def words(text: str) -> list[str]:
    """Split a text into words in lower case without accents; each sign is a word."""
    plain = "".join(
        letter
        for letter in unicodedata.normalize("NFD", text.lower())
        if unicodedata.category(letter) != "Mn"
    )
    return _PARTS.findall(plain)


def learn(texts: Iterable[str], min_count: int) -> bytes:
    """Learn a vocabulary: the frequent words of `texts`, and all letters for other words."""
    counted = Counter(word for text in texts for word in words(text))
    letters = sorted({letter for word in counted for letter in word})
    often = sorted(
        (word for word, count in counted.items() if count >= min_count), key=lambda word: -counted[word]
    )
    inner = [_MORE + letter for letter in letters]
    pieces = dict.fromkeys([PAD, UNKNOWN, START, END, *often, *letters, *inner])
    return ("\n".join(pieces) + "\n").encode()
