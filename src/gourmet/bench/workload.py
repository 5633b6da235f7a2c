"""A workload: a model, the rows to send and the answers to expect; and how to reach the model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gourmet.bench.inputs import DataSource, InputRows, first_steps, rows_for
from gourmet.bench.results import LoadSpec, Through
from gourmet.bench.transports import (
    Answer,
    App,
    LoopedHttp,
    ModelWire,
    RawReply,
    Request,
    RequestFailed,
    TritonGrpc,
    TritonHttp,
    Wire,
)
from gourmet.bench.validity import Untrusted, WrongAnswers
from gourmet.contracts import Array, ModelInfo
from gourmet.errors import UsageError
from gourmet.served.reading import error_summary
from gourmet.stack.connect import connect
from gourmet.stack.run_file import stack_at
from gourmet.triton_client.address import Address

APP_ENV: Final = "GOURMET_APP_URL"
# A batch's products round differently than a single row's; more than this is another answer.
_TOLERANCE: Final = 1e-3
_HALF_TOLERANCE: Final = 0.05  # of float16


@dataclass(frozen=True)
class Addresses:
    """Addresses of the server, each as host:port."""

    url: str = "localhost:8000"
    grpc_url: str = "localhost:8001"
    app_url: str = "localhost:5000"

    @classmethod
    def of(cls, url: str, grpc_url: str = "", app_url: str = "") -> Addresses:
        """Return those of the stack with the Triton at `url`, or the usual ports of its host."""
        stack, at = stack_at(url), Address.of(url)
        web = stack.web_url.removeprefix("http://") if stack else ""
        grpc_url = grpc_url or (stack.grpc_url if stack else str(at.grpc))
        return cls(url, grpc_url, app_url or web or os.environ.get(APP_ENV) or f"{at.host}:5000")


@dataclass(frozen=True)
class MeasureOptions:
    """Duration of a measurement, and what it tolerates."""

    window_s: float = 1.0
    windows: int = 5
    warm_up_s: float = 1.0
    attempts: int = 3
    steadiness: float = 0.10
    errors_allowed: float = 0.0
    # Keep the last attempt although it was disturbed: its checks have the reason.
    keep_disturbed: bool = False
    # First processes whose work, and that of their descendants, is not counted as another program's.
    own: tuple[int, ...] = ()

    @property
    def measure_s(self) -> float:
        return self.windows * self.window_s


class Answers:
    """The expected answer of every row."""

    def __init__(self, expected: Sequence[Answer], batched: bool, source: str) -> None:
        self.expected, self.source = expected, source
        self._batched = batched
        self._right: dict[int, object] = {}
        if len(expected) > 1 and all(same(expected[0], other) for other in expected[1:]):
            raise WrongAnswers(
                f"all {len(expected)} inputs have the same answer, so that answers mixed up would not show: "
                "bring inputs that differ with --data"
            )

    def check_reply(self, wire: ModelWire, request: Request, reply: RawReply) -> None:
        """Raise WrongAnswers unless every row of the request has its own answer."""
        # The same bytes again are as right as they were: most replies need no second look.
        if isinstance(reply.body, bytes) and self._right.get(id(request)) == reply.body:
            return
        rows = _by_row(wire.read_reply(reply), len(request.rows), self._batched)
        for number, (row, answer) in enumerate(zip(request.rows, rows, strict=True), 1):
            self.check_row(row, answer, f"row {number} of a request of {len(rows)}")
        self._right[id(request)] = reply.body

    def check_row(self, row: int, got: Answer, where: str) -> None:
        if same(got, self.expected[row]):
            return
        others = (other for other, answer in enumerate(self.expected) if other != row and same(got, answer))
        theirs = next(others, None)
        what = (
            "is not the one expected" if theirs is None else f"is that of input {theirs}: rows are mixed up"
        )
        raise WrongAnswers(
            f"{where}: the answer to input {row} {what} "
            f"(expected: as {self.source}); answers are wrong, so no speed is reported"
        )


@dataclass(frozen=True)
class Workload:
    """A model, the rows to send, and the expected answers."""

    model: str
    rows: InputRows
    answers: Answers


def wire_for(target: Addresses, load: LoadSpec, rows: InputRows) -> ModelWire:
    """Return the wire of a load."""
    if load.protocol == "grpc":
        return TritonGrpc(target.grpc_url, load.model, rows)
    kinds: dict[str, type[App | TritonHttp]] = {"app": App, "loop": LoopedHttp, "triton": TritonHttp}
    address = target.app_url if load.through == "app" else target.url
    if Address.of(address).is_grpc:
        raise UsageError(f"{address} is asked over gRPC: use --protocol grpc, or give the HTTP address")
    return kinds[load.through](address, load.model, rows)


def check_possible(load: LoadSpec, rows: InputRows) -> None:
    """Raise UsageError if the load cannot be sent."""
    if load.batch > 1 and not rows.batched:
        raise UsageError(f"{load.model} takes one input a request (max_batch_size 0): drop --batch")
    if load.batch > 1 and not rows.alike:
        raise UsageError(
            f"the examples of {load.model} differ in shape and cannot share a request: drop --batch"
        )
    if load.through == "app" and load.batch > 1:
        raise UsageError("the web app takes one photo a request: drop --batch")
    if rows.info.decoupled and load.batch > 1:
        raise UsageError(f"{load.model} answers in pieces (it is decoupled), one row a request: drop --batch")


def _by_row(answer: Answer, rows: int, batched: bool) -> list[Answer]:
    if not batched:
        return [answer]
    for name, values in answer.items():
        got = values.shape[0] if values.ndim else 0
        if got != rows:
            raise WrongAnswers(
                f"a request of {rows} rows was answered with {got} rows of {name}: "
                f"counting requests times rows would report answers that no client got"
            )
    return [{name: values[row] for name, values in answer.items()} for row in range(rows)]


def same(got: Answer, expected: Answer) -> bool:
    """Return True if both answers are equal but for the rounding of a batch."""
    return got.keys() == expected.keys() and all(_close(got[name], expected[name]) for name in got)


def _close(got: Array, expected: Array) -> bool:
    if got.shape != expected.shape:
        return False
    if np.issubdtype(got.dtype, np.floating):
        allowed = _HALF_TOLERANCE if got.dtype == np.float16 else _TOLERANCE
        return bool(np.allclose(got, expected, rtol=allowed, atol=allowed))
    return bool(np.array_equal(got, expected))


def check_outputs(info: ModelInfo, answer: Answer) -> None:
    """Raise WrongAnswers if an answer lacks an output that the model's config declares."""
    if missing := [spec.name for spec in info.outputs if spec.name not in answer]:
        raise WrongAnswers(
            f"{info.name} does not answer {', '.join(missing)}, which its config declares; "
            f"it answers {', '.join(answer) or 'nothing'}"
        )


