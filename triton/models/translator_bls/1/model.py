"""Translate Russian into English with business logic scripting (BLS): other models compute the loop's steps.

This version is for study. Every step is a request to `translator_decoder` inside Triton, with all caches.
`translator` computes the steps in its own process, and other texts join between two steps. All sentences of a
request go through the loop together. The loop checks before each step whether the client is still connected.
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
from gourmet.generation import package
from gourmet.generation.answers import CLIENT_LEFT, ClientLeft
from gourmet.generation.loop import Loop
from gourmet.generation.triton_model import answers_to, refusal, whole_response
from gourmet.systems.translator.serving import MarianEngine, TranslatorNetwork
from gourmet.systems.translator.tokenizer import Tokenizer

_ROWS = 16  # the max_batch_size of translator_encoder and translator_decoder
# The timeout of a request if neither the request nor the config's queue policy sets one.
_DEFAULT_TIMEOUT_S = 20.0


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        version = Path(args["model_repository"]) / args["model_version"]
        config = json.loads(args["model_config"])
        try:
            with package.opened_as("a translator"):
                tokenizer = Tokenizer(package.open_version(version, config))
        except GourmetError as exc:
            raise pb_utils.TritonModelException(str(exc)) from exc
        encoder, decoder = (
            partial(_ask_model, "translator_encoder"),
            partial(_ask_model, "translator_decoder"),
        )
        policy = config.get("dynamic_batching", {}).get("default_queue_policy", {})
        self._timeout_s = int(policy.get("default_timeout_microseconds", 0)) / 1e6 or _DEFAULT_TIMEOUT_S
        self._network = TranslatorNetwork(MarianEngine(encoder, decoder, tokenizer.pad), tokenizer)

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer_request(request) for request in requests]

    def _answer_request(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        if request.is_cancelled():
            return refusal(ClientLeft(CLIENT_LEFT))
        loop = Loop(self._network.engine, self._network.vocabulary, _ROWS)
        try:
            answers = answers_to(request, self._network, request.is_cancelled, self._timeout_s)
            loop.complete([row for answer in answers for row in answer.rows])
        except (ValueError, pb_utils.TritonModelException) as exc:
            return refusal(exc)
        return whole_response(answers, self._network, rows=True)


def _ask_model(
    model: str, outputs: Sequence[str], inputs: Mapping[str, npt.NDArray[Any]]
) -> list[npt.NDArray[Any]]:
    """Send a request to another model of this server; raise TritonModelException if it fails."""
    tensors = [pb_utils.Tensor(name, np.ascontiguousarray(values)) for name, values in inputs.items()]
    request = pb_utils.InferenceRequest(
        model_name=model, requested_output_names=list(outputs), inputs=tensors
    )
    response = request.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return [pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in outputs]
