"""Answers of several rows and of text between them: decoded side by side, put together as they are ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from gourmet.contracts import Array, GeneratedText, ScoredSentence, Tensors
from gourmet.errors import GourmetError
from gourmet.runtime import malloc
from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.engine import Engine
from gourmet.runtime.decoding.loop import Row
from gourmet.runtime.decoding.room import CONTINUOUS_PARAMETER, GenerationRoom
from gourmet.runtime.instances import cpu_threads, integer_parameter, parameter

# What is kept as it is, and what a row answers, in the order of the answer.
Parts = Sequence[str | Row]


class OutOfTime(GourmetError):
    """An answer that was not finished before its deadline."""


class ClientLeft(GourmetError):
    """An answer that nobody waits for."""


class Vocabulary(Protocol):
    """The tokens of a system's answers."""

    start: int  # what the network has before the first token of an answer
    end: int  # what it answers when there is nothing to add

    def decode(self, tokens: Sequence[int]) -> str: ...

    def settled(self, tokens: Sequence[int]) -> int:
        """How many of these, which are an answer so far, have a text that no later token changes."""


class ServedNetwork(Protocol):
    """A system's part of a served model, opened with the files of its package."""

    @property
    def engine(self) -> Engine: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def out_of_time(self) -> str:
        """A sentence for those whose answer was not finished in time."""

    def requested(self, inputs: Mapping[str, Sequence[Any]]) -> Sequence[Parts]:
        """An answer's parts for each row of a request's inputs; ValueError for what cannot be answered."""

    def outputs(self, answer: GeneratedText) -> Mapping[str, Any]:
        """What each output of the model says of an answer, or of a piece of one."""


@runtime_checkable
class GenerationServing(Protocol):
    """A system's SERVING, in its serving.py. It may import nothing that only training needs."""

    def open(self, files: Mapping[str, bytes], threads: int) -> ServedNetwork: ...


class AnswerJob:
    """One answer. `on_piece` is called, by a thread of the room, at its end, and in between if in pieces."""

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
        self.text = ""  # what is ready of it
        self._at = 0  # the part that is being sent
        self._sent = 0  # characters of it
        self._before = 0  # characters of the parts that were sent
        self._sentences: list[ScoredSentence] = []  # those that were
        self.finished = False
        self.error: Exception | None = None

    @property
    def tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)

    @property
    def score(self) -> float:
        """The logarithm of the probability of a token, on average."""
        return sum(row.score for row in self.rows) / max(1, self.tokens + len(self.rows))

    def whole(self) -> GeneratedText:
        self.advance()  # where it has no rows, nobody did
        others: Sequence[str] = ()
        if len(self._parts) == 1:  # those of several rows would have to be combined
            decode = self._network.vocabulary.decode
            others = [decode(row.answer_of(tokens)) for row in self.rows for tokens in row.others]
        return GeneratedText(self.text, self.tokens, self.score, others, sentences=self._sentences)

    def _advanced(self, row: Row) -> None:
        if row.finished or self._in_pieces:
            self.advance(row)

    def advance(self, row: Row | None = None) -> None:
        """Pass on what is ready since the last time, which is everything where an answer has no rows."""
        with self._lock:
            if self.finished:
                return
            piece = ""
            if row and row.finished in ("deadline", "cancelled", "failed"):
                late = row.finished == "deadline"
                without_error = (
                    OutOfTime(self._network.out_of_time) if late else ClientLeft("the client is gone")
                )
                self.error = row.error or without_error
            else:
                piece = self._ready()
            self.finished = bool(self.error) or self._at == len(self._parts)
            if self.finished or (piece and self._in_pieces):
                sentences = self._sentences if self.finished else None
                self._on_piece(self, GeneratedText(piece, self.tokens, self.score, sentences=sentences))

    def _ready(self) -> str:
        """What is ready since the last time, in the order of the parts."""
        found = ""
        while self._at < len(self._parts):
            part = self._parts[self._at]
            if isinstance(part, str):
                text = part
                found += text
            else:
                text = self._text(part) if part.finished else self._settled(part)
                found += text[self._sent :]
                self._sent = max(self._sent, len(text))
                if not part.finished:
                    break
                self._sent = 0
                mean = part.score / (len(part.tokens) + 1)
                self._sentences.append(ScoredSentence(self._before, self._before + len(text), mean))
            self._before += len(text)
            self._at += 1
        self.text += found
        return found

    def _settled(self, row: Row) -> str:
        vocabulary = self._network.vocabulary
        return vocabulary.decode(row.answer[: vocabulary.settled(row.answer)])

    def _text(self, row: Row) -> str:
        return self._network.vocabulary.decode(row.answer)


def submit(answers: Sequence[AnswerJob], room: GenerationRoom) -> None:
    room.submit([row for answer in answers for row in answer.rows])
    for answer in answers:
        if not answer.rows:
            answer.advance()


def wait_for(
    asked: Sequence[Parts], network: ServedNetwork, room: GenerationRoom, *, within_s: float = float("inf")
) -> list[GeneratedText]:
    """The whole answer to each of these; raises what went wrong with the first that has none."""
    finished = threading.Semaphore(0)
    deadline = time.monotonic() + within_s
    jobs = [AnswerJob(parts, network, lambda *_: finished.release(), deadline=deadline) for parts in asked]
    submit(jobs, room)
    for _ in jobs:
        finished.acquire()
    for job in jobs:
        if job.error:
            raise job.error
    return [job.whole() for job in jobs]


def output_tensors(answers: Sequence[GeneratedText], network: ServedNetwork, *, rows: bool) -> Tensors:
    """The outputs of the model, with `rows` as those of a request; else there is a single answer.

    Texts are bytes; numbers have the type that they came with.
    """
    outputs = [network.outputs(answer) for answer in answers]
    shape = (len(outputs), 1) if rows else (1,)
    found: dict[str, Array] = {}
    for name, value in outputs[0].items():
        values = [each[name] for each in outputs]
        if isinstance(value, str):
            found[name] = np.array([each.encode() for each in values], np.object_).reshape(shape)
        else:
            found[name] = np.array(values).reshape(shape)
    return found


# Rows that go through a step together, unless the config says otherwise.
_ROWS: Final = 16
_ROWS_PARAMETER: Final = "rows_at_once"


def opened(
    serving: GenerationServing, version: Path, config: Mapping[str, Any]
) -> tuple[ServedNetwork, GenerationRoom]:
    """Raise GourmetError where its files are not those of its manifest, or cannot be used."""
    network = serving.open(package.open_version(version, config), cpu_threads(config))
    rows = integer_parameter(config, _ROWS_PARAMETER) or _ROWS
    malloc.give_back()  # of the files, half of what it has
    words = network.vocabulary
    continuous = parameter(config, CONTINUOUS_PARAMETER) != "off"
    room = GenerationRoom(
        network.engine, start=words.start, end=words.end, max_rows=rows, continuous=continuous
    )
    return network, room