def ask_each(wire: Wire, requests: Iterable[Request]) -> list[RawReply]:
    """Send one request after the other; raise RequestFailed if one has no answer."""

    async def send_all() -> list[RawReply]:
        try:
            return [await wire.send(request) for request in requests]
        finally:
            await wire.close()

    return asyncio.run(send_all())


def ask_alone(wire: ModelWire, rows: InputRows) -> list[Answer]:
    """Return the answer to each row when nothing else is asked."""
    try:
        replies = ask_each(wire, [wire.request((row,)) for row in range(len(rows))])
    except RequestFailed as exc:
        raise Untrusted(f"a single row, asked alone, failed already: {exc}") from exc
    return [_by_row(wire.read_reply(reply), 1, rows.batched)[0] for reply in replies]


def of_onnx(model: Path, rows: InputRows) -> list[Answer]:
    """Return ONNX Runtime's answer to each row by itself, without a server."""
    from gourmet.export.given_onnx import opened_alone

    answers = []
    try:
        session: Any = opened_alone(model.read_bytes())
        names = [output.name for output in session.get_outputs()]
        for row in range(len(rows)):
            feeds = {spec.name: rows.tensor(spec, (row,)) for spec in rows.inputs}
            answer = dict(zip(names, session.run(None, feeds), strict=True))
            if any(values.dtype == np.object_ for values in (*feeds.values(), *answer.values())):
                raise ValueError("it takes or gives texts, and numbers alone are compared")
            answers.append(_by_row(answer, 1, rows.batched)[0])
    except Exception as exc:  # protobuf and ONNX Runtime have their own
        raise UsageError(f"--reference {model} cannot answer the rows: {error_summary(exc)}") from exc
    return answers


def prepare(
    model: str, target: Addresses, data: DataSource, *, through: Through = "triton", stepped: str = ""
) -> Workload:
    """Make the rows for a served model, and get the answer to each of them alone.

    `stepped` is the system whose answers a model computes a step a request.
    """
    with connect(target.url) as triton:
        info = triton.describe(model)
    rows = first_steps(info, stepped, data) if stepped else rows_for(info, data)
    if through == "app" and not rows.pictures:
        raise UsageError(
            f"the web app takes photos, and there are none for {model}: its system is not one of pictures"
        )
    wire = wire_for(target, LoadSpec(model, through=through), rows)
    alone = ask_alone(wire, rows)
    if through == "triton":
        check_outputs(info, alone[0])
    if data.reference is None:
        return Workload(model, rows, Answers(alone, rows.batched, "each row was answered alone"))
    source = f"{data.reference.name} answers without a server"
    right = Answers(of_onnx(data.reference, rows), rows.batched, source)
    for row, answer in enumerate(alone):
        right.check_row(row, answer, "a row asked alone")
    return Workload(model, rows, right)
