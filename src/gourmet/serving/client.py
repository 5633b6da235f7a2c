"""The HTTP client of a running Triton: is a model there, and does it really answer?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import gevent
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from gourmet.contracts import Array, ModelInfo, Tensors
from gourmet.errors import GourmetError
from gourmet.runtime import generate
from gourmet.runtime.statistics import ModelStatistics, by_version
from gourmet.serving import api_keys
from gourmet.systems import registry

_SAMPLE_TIMEOUT_S: Final = 30.0
# Triton counts a request shortly after it answered.
_BOOKED_WITHIN_S: Final = 3.0


class TritonUnreachable(GourmetError):
    """No server answers at the address."""


class ModelUnavailable(GourmetError):
    """The server is there and the model is not, or it does not answer as it should."""


class _WithKeys(triton_http.InferenceServerClientPlugin):  # type: ignore[misc]
    """Sends the keys of the Triton at `url` along, where they are known."""

    def __init__(self, url: str) -> None:
        self._headers = api_keys.headers_for(url)

    def __call__(self, request: Any) -> None:
        request.headers.update(self._headers)


@contextmanager
def triton(url: str, timeout_s: float = 30.0) -> Iterator[triton_http.InferenceServerClient]:
    """A client for `url` (host:port) that is closed afterwards and whose errors are ours."""
    client = triton_http.InferenceServerClient(url, connection_timeout=2.0, network_timeout=timeout_s)
    client.register_plugin(_WithKeys(url))
    try:
        yield client
    except InferenceServerException as exc:
        if "This API is restricted" in str(exc.message()):
            raise GourmetError(
                f"Triton at {url} does this for those with its key only: run it as the user who started that "
                f"Triton, here, or set {api_keys.ADMIN_ENV} and {api_keys.MEMORY_ENV} to its keys"
            ) from exc
        raise ModelUnavailable(str(exc.message())) from exc
    except (OSError, gevent.Timeout) as exc:
        raise TritonUnreachable(f"no Triton answers at {url} ({exc}): start one with `gourmet up`") from exc
    finally:
        client.close()


def model_index(client: triton_http.InferenceServerClient) -> dict[str, dict[str, str]]:
    """Every model that Triton knows of, by name, with its state and, if it failed, the reason.

    Triton has a row for each version that it ever loaded; the one that is ready speaks for the model.
    """
    found: dict[str, dict[str, str]] = {}
    for entry in client.get_model_repository_index():
        if found.get(entry["name"], {}).get("state") != "READY":
            found[entry["name"]] = entry
    return found


def describe_model(client: triton_http.InferenceServerClient, model: str) -> ModelInfo:
    """What `model` takes and gives; raise ModelUnavailable unless it is ready."""
    index = model_index(client)
    entry = index.get(model, {})
    if entry.get("state") != "READY":
        ready = sorted(name for name, other in index.items() if other.get("state") == "READY")
        reason = entry.get("reason", "").partition("\n")[0]  # below it, a Python model's own lines of code
        raise ModelUnavailable(
            f"the model {model!r} is not ready ({entry.get('state', 'unknown to Triton')}"
            f"{', ' + reason if reason else ''}); ready are {', '.join(ready) or 'none'}"
        )
    return ModelInfo.from_triton(client.get_model_metadata(model), client.get_model_config(model))


def infer(client: triton_http.InferenceServerClient, model: str, inputs: Tensors) -> dict[str, Array]:
    """Ask once; the outputs by name. The model must answer in one piece."""
    tensors = []
    for name, values in inputs.items():
        tensor = triton_http.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
        tensor.set_data_from_numpy(values)
        tensors.append(tensor)
    answer = client.infer(model, tensors)
    return {output["name"]: answer.as_numpy(output["name"]) for output in answer.get_response()["outputs"]}


def ask_sample(url: str, system: str, model: str) -> str:
    """What `model` says to its system's sample, in a sentence; raise unless it really answers."""
    asked = registry.load(system)
    with triton(url, _SAMPLE_TIMEOUT_S) as client:
        info = describe_model(client, model)
        inputs = asked.request_inputs(asked.sample(), info)
        if info.decoupled:
            outputs = generate.generate(url, info, inputs, _SAMPLE_TIMEOUT_S)
        else:
            outputs = infer(client, model, inputs)
    return asked.describe_answer(outputs, info)


def statistics_now(url: str, model: str) -> ModelStatistics:
    """Triton's counts of a model, over all its versions."""
    with triton(url) as client:
        return sum(by_version(client.get_inference_statistics(model)), ModelStatistics())


def booked(
    url: str, model: str, before: ModelStatistics, done: Callable[[ModelStatistics], bool]
) -> ModelStatistics:
    """The counts since `before` when they are `done`, or after a while as they are."""
    deadline = time.monotonic() + _BOOKED_WITHIN_S
    while True:
        counted = statistics_now(url, model).since(before)
        if done(counted) or time.monotonic() > deadline:
            return counted
        time.sleep(0.05)
