"""Batching: group requests that can share a run, stack their rows, and split the outputs again.

numpy only: the backends import it inside Triton and bring the run. A single request is passed through without
a copy, and every answer is a view of its run's output.
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
# Takes the inputs and the names of the requested outputs; returns these outputs in that order.
Run = Callable[[Feeds, Sequence[str]], Sequence[Array]]
_CHECK_EVERY_S: Final = 0.1


def padded(run: Run, rows: int) -> Run:
    """Return a `run` that always computes `rows` rows, and drops the outputs of the padding."""
    buffers: Feeds = {}

    def run_padded(feeds: Feeds, requested: Sequence[str]) -> Sequence[Array]:
        count = len(next(iter(feeds.values())))
        for name, array in feeds.items():
            buffer = buffers.get(name)
            if buffer is None or buffer.shape[1:] != array.shape[1:] or buffer.dtype != array.dtype:
                buffer = buffers[name] = np.zeros((rows, *array.shape[1:]), array.dtype)
            buffer[:count] = array
        return [output[:count] for output in run({name: buffers[name] for name in feeds}, requested)]

    return run_padded


class UnusableTensors(Exception):
    """Tensors of a client that the model cannot compute. The message names the tensor and both sides."""


class RequestCancelled(Exception):
    """The client disconnected before its request was computed."""


@dataclass
class Job:
    """One request: its inputs, the names of the requested outputs, and at the end its answer or error."""

    feeds: Feeds
    requested: Sequence[str]
    answer: dict[str, Array] = field(default_factory=dict)
    error: Exception | None = None

    @property
    def rows(self) -> int:
        return int(next(iter(self.feeds.values())).shape[0])


class Executor:
    """The `execute` of a backend: read the requests of one call, run them in batches, and answer them.

    It finds the requests that Triton cancelled while they waited, because their gRPC client disconnected. One
    check takes as long as a small run. So there are ten a second, and one for every request while the request
    checked last was cancelled. Triton notices only with its answer that an HTTP client disconnected.
    """

    def __init__(
        self, pb_utils: Any, run: Run, config: Mapping[str, Any], invalid: tuple[type[Exception], ...] = ()
    ) -> None:
        """`invalid` are the errors of `run` that blame the client."""
        self._pb_utils, self._run = pb_utils, run
        self._invalid: tuple[type[Exception], ...] = (UnusableTensors, *invalid)
        self._batched = config["max_batch_size"] > 0
        self._strings = {tensor["name"] for tensor in config["input"] if tensor["data_type"] == "TYPE_STRING"}
        self._last_was_cancelled, self._checked_at = False, 0.0

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Return a response for each request."""
        jobs = [self._read_request(request) for request in requests]
        _answer_all(jobs, self._run, batched=self._batched)
        return [self._response(job) for job in jobs]

    def _read_request(self, request: Any) -> Job:
        job = Job({}, list(request.requested_output_names()))
        try:
            self._check_cancelled(request)
            for tensor in request.inputs():
                name, array = tensor.name(), tensor.as_numpy()
                job.feeds[name] = _text(name, array) if name in self._strings else array
        except (UnusableTensors, RequestCancelled) as exc:
            job.error = exc
        return job

    def _check_cancelled(self, request: Any) -> None:
        now = time.monotonic()
        if self._last_was_cancelled or now - self._checked_at > _CHECK_EVERY_S:
            self._last_was_cancelled, self._checked_at = bool(request.is_cancelled()), now
            if self._last_was_cancelled:
                raise RequestCancelled("request cancelled: the client disconnected while it waited")

    def _response(self, job: Job) -> Any:
        if job.error is None:
            # Triton has no scalars; at least one dimension is what the config promises.
            return self._pb_utils.InferenceResponse(
                [self._pb_utils.Tensor(name, np.atleast_1d(array)) for name, array in job.answer.items()]
            )
        error = self._pb_utils.TritonError
        code = error.INVALID_ARG if isinstance(job.error, self._invalid) else error.INTERNAL
        if isinstance(job.error, RequestCancelled):
            code = error.CANCELLED
        return self._pb_utils.InferenceResponse(error=error(str(job.error), code))


def _text(name: str, array: Array) -> Array:
    """Decode the strings of a tensor: Triton passes bytes, ONNX Runtime takes text."""
    try:
        strings = [item.decode() for item in array.ravel()]
    except UnicodeDecodeError as exc:
        raise UnusableTensors(
            f"input {name!r} holds bytes that are not UTF-8 text; strings of ONNX models must be: {exc}"
        ) from exc
    decoded = np.empty(len(strings), dtype=np.object_)
    decoded[:] = strings
    return decoded.reshape(array.shape)


def unsupported(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the features of NVIDIA's backends that a config asks for and our backends lack."""
    if config.get("batch_input") or config.get("batch_output"):
        yield "batch_input and batch_output are not supported"
    if config.get("model_transaction_policy", {}).get("decoupled"):
        yield "a decoupled transaction policy is not supported: each request is answered once"
    if config.get("model_operations", {}).get("op_library_filename"):
        yield "custom operators (model_operations) are not supported"
    for declared in config["input"]:
        if declared.get("allow_ragged_batch"):
            yield f"allow_ragged_batch of input {declared['name']!r} is not supported"


def _answer_all(jobs: Iterable[Job], run: Run, *, batched: bool) -> None:
    """Answer every job that has no error, with as few runs as the shapes allow."""
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
        # The values of one request can fail a run (an index out of range): answer the others alone.
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
                f"output {name!r} has shape {list(output.shape)} for {total} rows; a model with "
                "max_batch_size above 0 must return one row per input row"
            )
    if len(group) == 1:
        group[0].answer = outputs
        return
    start = 0
    for job in group:
        stop = start + job.rows
        job.answer = {name: outputs[name][start:stop] for name in job.requested}
        start = stop
