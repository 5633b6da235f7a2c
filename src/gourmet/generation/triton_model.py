"""The Python model of every system that generates text: whole answers, or pieces if its config is decoupled.

A call passes its rows to the scheduler (gourmet.generation.scheduler) and returns; they join the loop between
two steps. An example that cannot be answered fails only its own request. The parameter `system` of the
model's config names the system, and its SERVING does the rest.

Imported only inside Triton.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import triton_python_backend_utils as pb_utils

from gourmet.contracts import SYSTEM_PARAMETER, GeneratedText, client_of_request
from gourmet.errors import GourmetError
from gourmet.generation import package
from gourmet.generation.answers import (
    CLIENT_LEFT,
    ClientLeft,
    GenerationServing,
    GrowingAnswer,
    ServedNetwork,
)
from gourmet.generation.loop import Row, TooManyRows
from gourmet.generation.scheduler import CONTINUOUS_PARAMETER, DecodeScheduler
from gourmet.served import malloc
from gourmet.served.instances import cpu_threads, integer_parameter, parameter

# Rows in a step, unless the config sets another number.
_ROWS: Final = 16
_ROWS_PARAMETER: Final = "rows_at_once"
# The limit for clients that set none: longer than our own clients wait.
_DEFAULT_TIMEOUT_S: Final = 60.0
# How often Triton is asked whether the client is still connected. Most answers take less.
_CHECK_EVERY_S: Final = 0.1
_LARGE_BYTES: Final = 10_000
_EXPORT_EVERY_S: Final = 1.0
_GAUGES: Final = {"waiting": "Rows that wait in the queue", "at_work": "Rows that are being answered"}
_COUNTERS: Final = {
    "tokens_total": "Tokens of answers; a beam search counts its steps",
    "begun_total": "Rows that have their first token, without beam searches",
    "first_token_seconds_total": "Sum of the times from a row's arrival to its first token",
}


class HasServing(Protocol):
    @property
    def serving(self) -> GenerationServing: ...


class GenerationModel:
    """The base class of a model.py's TritonPythonModel."""

    parts_of: Callable[[str], HasServing]  # gourmet.systems.parts.SystemParts

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        try:
            version = Path(args["model_repository"]) / args["model_version"]
            serving = self.parts_of(parameter(config, SYSTEM_PARAMETER)).serving
            self.network = serving.open(package.open_version(version, config), cpu_threads(config))
            rows = integer_parameter(config, _ROWS_PARAMETER) or _ROWS
        except GourmetError as exc:
            raise pb_utils.TritonModelException(str(exc)) from exc
        malloc.give_back()  # the files were half of this process's memory
        self.scheduler = DecodeScheduler(
            self.network.engine,
            self.network.vocabulary,
            rows,
            continuous=parameter(config, CONTINUOUS_PARAMETER) != "off",
        )
        self.in_pieces = bool(config.get("model_transaction_policy", {}).get("decoupled"))
        self.has_rows = int(config.get("max_batch_size", 0)) > 0
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.figures = SchedulerFigures(pb_utils, self.scheduler, {**labels, "process": str(os.getpid())})
        # Sending an answer to Triton takes as long as a step: the loop does not wait for it.
        self.sending = ThreadPoolExecutor(1, thread_name_prefix="send")

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            _RunningRequest(request, self)

    def finalize(self) -> None:
        self.figures.close()
        self.scheduler.close()
        self.sending.shutdown()


class _RunningRequest:
    """One request on its way through the scheduler. The thread that sends also reads the answers' texts."""

    def __init__(self, request: pb_utils.InferenceRequest, model: GenerationModel) -> None:
        self._sender, self._model = request.get_response_sender(), model
        self._lock = threading.Lock()
        self._is_sending = False  # a send is pending; of whole answers there is one
        self._is_complete = False
        try:
            # Before its texts are tokenized.
            model.scheduler.check_queue_of(client_of_request(request.parameters()))
            self._answers = answers_to(request, model.network, self._sender.is_cancelled)
            self._rows = [row for answer in self._answers for row in answer.rows]
            for row in self._rows:
                row.on_tokens = self._on_tokens
            model.scheduler.submit(self._rows)
            if not self._rows:
                self._on_tokens()
        except (ValueError, TooManyRows, ClientLeft) as exc:
            model.sending.submit(self._send, refusal(exc))

    def _on_tokens(self, row: Row | None = None) -> None:
        if not self._model.in_pieces and not all(row.finished for row in self._rows):
            return
        with self._lock:
            is_sending, self._is_sending = self._is_sending, True
        if not is_sending:
            self._model.sending.submit(self._send_piece if self._model.in_pieces else self._send_whole)

    def _send_piece(self) -> None:
        """Send all new text as one piece: with many streams a message takes longer than a step."""
        self._is_sending = False  # before the text is read: a later token is sent by a later call
        if self._is_complete:
            return
        (answer,) = self._answers
        piece = answer.new_piece()
        self._is_complete = bool(answer.error) or piece.sentences is not None
        if answer.error:
            self._send(refusal(answer.error))
        elif piece.text or self._is_complete:
            response = _response([piece], self._model.network, rows=self._model.has_rows)
            self._send(response, final=self._is_complete)

    def _send_whole(self) -> None:
        self._send(whole_response(self._answers, self._model.network, rows=self._model.has_rows))

    def _send(self, response: pb_utils.InferenceResponse, *, final: bool = True) -> None:
        self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)


