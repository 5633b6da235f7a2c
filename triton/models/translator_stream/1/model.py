"""Russian in, English out, word by word: each piece is sent as soon as the loop has it.

As `translator`, but that each text is answered in pieces; the last one is marked final. TOKENS and SCORE
are of the answer so far.
"""

from __future__ import annotations

import json
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
_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        try:
            self._served = Served(args, json.loads(args["model_config"]))
        except GourmetError as exc:
            raise pb_utils.TritonModelException(str(exc)) from exc
        # Handing a piece to Triton takes as long as a step, which the loop does not wait for.
        self._pieces = ThreadPoolExecutor(1, thread_name_prefix="piece")

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            self._begin(request)

    def finalize(self) -> None:
        self._served.close()
        self._pieces.shutdown()

    def _begin(self, request: pb_utils.InferenceRequest) -> None:
        sender = request.get_response_sender()

        def told(job: Job, piece: str) -> None:
            # As the job is now: by the time this is sent, it may be further.
            if not job.was_wanted:
                pb_utils.Logger.log_info(f"a text is given up after {job.tokens} pieces: its client left")
                self._pieces.submit(sender.send, flags=_FINAL)
            elif job.error:
                self._pieces.submit(_refuse, sender, str(job.error), pb_utils.TritonError.UNAVAILABLE)
            else:
                flags = _FINAL if job.is_over else 0
                self._pieces.submit(_send, sender, (piece, job.tokens, job.score), flags)

        try:
            (text,) = _values(request, contract.TEXT)
            (most,) = contract.options_of(contract.MAX_TOKENS, _values(request, contract.MAX_TOKENS), 1)
            gone = now_and_then(sender.is_cancelled)
            until = time.monotonic() + (request.timeout() / 1e6 or _MOST_S)
            job = Job(
                contract.text_of(text),
                self._served.tokenizer,
                told,
                most=most,
                until=until,
                wanted=lambda: not gone(),
                in_pieces=True,
            )
            self._served.submit([job], [1])
        except ValueError as exc:
            _refuse(sender, str(exc), pb_utils.TritonError.INVALID_ARG)
        except TooManyRows as exc:
            _refuse(sender, str(exc), pb_utils.TritonError.UNAVAILABLE)


def _values(request: pb_utils.InferenceRequest, name: str) -> list[object]:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return list(tensor.as_numpy().ravel()) if tensor else []


def _send(sender: pb_utils.InferenceResponseSender, answer: tuple[str, int, float], flags: int) -> None:
    piece, tokens, score = answer
    columns = {
        contract.TRANSLATION: np.array([piece.encode()], np.object_),
        contract.TOKENS: np.array([tokens], np.int32),
        contract.SCORE: np.array([score], np.float32),
    }
    response = pb_utils.InferenceResponse([pb_utils.Tensor(name, each) for name, each in columns.items()])
    sender.send(response, flags=flags)


def _refuse(sender: pb_utils.InferenceResponseSender, why: str, code: int) -> None:
    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(why, code))
    sender.send(response, flags=_FINAL)
