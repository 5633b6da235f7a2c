"""Build answers from several rows and the text between them. The rows are decoded side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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


class GrowingAnswer:
    """The answer to one row of a request, as far as its rows of the loop have tokens.

    The loop's threads add tokens; one other thread reads the text.
    """

    def __init__(self, parts: Parts, network: ServedNetwork) -> None:
        self._parts, self._network = parts, network
        self.rows: Final = [part for part in parts if isinstance(part, Row)]
        self._text = ""  # the text so far
        self._part = 0  # index of the part that is being read
        self._read = 0  # characters of this part that were read
        self._start = 0  # where this part begins in the text
        self._sentences: list[ScoredSentence] = []  # of the parts before

    @property
    def error(self) -> Exception | None:
        for row in self.rows:
            if row.finished == "deadline":
                return OutOfTime(self._network.out_of_time)
            if row.finished == "cancelled":
                return ClientLeft(CLIENT_LEFT)
            if row.finished == "failed":
                return row.error
        return None

    def new_piece(self) -> GeneratedText:
        """Return the text that is new since the last call. The last piece has the sentences."""
        text = self._new_text()
        tokens = sum(len(row.tokens) for row in self.rows)
        score = sum(row.score for row in self.rows) / max(1, tokens + len(self.rows))  # the mean of a token
        is_last = self._part == len(self._parts)
        return GeneratedText(text, tokens, score, sentences=self._sentences if is_last else None)

    def whole(self) -> GeneratedText:
        piece, others = self.new_piece(), list[str]()
        if len(self._parts) == 1:  # the alternatives of several rows would have to be combined
            others = [self._decoded(row, tokens) for row in self.rows for tokens in row.others]
        return replace(piece, text=self._text, others=others)

    def _new_text(self) -> str:
        new = ""
        while self._part < len(self._parts):
            part = self._parts[self._part]
            if isinstance(part, str):
                text = part
                new += text
            else:
                finished = part.finished  # read once: the loop goes on meanwhile
                text = self._decoded(part, part.tokens) if finished else self._settled(part)
                new += text[self._read :]
                self._read = max(self._read, len(text))
                if not finished:
                    break
                self._read = 0
                mean = part.score / (len(part.tokens) + 1)
                self._sentences.append(ScoredSentence(self._start, self._start + len(text), mean))
            self._start += len(text)
            self._part += 1
        self._text += new
        return new

    def _settled(self, row: Row) -> str:
        vocabulary, tokens = self._network.vocabulary, [*row.prefix, *row.tokens]
        return vocabulary.decode(tokens[: vocabulary.settled(tokens)])

    def _decoded(self, row: Row, tokens: Sequence[int]) -> str:
        return self._network.vocabulary.decode([*row.prefix, *tokens])
