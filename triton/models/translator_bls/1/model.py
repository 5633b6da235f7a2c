"""Russian in, English out, by business logic scripting: the loop is here, its steps are other models'.

The version to learn from. Every step is a request to `translator_decoder` inside Triton, caches and all;
`translator` has both in one process, and takes in other texts between two steps. All sentences of a request
go through the loop together, and before each step it is asked whether the client still waits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from gourmet.errors import GourmetError
from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.answers import ClientLeft
from gourmet.runtime.decoding.loop import Loop
from gourmet.runtime.decoding.triton_model import jobs, refusal, whole_response
from gourmet.systems.translator.serving import MarianEngine, TranslatorNetwork
from gourmet.systems.translator.tokenizer import Tokenizer

_ROWS = 16  # what translator_encoder and translator_decoder take at a time
# For how long a request is worked on that names no timeout, where the config has none for its queue.
_LONGEST_S = 20.0


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        version = Path(args["model_repository"]) / args["model_version"]
        config = json.loads(args["model_config"])
        try:
            with package.opened_as("a translator"):
                tokenizer = Tokenizer(package.open_version(version, config))
        except GourmetError as exc:
            raise pb_utils.TritonModelException(str(exc)) from exc
        encoder, decoder = partial(_ask, "translator_encoder"), partial(_ask, "translator_decoder")
        policy = config.get("dynamic_batching", {}).get("default_queue_policy", {})
        self._longest_s = int(policy.get("default_timeout_microseconds", 0)) / 1e6 or _LONGEST_S
        self._network = TranslatorNetwork(MarianEngine(encoder, decoder, tokenizer.pad), tokenizer)

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        if request.is_cancelled():
            return refusal(ClientLeft("the client left before its turn came"))
        vocabulary = self._network.vocabulary
        loop = Loop(self._network.engine, start=vocabulary.start, end=vocabulary.end, max_rows=_ROWS)
        try:
            answers = jobs(
                request, self._network, lambda *_: None, request.is_cancelled, longest_s=self._longest_s
            )
            loop.complete([row for job in answers for row in job.rows])
        except (ValueError, pb_utils.TritonModelException) as exc:
            return refusal(exc)
        return whole_response(answers, self._network, rows=True)


def _ask(
    model: str, outputs: Sequence[str], inputs: Mapping[str, npt.NDArray[Any]]
) -> list[npt.NDArray[Any]]:
    """Another model of this server; raises TritonModelException."""
    tensors = [pb_utils.Tensor(name, np.ascontiguousarray(values)) for name, values in inputs.items()]
    request = pb_utils.InferenceRequest(
        model_name=model, requested_output_names=list(outputs), inputs=tensors
    )
    response = request.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return [pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in outputs]
