"""Whole texts through a loop: cut into sentences, decoded side by side, put together as they are ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from gourmet.errors import GourmetError
from gourmet.runtime.decoding.loop import Loop, Row
from gourmet.runtime.decoding.sentences import parts
from gourmet.runtime.decoding.tokenizer import Tokenizer

# Pieces of words that a sentence may have; longer ones are cut.
MOST_PIECES: Final = 120


class NotInTime(GourmetError):
    """A text whose time was over before it was answered."""


class Job:
    """One text. `told` is called, by the loop's thread, at its end, and before for each piece if wanted."""

    def __init__(
        self,
        text: str,
        tokenizer: Tokenizer,
        told: Callable[[Job, str], None],
        *,
        most: int,
        until: float = float("inf"),
        wanted: Callable[[], bool] = lambda: True,
        in_pieces: bool = False,
    ) -> None:
        """At most `most` pieces for a sentence, and twice as many as it has itself and some."""
        self._tokenizer = tokenizer
        self._in_pieces = in_pieces
        self._told = told
        self._lock = threading.Lock()
        # What is kept as it is, and rows, in the text's order; the first that is not whole is being told.
        self._parts: list[str | Row] = []
        for part in parts(text, lambda piece: len(tokenizer.encode(piece)), MOST_PIECES):
            source = tokenizer.encode(part.text) if part.is_sentence else []
            row = Row(source, min(most, 2 * len(source) + 20), until, wanted, self.row_told)
            self._parts.append(row if part.is_sentence else part.text)
        self._at = 0
        self._said = 0  # characters of the part that is being told
        self.is_over = False
        self.error: Exception | None = None
        self.was_wanted = True

    @property
    def rows(self) -> Sequence[Row]:
        return [part for part in self._parts if isinstance(part, Row)]

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else self._text(part) for part in self._parts)

    @property
    def tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)

    @property
    def score(self) -> float:
        """The logarithm of the probability of a piece, on average."""
        return sum(row.score for row in self.rows) / max(1, self.tokens + len(self.rows))

    def row_told(self, row: Row | None) -> None:
        """Called of each word of a row, and of its end; with None where there is no row."""
        if row and not row.ended and not self._in_pieces:
            return
        with self._lock:
            if self.is_over:
                return
            if row and row.ended in ("late", "unwanted", "failed"):
                self.is_over = True
                self.was_wanted = row.ended != "unwanted"
                self.error = row.error or NotInTime("the text was not translated in time")
                piece = ""
            else:
                piece = self._ready()
                self.is_over = self._at == len(self._parts)
            if self.is_over or (piece and self._in_pieces):
                self._told(self, piece)

    def _ready(self) -> str:
        """What can be told since the last time: whole words, in the order of the text."""
        found = ""
        while self._at < len(self._parts):
            part = self._parts[self._at]
            if isinstance(part, str):
                found += part
            else:
                text = self._text(part) if part.ended else self._whole_words(part)
                found += text[self._said :]
                self._said = max(self._said, len(text))
                if not part.ended:
                    break
                self._said = 0
            self._at += 1
        return found

    def _whole_words(self, row: Row) -> str:
        """A word is whole when the next begins."""
        known = next(
            (
                place
                for place in range(len(row.tokens) - 1, -1, -1)
                if self._tokenizer.begins_word(row.tokens[place])
            ),
            0,
        )
        return self._tokenizer.decode(row.tokens[:known])

    def _text(self, row: Row) -> str:
        return self._tokenizer.decode(row.tokens)


def submit(jobs: Sequence[Job], loop: Loop) -> None:
    """All of them, or none: raises TooManyRows."""
    loop.submit([row for job in jobs for row in job.rows])
    for job in jobs:
        if not job.rows:
            job.row_told(None)


def answer(text: str, loop: Loop, tokenizer: Tokenizer, *, most: int, within_s: float) -> Job:
    """Wait for the answer to a text; raises what went wrong."""
    over = threading.Event()
    job = Job(text, tokenizer, lambda *_: over.set(), most=most, until=time.monotonic() + within_s)
    submit([job], loop)
    over.wait()
    if job.error:
        raise job.error
    return job
