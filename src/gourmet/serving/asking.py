"""Asking a running Triton: is a model there, and does it really answer a picture?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import numpy as np
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from gourmet.errors import GourmetError
from gourmet.serving import locks
from gourmet.systems import registry
from gourmet.systems.instances import parameter


class TritonUnreachable(GourmetError):
    """No server answers at the address."""


class ModelUnavailable(GourmetError):
    """The server is there and the model is not, or it does not answer as it should."""


class Locked(GourmetError):
    """The call changes the server, and we have not its key."""


class _WithKeys(triton_http.InferenceServerClientPlugin):  # type: ignore[misc]
    """Sends the keys of the Triton at `url` along, where they are known."""

    def __init__(self, url: str) -> None:
        self._headers = locks.headers_for(url)

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
            raise Locked(
                f"Triton at {url} does this for those with its key only: run it as the user who started that "
                f"Triton, on the same machine, or set {locks.ADMIN_ENV} and {locks.MEMORY_ENV} to its keys"
            ) from exc
        raise ModelUnavailable(str(exc.message())) from exc
    except (OSError, gevent.Timeout) as exc:
        raise TritonUnreachable(f"no Triton answers at {url} ({exc}): start one with `gourmet up`") from exc
    finally:
        client.close()


def model_index(client: triton_http.InferenceServerClient) -> dict[str, dict[str, str]]:
    """Every model that Triton knows of, by name, with its state and, if it failed, the reason."""
    return {entry["name"]: entry for entry in client.get_model_repository_index()}


def ask_sample(client: triton_http.InferenceServerClient, system: str, model: str) -> tuple[str, float]:
    """The label and probability that `model` gives to its system's sample; raise unless it really answers."""
    entry = model_index(client).get(model, {})
    if entry.get("state") != "READY":
        raise ModelUnavailable(
            f"the model {model!r} is not ready ({entry.get('state', 'unknown to Triton')}): "
            f"{entry.get('reason') or 'no reason given'}"
        )
    contract = registry.room(system, "contract")
    wanted = client.get_model_metadata(model)["inputs"][0]
    values = contract.encode(contract.sample(), wanted["datatype"])
    tensor = triton_http.InferInput(wanted["name"], list(values.shape), wanted["datatype"])
    tensor.set_data_from_numpy(values)
    answer = client.infer(model, [tensor])
    outputs: dict[str, Any] = {
        output["name"]: answer.as_numpy(output["name"]) for output in answer.get_response()["outputs"]
    }
    temperature = float(parameter(client.get_model_config(model), "temperature") or 1.0)
    rows = contract.probabilities(outputs, temperature)
    if rows.shape != (1, len(contract.LABELS)) or not np.isclose(rows.sum(), 1.0, atol=1e-3):
        raise ModelUnavailable(
            f"the model {model!r} answered one picture with probabilities of shape {list(rows.shape)} "
            f"summing to {rows.sum():.3f}; {[1, len(contract.LABELS)]} summing to 1 is right"
        )
    best = int(rows[0].argmax())
    return contract.LABELS[best], float(rows[0, best])
