"""Requests into runs and back: which requests can share a run, stacking their rows, splitting them.

numpy only: the backends import it inside Triton, and what a run does is theirs. A single request is passed
through without a copy, and every answer is a view of its run's output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
# Takes the inputs and the names of the wanted outputs, gives these outputs in that order.
Run = Callable[[Feeds, Sequence[str]], Sequence[Array]]
_ASKED_EVERY_S: Final = 0.1


def padded(run: Run, rows: int) -> Run:
    """`run` with so many rows every time, of which the answers to those that were given are given back."""
    held: Feeds = {}

    def run_padded(feeds: Feeds, requested: Sequence[str]) -> Sequence[Array]:
        count = len(next(iter(feeds.values())))
        for name, given in feeds.items():
            place = held.get(name)
            if place is None or place.shape[1:] != given.shape[1:] or place.dtype != given.dtype:
                place = held[name] = np.zeros((rows, *given.shape[1:]), given.dtype)
            place[:count] = given
        return [answer[:count] for answer in run({name: held[name] for name in feeds}, requested)]

    return run_padded


class UnusableTensors(Exception):
    """What a client sent cannot be computed; the message names the tensor and both sides."""


class RequestCancelled(Exception):
    """Nobody waits for the answer any more."""


class LeftClients:
    """Which requests Triton cancelled while they waited, as it does where a gRPC client left.

    Asking takes as long as a small run: it is done ten times a second, and of every request while the last
    one asked about was cancelled. Of HTTP clients Triton learns that they left when it answers them.
    """

    def __init__(self) -> None:
        self._last, self._asked = False, 0.0

    def check(self, request: Any) -> None:
        """Raise RequestCancelled where nothing needs to be computed."""
        now = time.monotonic()
        if self._last or now - self._asked > _ASKED_EVERY_S:
            self._last, self._asked = bool(request.is_cancelled()), now
            if self._last:
                raise RequestCancelled("the client left before its turn came")


@dataclass
class Job:
    """One request: what it brings, what it wants, and in the end its answer or why it has none."""

    feeds: Feeds
    requested: Sequence[str]
    answer: dict[str, Array] = field(default_factory=dict)
    error: Exception | None = None

    @property
    def rows(self) -> int:
        return int(next(iter(self.feeds.values())).shape[0])


def text(name: str, array: Array) -> Array:
    """The strings of a tensor, which Triton hands out as bytes and ONNX Runtime takes as text."""
    try:
        strings = [item.decode() for item in array.ravel()]
    except UnicodeDecodeError as exc:
        raise UnusableTensors(
            f"input {name!r} holds bytes that are not UTF-8 text, which ONNX strings are: {exc}"
        ) from exc
    decoded = np.empty(len(strings), dtype=np.object_)
    decoded[:] = strings
    return decoded.reshape(array.shape)


def response(pb_utils: Any, job: Job, invalid: tuple[type[Exception], ...] = ()) -> Any:
    """What Triton is handed of an answered job; `invalid` errors are the client's, as UnusableTensors are."""
    if job.error is None:
        # Triton has no scalars; at least one dimension is what the config promises.
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.atleast_1d(array)) for name, array in job.answer.items()]
        )
    theirs = isinstance(job.error, (UnusableTensors, *invalid))
    code = pb_utils.TritonError.INVALID_ARG if theirs else pb_utils.TritonError.INTERNAL
    if isinstance(job.error, RequestCancelled):
        code = pb_utils.TritonError.CANCELLED
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(job.error), code))


def unsupported(config: Mapping[str, Any]) -> Iterator[str]:
    """What a config may ask of NVIDIA's backends, and no run here can do."""
    if config.get("batch_input") or config.get("batch_output"):
        yield "batch_input and batch_output are not supported"
    if config.get("model_transaction_policy", {}).get("decoupled"):
        yield "a decoupled transaction policy is not supported: each request is answered once"
    if config.get("model_operations", {}).get("op_library_filename"):
        yield "custom operators (model_operations) are not supported"
    for declared in config["input"]:
        if declared.get("allow_ragged_batch"):
            yield f"allow_ragged_batch of input {declared['name']!r} is not supported"


def answer_all(jobs: Iterable[Job], run: Run, *, batched: bool) -> None:
    """Give every job without an error its answer, with as few runs as the shapes allow."""
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        if job.error is None:
            # Jobs whose tensors differ in the number of rows alone can share a run.
            kind = frozenset((name, array.shape[1:]) for name, array in job.feeds.items())
            groups.setdefault(kind if batched else id(job), []).append(job)
    for group in groups.values():
        _answer_group(group, run, batched=batched)


def _answer_group(group: list[Job], run: Run, *, batched: bool) -> None:
    try:
        _run_group(group, run, batched=batched)
    except Exception as exc:
        if len(group) == 1:
            group[0].error = exc
            return
        # One request's values can fail a run (an index out of range); the others are not to blame.
        for job in group:
            _answer_group([job], run, batched=batched)


def _run_group(group: list[Job], run: Run, *, batched: bool) -> None:
    requested = list(dict.fromkeys(name for job in group for name in job.requested))
    if not requested:
        return
    feeds = group[0].feeds
    if len(group) > 1:
        feeds = {name: np.concatenate([job.feeds[name] for job in group]) for name in feeds}
    outputs = dict(zip(requested, run(feeds, requested), strict=True))
    total = sum(job.rows for job in group) if batched else 0
    for name, output in outputs.items():
        if batched and (output.ndim == 0 or output.shape[0] != total):
            raise ValueError(
                f"output {name!r} came back as {list(output.shape)} for {total} rows; a model with "
                "max_batch_size above 0 must answer row by row"
            )
    if len(group) == 1:
        group[0].answer = outputs
        return
    start = 0
    for job in group:
        stop = start + job.rows
        job.answer = {name: outputs[name][start:stop] for name in job.requested}
        start = stop