def answers_to(
    request: pb_utils.InferenceRequest,
    network: ServedNetwork,
    is_cancelled: Callable[[], bool],
    default_timeout_s: float = _DEFAULT_TIMEOUT_S,
) -> list[GrowingAnswer]:
    """Return an answer for each row of a request; raise ValueError for a row that cannot be answered."""
    inputs = {tensor.name(): list(tensor.as_numpy().ravel()) for tensor in request.inputs()}
    # Reading a photo takes longer than asking Triton whether its client is still connected.
    size = sum(len(value) for column in inputs.values() for value in column if isinstance(value, bytes))
    if size > _LARGE_BYTES and is_cancelled():
        raise ClientLeft(CLIENT_LEFT)
    deadline = time.monotonic() + (request.timeout() / 1e6 or default_timeout_s)
    is_cancelled, client = _cached_briefly(is_cancelled), client_of_request(request.parameters())
    answers = [GrowingAnswer(parts, network) for parts in network.requested(inputs)]
    for answer in answers:
        for row in answer.rows:
            row.deadline, row.is_cancelled, row.client = deadline, is_cancelled, client
    return answers


def whole_response(
    answers: Sequence[GrowingAnswer], network: ServedNetwork, *, rows: bool
) -> pb_utils.InferenceResponse:
    """Return one response with all answers to a request, or with the error of the first that failed."""
    errors = [answer.error for answer in answers if answer.error]
    return refusal(errors[0]) if errors else _response([a.whole() for a in answers], network, rows=rows)


def _response(
    answers: Sequence[GeneratedText], network: ServedNetwork, *, rows: bool
) -> pb_utils.InferenceResponse:
    """Return the outputs of a model: with `rows` a row per answer, else those of a single answer.

    Texts become bytes; numbers keep their type.
    """
    outputs = [network.outputs(answer) for answer in answers]
    shape = (len(outputs), 1) if rows else (1,)
    tensors = []
    for name, value in outputs[0].items():
        values = [of_answer[name] for of_answer in outputs]
        if isinstance(value, str):
            array = np.array([text.encode() for text in values], np.object_)
        else:
            array = np.array(values)
        tensors.append(pb_utils.Tensor(name, array.reshape(shape)))
    return pb_utils.InferenceResponse(tensors)


def refusal(error: Exception) -> pb_utils.InferenceResponse:
    """Return an error response: a ValueError blames the request, after other errors it may be sent again."""
    code = pb_utils.TritonError.UNAVAILABLE
    if isinstance(error, ClientLeft):
        pb_utils.Logger.log_info("answer stopped: its client disconnected")
        code = pb_utils.TritonError.CANCELLED
    elif isinstance(error, ValueError):
        code = pb_utils.TritonError.INVALID_ARG
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


def _cached_briefly(is_cancelled: Callable[[], bool]) -> Callable[[], bool]:
    """Cache the answer, since asking Triton costs more than a step."""
    last, checked_at = False, time.monotonic()

    def cached() -> bool:
        nonlocal last, checked_at
        now = time.monotonic()
        if now - checked_at > _CHECK_EVERY_S:
            last, checked_at = is_cancelled(), now
        return last

    return cached


class SchedulerFigures:
    """Export the scheduler's figures as custom metrics of Triton.

    Triton's own queue and compute times end when it passes a request to the model, which is at once. Each
    change costs a message to Triton, so changes are sent once a second.
    """

    def __init__(self, pb_utils: Any, scheduler: DecodeScheduler, labels: Mapping[str, str]) -> None:
        """Register the metrics under unique `labels`: if two processes shared them, Triton would remove the
        metrics of both when one ends.
        """
        family = pb_utils.MetricFamily
        kinds = {family.GAUGE: _GAUGES, family.COUNTER: _COUNTERS}
        self._scheduler = scheduler
        # Keep the families: a metric is deleted with its family.
        self._families = {
            name: family(name=f"generation_{name}", description=text, kind=kind)
            for kind, texts in kinds.items()
            for name, text in texts.items()
        }
        self._metrics = {name: family.Metric(labels=dict(labels)) for name, family in self._families.items()}
        self._exported = dict.fromkeys(self._metrics, 0.0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._export, name="figures", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._metrics.clear()
        self._families.clear()

    def _export(self) -> None:
        while not self._stopped.wait(_EXPORT_EVERY_S):
            for name, value in self._scheduler.figures().items():
                if change := value - self._exported[name]:
                    self._metrics[name].increment(change)
                    self._exported[name] = value
