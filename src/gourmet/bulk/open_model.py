"""A model that can be asked: what it takes and gives, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gourmet.client.deadline import Deadline
from gourmet.contracts import ModelInfo, Tensors
from gourmet.serving.connect import connect

# What a model says to the inputs of a request, and its version; raises InvalidRequest.
AskModel = Callable[[Tensors], tuple[Tensors, str]]


@dataclass(frozen=True)
class OpenModel:
    """It is asked by any number of threads."""

    info: ModelInfo
    ask: AskModel
    close: Callable[[], None]


def behind_triton(url: str, model: str, timeout_s: float) -> OpenModel:
    triton = connect(url)
    try:
        info = triton.describe(model)
    except BaseException:
        triton.close()
        raise

    def ask(inputs: Tensors) -> tuple[Tensors, str]:
        answer = triton.infer(info.target, inputs, Deadline(timeout_s))
        return answer.outputs, answer.model_version

    return OpenModel(info, ask, triton.close)
