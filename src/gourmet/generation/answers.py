"""Build answers from several rows and the text between them. The rows are decoded side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from gourmet.contracts import GeneratedText, ScoredSentence
from gourmet.errors import GourmetError
from gourmet.generation.engine import Engine
from gourmet.generation.loop import Row, Vocabulary

# An answer in order: texts that are copied, and rows whose tokens become text.
Parts = Sequence[str | Row]
CLIENT_LEFT: Final = "request cancelled: the client disconnected before its answer was complete"


class OutOfTime(GourmetError):
    """An answer that was not finished before its deadline."""


class ClientLeft(GourmetError):
    """An answer that was stopped because its client disconnected."""


class ServedNetwork(Protocol):
    """A system's part of a served model, opened with the files of its package."""

    @property
    def engine(self) -> Engine: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def out_of_time(self) -> str:
        """The error message for an answer that was not finished before its deadline."""

    def requested(self, inputs: Mapping[str, Sequence[Any]]) -> Sequence[Parts]:
        """Return the parts of the answer to each row of a request; raise ValueError for a bad row."""

    def outputs(self, answer: GeneratedText) -> Mapping[str, Any]:
        """Return the model's outputs for an answer, or for a piece of one."""


@runtime_checkable
class GenerationServing(Protocol):
    """A system's SERVING, in its serving.py. It must not import packages that only training needs."""

    def open(self, files: Mapping[str, bytes], threads: int) -> ServedNetwork: ...


class AnswerJob:
    """One answer. A thread of the room calls `on_piece` at its end; with `in_pieces`, for each new piece."""

    def __init__(
        self,
        parts: Parts,
        network: ServedNetwork,
        on_piece: Callable[[AnswerJob, GeneratedText], None],
        *,
        deadline: float = float("inf"),
        is_cancelled: Callable[[], bool] = lambda: False,
        client: str = "",
        in_pieces: bool = False,
    ) -> None:
        self._parts, self._network, self._on_piece, self._in_pieces = parts, network, on_piece, in_pieces
        self._lock = threading.Lock()
        self.rows: Final = [part for part in parts if isinstance(part, Row)]
        for row in self.rows:
            row.deadline, row.is_cancelled, row.client = deadline, is_cancelled, client
            row.on_tokens = self._advanced
        self.text = ""  # the text so far
        self._part = 0  # index of the part that is being sent
        self._sent = 0  # characters of this part that were sent
        self._start = 0  # where this part begins in the text
        self._sentences: list[ScoredSentence] = []  # of the parts before
        self.finished = False
        self.error: Exception | None = None

    @property
    def tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)

    @property
    def score(self) -> float:
        """The mean log probability of a token."""
        return sum(row.score for row in self.rows) / max(1, self.tokens + len(self.rows))

    def whole(self) -> GeneratedText:
        self.advance()  # an answer without rows was not advanced yet
        others: Sequence[str] = ()
        if len(self._parts) == 1:  # the alternatives of several rows would have to be combined
            others = [self._text(row, tokens) for row in self.rows for tokens in row.others]
        return GeneratedText(self.text, self.tokens, self.score, others, sentences=self._sentences)

    def _advanced(self, row: Row) -> None:
        if row.finished or self._in_pieces:
            self.advance(row)

    def advance(self, row: Row | None = None) -> None:
        """Pass on the text that is new since the last call: for an answer without rows, all of it."""
        with self._lock:
            if self.finished:
                return
            piece = ""
            if row and row.finished in ("deadline", "cancelled", "failed"):
                is_late = row.finished == "deadline"
                default = OutOfTime(self._network.out_of_time) if is_late else ClientLeft(CLIENT_LEFT)
                self.error = row.error or default
            else:
                piece = self._new_text()
            self.finished = bool(self.error) or self._part == len(self._parts)
            if self.finished or (piece and self._in_pieces):
                sentences = self._sentences if self.finished else None
                self._on_piece(self, GeneratedText(piece, self.tokens, self.score, sentences=sentences))

    def _new_text(self) -> str:
        """Return the text that is new since the last call, in the order of the parts."""
        new = ""
        while self._part < len(self._parts):
            part = self._parts[self._part]
            if isinstance(part, str):
                text = part
                new += text
            else:
                text = self._text(part, part.tokens) if part.finished else self._settled(part)
                new += text[self._sent :]
                self._sent = max(self._sent, len(text))
                if not part.finished:
                    break
                self._sent = 0
                mean = part.score / (len(part.tokens) + 1)
                self._sentences.append(ScoredSentence(self._start, self._start + len(text), mean))
            self._start += len(text)
            self._part += 1
        self.text += new
        return new

    def _settled(self, row: Row) -> str:
        vocabulary, tokens = self._network.vocabulary, [*row.prefix, *row.tokens]
        return vocabulary.decode(tokens[: vocabulary.settled(tokens)])

    def _text(self, row: Row, tokens: Sequence[int]) -> str:
        return self._network.vocabulary.decode([*row.prefix, *tokens])
