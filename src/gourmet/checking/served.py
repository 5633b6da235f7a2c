"""A served model as Triton describes it, and one question to it."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.http as triton_http

from gourmet.errors import UsageError
from gourmet.evaluating.accuracy import Scores
from gourmet.serving.asking import ModelUnavailable, model_index, triton
from gourmet.systems import registry
from gourmet.systems.instances import parameter


class WrongAnswer(ModelUnavailable):
    """The model answered, and not what was asked."""


@dataclass(frozen=True)
class Served:
    """A model of one of our systems that answers pictures with probabilities."""

    url: str
    name: str
    system: str
    contract: ModuleType
    input_name: str
    datatype: str
    max_batch: int  # 0: the model knows no batches
    temperature: float
    threshold: float | None
    version: str  # that answered first

    @property
    def labels(self) -> tuple[str, ...]:
        labels: tuple[str, ...] = self.contract.LABELS
        return labels


@dataclass(frozen=True)
class Answer:
    """Probabilities [rows, classes], as a client makes them of what the model answered."""

    probabilities: Scores
    version: str


def describe(url: str, name: str) -> Served:
    """Learn from Triton what `name` takes, and see that it answers its system's sample."""
    with triton(url) as client:
        index = model_index(client)
        if index.get(name, {}).get("state") != "READY":
            ready = sorted(model for model, entry in index.items() if entry.get("state") == "READY")
            reason = index.get(name, {}).get("reason")
            raise ModelUnavailable(
                f"Triton at {url} does not serve {name!r}{f' ({reason})' if reason else ''}; "
                f"it serves {', '.join(ready) or 'nothing'}"
            )
        metadata, config = client.get_model_metadata(name), client.get_model_config(name)
        system = parameter(config, "system")
        if not system:
            raise UsageError(
                f"the config of {name!r} does not say whose pictures it takes: give it "
                f'parameters {{ key: "system" value: {{ string_value: "…" }} }}, '
                f"one of {', '.join(registry.names())}"
            )
        if len(metadata["inputs"]) != 1:
            names = ", ".join(tensor["name"] for tensor in metadata["inputs"])
            raise UsageError(f"{name!r} has the inputs {names}; only models of one input can be checked")
        threshold = parameter(config, "threshold")
        served = Served(
            url=url,
            name=name,
            system=system,
            contract=registry.room(system, "contract"),
            input_name=metadata["inputs"][0]["name"],
            datatype=metadata["inputs"][0]["datatype"],
            max_batch=int(config.get("max_batch_size", 0)),
            temperature=float(parameter(config, "temperature") or 1.0),
            threshold=float(threshold) if threshold else None,
            version=str(metadata["versions"][-1]),
        )
        sample = served.contract.encode(served.contract.sample(), served.datatype)
        _compare_labels(client, served, metadata["outputs"], sample)
        ask(client, served, sample)
    return served


def ask(client: triton_http.InferenceServerClient, served: Served, values: npt.NDArray[Any]) -> Answer:
    """Ask once about all rows of `values`; raise WrongAnswer unless each row has its probabilities."""
    result = client.infer(served.name, [_tensor(served, values)])
    response = result.get_response()
    outputs = {output["name"]: result.as_numpy(output["name"]) for output in response["outputs"]}
    for name, output in outputs.items():
        if served.max_batch and len(output) != len(values):
            raise WrongAnswer(f"{name} has {len(output)} rows in answer to {len(values)}")
    try:
        rows = served.contract.probabilities(outputs, served.temperature)
    except ValueError as exc:
        raise WrongAnswer(f"{served.name} does not answer as {served.system} models do: {exc}") from exc
    if rows.shape != (len(values), len(served.labels)):
        raise WrongAnswer(
            f"the answer has the shape {list(rows.shape)} instead of {[len(values), len(served.labels)]}"
        )
    if not np.allclose(rows.sum(axis=1), 1.0, atol=1e-3):  # not true of nan either
        raise WrongAnswer("the probabilities of a row do not sum to 1")
    return Answer(rows, str(response.get("model_version", "")))


def _tensor(served: Served, values: npt.NDArray[Any]) -> triton_http.InferInput:
    tensor = triton_http.InferInput(served.input_name, list(values.shape), served.datatype)
    tensor.set_data_from_numpy(values)
    return tensor


def _compare_labels(
    client: triton_http.InferenceServerClient,
    served: Served,
    outputs: list[dict[str, Any]],
    sample: npt.NDArray[Any],
) -> None:
    """See that the class names that Triton has for the model, if any, are the system's."""
    labels = served.labels
    scores = [out for out in outputs if out["datatype"] == "FP32" and out["shape"][-1] > 1]
    for output in scores:
        count = int(output["shape"][-1])
        if count != len(labels):
            raise UsageError(
                f"{output['name']} of {served.name!r} has {count} scores a picture, "
                f"and the system {served.system} has {len(labels)} labels: they are not of one system"
            )
        asked = [triton_http.InferRequestedOutput(output["name"], class_count=count)]
        ranked = client.infer(served.name, [_tensor(served, sample)], outputs=asked).as_numpy(output["name"])
        for entry in ranked.ravel():
            _, class_id, *label = entry.decode().split(":", 2)
            if label and label[0] != labels[int(class_id)]:
                raise UsageError(
                    f"{served.name!r} calls its class {class_id} {label[0]!r}, and the system "
                    f"{served.system} calls it {labels[int(class_id)]!r}: deploy the model with its labels"
                )
