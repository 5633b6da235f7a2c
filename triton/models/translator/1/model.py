"""Russian in, English out: all texts that are there go through one loop, and each is answered when done.

A call hands its texts to the loop (gourmet.runtime.decoding.loop) and returns; the loop takes them in between
two of its steps. A text that cannot be translated fails its own request, with a reason, and no other.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils

from gourmet.errors import GourmetError
from gourmet.runtime.decoding.loop import TooManyRows
from gourmet.runtime.decoding.served import Served, now_and_then
from gourmet.runtime.decoding.texts import Job
from gourmet.systems.translator import contract

# Where the client set no limit: longer than any of ours waits.
_MOST_S = 60.0


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        try:
            self._served = Served(args, json.loads(args["model_config"]))
        except GourmetError as exc:
            raise pb_utils.TritonModelException(str(exc)) from exc
        # Handing an answer to Triton takes as long as a step, which the loop does not wait for.
        self._answers = ThreadPoolExecutor(1, thread_name_prefix="answer")

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            _Request(request, self._served, self._answers)

    def finalize(self) -> None:
        self._served.close()
        self._answers.shutdown()


class _Request:
    """Its texts on their way through the loop; it is answered when the last of them is done."""

    def __init__(
        self, request: pb_utils.InferenceRequest, served: Served, answers: ThreadPoolExecutor
    ) -> None:
        self._sender, self._answers = request.get_response_sender(), answers
        self._lock = threading.Lock()
        try:
            texts = [contract.text_of(row) for row in _rows(request, contract.TEXT)]
            limits = _options(request, contract.MAX_TOKENS, len(texts))
            beams = _options(request, contract.BEAMS, len(texts))
            until = time.monotonic() + (request.timeout() / 1e6 or _MOST_S)
            gone = now_and_then(self._sender.is_cancelled)
            self._jobs = [
                Job(text, served.tokenizer, self._told, most=most, until=until, wanted=lambda: not gone())
                for text, most in zip(texts, limits, strict=True)
            ]
            self._left = len(self._jobs)
            served.submit(self._jobs, beams)
        except ValueError as exc:
            self._send(pb_utils.TritonError(str(exc), pb_utils.TritonError.INVALID_ARG))
        except TooManyRows as exc:
            self._send(pb_utils.TritonError(str(exc), pb_utils.TritonError.UNAVAILABLE))

    def _told(self, job: Job, _: str) -> None:
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._send(_error(self._jobs))

    def _send(self, error: pb_utils.TritonError | None) -> None:
        self._answers.submit(self._answer, error)

    def _answer(self, error: pb_utils.TritonError | None) -> None:
        response = pb_utils.InferenceResponse(error=error) if error else _response(self._jobs)
        self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _rows(request: pb_utils.InferenceRequest, name: str) -> list[object]:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return list(tensor.as_numpy().ravel()) if tensor else []


def _options(request: pb_utils.InferenceRequest, name: str, texts: int) -> list[int]:
    return contract.options_of(name, _rows(request, name), texts)


def _error(jobs: Sequence[Job]) -> pb_utils.TritonError | None:
    for job in jobs:
        if not job.was_wanted:
            pb_utils.Logger.log_info(f"a text is given up after {job.tokens} pieces: its client left")
            return pb_utils.TritonError("the client is gone", pb_utils.TritonError.CANCELLED)
        if job.error:
            return pb_utils.TritonError(str(job.error), pb_utils.TritonError.UNAVAILABLE)
    return None


def _response(jobs: Sequence[Job]) -> pb_utils.InferenceResponse:
    columns = {
        contract.TRANSLATION: np.array([[job.text.encode()] for job in jobs], np.object_),
        contract.TOKENS: np.array([[job.tokens] for job in jobs], np.int32),
        contract.SCORE: np.array([[job.score] for job in jobs], np.float32),
    }
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, values) for name, values in columns.items()])
