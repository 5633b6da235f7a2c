"""Russian in, English out, by business logic scripting: the loop is here, its steps are other models'.

The version to learn from. Every word is a request to `translator_decoder` inside Triton, cache and all;
`translator` has both in one process, and takes in other texts between two steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from gourmet.errors import GourmetError
from gourmet.runtime import manifest
from gourmet.runtime.decoding import package
from gourmet.runtime.decoding.sentences import parts
from gourmet.runtime.decoding.texts import MOST_PIECES
from gourmet.runtime.decoding.tokenizer import Tokenizer
from gourmet.systems.translator import contract


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        path = Path(args["model_repository"]) / args["model_version"] / package.FILE
        try:
            manifest.check(path, json.loads(args["model_config"]))
            self._tokenizer = Tokenizer(package.read(path))
        except GourmetError as exc:
            raise pb_utils.TritonModelException(str(exc)) from exc

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        rows = pb_utils.get_input_tensor_by_name(request, contract.TEXT).as_numpy().ravel()
        try:
            answers = [self._translate(contract.text_of(row)) for row in rows]
        except ValueError as exc:
            return _failed(str(exc), pb_utils.TritonError.INVALID_ARG)
        except pb_utils.TritonModelException as exc:
            return _failed(str(exc), pb_utils.TritonError.INTERNAL)
        texts, tokens, scores = zip(*answers, strict=True)
        columns = {
            contract.TRANSLATION: np.array([[text.encode()] for text in texts], np.object_),
            contract.TOKENS: np.array(tokens, np.int32)[:, None],
            contract.SCORE: np.array(scores, np.float32)[:, None],
        }
        return pb_utils.InferenceResponse([pb_utils.Tensor(*column) for column in columns.items()])

    def _translate(self, text: str) -> tuple[str, int, float]:
        """The text, how many pieces it has, and the mean of their probabilities' logarithms."""
        said, tokens, score, sentences = "", 0, 0.0, 0
        for part in parts(text, lambda piece: len(self._tokenizer.encode(piece)), MOST_PIECES):
            if not part.is_sentence:
                said += part.text
                continue
            found, its_score = self._sentence(self._tokenizer.encode(part.text))
            said += self._tokenizer.decode(found)
            tokens, score, sentences = tokens + len(found), score + its_score, sentences + 1
        return said, tokens, score / max(1, tokens + sentences)

    def _sentence(self, source: Sequence[int]) -> tuple[list[int], float]:
        ids, mask = np.array([source], np.int64), np.ones((1, len(source)), np.int32)
        (memory,) = _ask("translator_encoder", ["memory"], ids=ids, mask=mask)
        most = 2 * len(source) + 20
        # As large as it may become, since what is not yet there is not heeded.
        cache = np.zeros((*memory.shape[:4], most, memory.shape[5]), np.float32)
        found: list[int] = []
        token, score = self._tokenizer.pad, 0.0
        for length in range(most):
            tokens, scores, added = _ask(
                "translator_decoder",
                ["tokens", "scores", "added"],
                token=np.array([[token]], np.int64),
                length=np.array([[length]], np.int64),
                cache=cache,
                memory=memory,
                mask=mask,
            )
            cache[:, :, :, :, length] = added[:, :, :, :, 0]
            token, score = int(tokens[0, 0]), score + float(scores[0, 0])
            if token == self._tokenizer.end:
                break
            found.append(token)
        return found, score


def _ask(model: str, outputs: list[str], **inputs: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Another model of this server; raises TritonModelException."""
    tensors = [pb_utils.Tensor(name, values) for name, values in inputs.items()]
    request = pb_utils.InferenceRequest(model_name=model, requested_output_names=outputs, inputs=tensors)
    response = request.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return [pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in outputs]


def _failed(why: str, code: int) -> pb_utils.InferenceResponse:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(why, code))
