"""Are these the right answers? Every reply against what each of its rows is answered when asked alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from gourmet.errors import UsageError
from gourmet.measure.connections import RawReply, RequestFailed
from gourmet.measure.inputs import Array, InputRows
from gourmet.measure.transports import Answer, Request, Wire
from gourmet.measure.validity import Untrusted, WrongAnswers

# A batch's products round differently than a single row's; more than this is another answer.
_TOLERANCE: Final = 1e-3


class Answers:
    """The expected answer of every row."""

    def __init__(self, expected: Sequence[Answer], batched: bool, source: str) -> None:
        self.expected, self.source = expected, source
        self._batched = batched
        self._right: dict[int, object] = {}
        if len(expected) > 1 and all(_same(expected[0], other) for other in expected[1:]):
            raise WrongAnswers(
                f"all {len(expected)} inputs have the same answer, so that answers mixed up would not show: "
                "bring inputs that differ with --data"
            )

    def check(self, wire: Wire, request: Request, reply: RawReply) -> None:
        """Raise WrongAnswers unless every row of the request has its own answer."""
        # The same bytes again are as right as they were: most replies need no second look.
        if isinstance(reply.body, bytes) and self._right.get(id(request)) == reply.body:
            return
        answer = wire.read(reply)
        rows = len(request.rows)
        for name, values in answer.items():
            if self._batched and (values.ndim == 0 or values.shape[0] != rows):
                got = values.shape[0] if values.ndim else 0
                raise WrongAnswers(
                    f"a request of {rows} rows was answered with {got} rows of {name}: "
                    f"counting requests times rows would report answers that no client got"
                )
        for place, row in enumerate(request.rows):
            mine = {name: values[place] for name, values in answer.items()} if self._batched else answer
            if not _same(mine, self.expected[row]):
                raise WrongAnswers(self._complaint(mine, row, rows, place))
        self._right[id(request)] = reply.body

    def check_alone(self, answers: Sequence[Answer]) -> None:
        """Raise WrongAnswers unless each row, asked alone, has the expected answer."""
        for row, answer in enumerate(answers):
            if not _same(answer, self.expected[row]):
                raise WrongAnswers(self._complaint(answer, row, 1, 0))

    def _complaint(self, got: Answer, row: int, rows: int, place: int) -> str:
        others = (other for other, answer in enumerate(self.expected) if other != row and _same(got, answer))
        theirs = next(others, None)
        what = (
            "is not the one expected" if theirs is None else f"is that of input {theirs}: rows are mixed up"
        )
        return (
            f"row {place + 1} of a request of {rows}: the answer to input {row} {what} "
            f"(expected: as {self.source}); a fast wrong answer is worth nothing, so nothing is reported"
        )


def _same(got: Answer, expected: Answer) -> bool:
    return got.keys() == expected.keys() and all(_close(got[name], expected[name]) for name in got)


def _close(got: Array, expected: Array) -> bool:
    if got.shape != expected.shape:
        return False
    if np.issubdtype(got.dtype, np.floating):
        return bool(np.allclose(got, expected, rtol=_TOLERANCE, atol=_TOLERANCE))
    return bool(np.array_equal(got, expected))


def ask_alone(wire: Wire, rows: int, batched: bool) -> list[Answer]:
    """What each row is answered when nothing else is asked."""

    async def ask() -> list[Answer]:
        try:
            replies = [wire.read(await wire.send(wire.request((row,)))) for row in range(rows)]
        finally:
            await wire.close()
        return [_only_row(answer) for answer in replies] if batched else replies

    try:
        return asyncio.run(ask())
    except RequestFailed as exc:
        raise Untrusted(f"a single row, asked alone, failed already: {exc}") from exc


def _only_row(answer: Answer) -> Answer:
    for name, values in answer.items():
        if values.ndim == 0 or values.shape[0] != 1:
            raise WrongAnswers(f"one row was answered with {name} of shape {list(values.shape)}")
    return {name: values[0] for name, values in answer.items()}


def of_onnx(model: Path, rows: InputRows) -> list[Answer]:
    """What ONNX Runtime answers each row by itself, without any server."""
    import onnxruntime as ort

    try:
        session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        found = []
        for row in range(len(rows)):
            feeds: Mapping[str, Array] = {given.name: rows.tensor(given, (row,)) for given in rows.inputs}
            answer = dict(zip(names, session.run(None, feeds), strict=True))
            found.append(_only_row(answer) if rows.batched else answer)
    except WrongAnswers:
        raise
    except Exception as exc:
        raise UsageError(f"--reference {model} cannot answer the rows: {exc}") from exc
    return found
