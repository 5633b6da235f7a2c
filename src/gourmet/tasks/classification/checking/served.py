"""A served model as Triton describes it, and one question to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.http as triton_http

from gourmet.contracts import BadAnswer, Classification, ModelInfo
from gourmet.errors import UsageError
from gourmet.serving.client import describe_model, triton
from gourmet.systems import registry
from gourmet.tasks.classification.accuracy import Scores


@dataclass(frozen=True)
class Served:
    """A classifier, the contract of its system, and the Triton that serves it."""

    url: str
    info: ModelInfo
    contract: Classification

    @property
    def labels(self) -> tuple[str, ...]:
        return self.contract.labels_of(self.info)

    def encode(self, picture: bytes) -> npt.NDArray[Any]:
        return self.contract.encode(picture, self.info.inputs[0].datatype)


def describe(url: str, name: str) -> Served:
    """Learn from Triton what `name` takes, and see that it answers its system's sample."""
    with triton(url) as client:
        info = describe_model(client, name)
        served = Served(url, info, registry.classification(info.system))
        sample = served.contract.sample()
        served.contract.request_inputs(sample, info)  # says what is wrong with a model that it does not fit
        _compare_labels(client, served, served.encode(sample))
        ask(client, served, served.encode(sample))
    return served


def ask(
    client: triton_http.InferenceServerClient, served: Served, values: npt.NDArray[Any]
) -> tuple[Scores, str]:
    """Ask once about all rows of `values`; their probabilities, as a client makes them, and the version.

    Raise BadAnswer unless each row has its own.
    """
    result = client.infer(served.info.name, [_tensor(served, values)])
    response = result.get_response()
    outputs = {output["name"]: result.as_numpy(output["name"]) for output in response["outputs"]}
    for name, output in outputs.items():
        if served.info.max_batch_size and len(output) != len(values):
            raise BadAnswer(f"{name} has {len(output)} rows in answer to {len(values)}")
    rows = served.contract.probabilities(outputs, served.info)
    if rows.shape != (len(values), len(served.labels)):
        raise BadAnswer(
            f"the answer has the shape {list(rows.shape)} instead of {[len(values), len(served.labels)]}"
        )
    if not np.allclose(rows.sum(axis=1), 1.0, atol=1e-3):  # not true of nan either
        raise BadAnswer("the probabilities of a row do not sum to 1")
    return rows, str(response.get("model_version", ""))


def _tensor(served: Served, values: npt.NDArray[Any]) -> triton_http.InferInput:
    spec = served.info.inputs[0]
    tensor = triton_http.InferInput(spec.name, list(values.shape), spec.datatype)
    tensor.set_data_from_numpy(values)
    return tensor


def _compare_labels(
    client: triton_http.InferenceServerClient, served: Served, sample: npt.NDArray[Any]
) -> None:
    """See that the class names that Triton has for the model, if any, are those of its system or config."""
    labels, info = served.labels, served.info
    for output in info.outputs:
        if output.datatype != "FP32" or output.shape[-1] != len(labels):
            continue
        asked = [triton_http.InferRequestedOutput(output.name, class_count=len(labels))]
        ranked = client.infer(info.name, [_tensor(served, sample)], outputs=asked).as_numpy(output.name)
        for entry in ranked.ravel():
            _, class_id, *label = entry.decode().split(":", 2)
            if label and label[0] != labels[int(class_id)]:
                raise UsageError(
                    f"{info.name!r} calls its class {class_id} {label[0]!r}, and the system "
                    f"{info.system} calls it {labels[int(class_id)]!r}: deploy the model with its labels"
                )
