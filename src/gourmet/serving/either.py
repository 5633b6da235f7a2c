"""A running Triton at an address that may be its HTTP or its gRPC one: clients of examples take either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, Protocol, TypeVar

import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from gourmet.contracts import Array, ModelInfo, Tensors
from gourmet.serving import api_keys, client
from gourmet.serving.client import ModelUnavailable, TritonUnreachable
from gourmet.serving.waiting import http_ok

Answer = TypeVar("Answer")

_LOADS_WITHIN_S: Final = 180.0


class Asked(Protocol):
    """A Triton, asked in one of its two ways."""

    protocol: Literal["http", "grpc"]

    def load(self, model: str) -> bool:
        """Have it serve what is on disk; raise ModelUnavailable.

        False where it polls its repository, as in NVIDIA's example, and will load it by itself.
        """

    def unload(self, model: str) -> None: ...

    def describe(self, model: str) -> ModelInfo:
        """What a model takes and gives; raise ModelUnavailable unless it is ready."""

    def infer(self, model: str, inputs: Tensors) -> dict[str, Array]: ...


@contextmanager
def triton_at(url: str) -> Iterator[Asked]:
    """The Triton at `url` (host:port); raise TritonUnreachable where none answers either way."""
    url = url.removeprefix("http://").removeprefix("grpc://").rstrip("/")
    if http_ok(f"http://{url}/v2/health/live"):
        with client.triton(url, _LOADS_WITHIN_S) as http:
            yield _Http(http)
        return
    asked = _Grpc(url)
    try:
        asked.check_live()
        yield asked
    finally:
        asked.close()


class _Http:
    protocol: Literal["http", "grpc"] = "http"

    def __init__(self, http: Any) -> None:
        self._http = http

    def load(self, model: str) -> bool:
        return _loaded(lambda: self._http.load_model(model))

    def unload(self, model: str) -> None:
        self._http.unload_model(model)

    def describe(self, model: str) -> ModelInfo:
        return client.describe_model(self._http, model)

    def infer(self, model: str, inputs: Tensors) -> dict[str, Array]:
        return _said(lambda: client.infer(self._http, model, inputs))


class _Grpc:
    protocol: Literal["http", "grpc"] = "grpc"

    def __init__(self, url: str) -> None:
        self._url = url
        self._grpc = triton_grpc.InferenceServerClient(url)
        self._keys = api_keys.headers_for(url, grpc=True)

    def check_live(self) -> None:
        try:
            live = self._grpc.is_server_live(client_timeout=2.0)
        except InferenceServerException as exc:
            raise TritonUnreachable(
                f"no Triton answers at {self._url}, neither over HTTP nor over gRPC: start one with "
                "`gourmet up`, or name another address"
            ) from exc
        if not live:
            raise TritonUnreachable(f"the Triton at {self._url} is not live: look into its log")

    def close(self) -> None:
        self._grpc.close()

    def load(self, model: str) -> bool:
        return _loaded(lambda: _said(lambda: self._grpc.load_model(model, headers=self._keys)))

    def unload(self, model: str) -> None:
        _said(lambda: self._grpc.unload_model(model, headers=self._keys))

    def describe(self, model: str) -> ModelInfo:
        metadata = _said(lambda: self._grpc.get_model_metadata(model, as_json=True))
        config = _said(lambda: self._grpc.get_model_config(model, as_json=True))
        return ModelInfo.from_triton(metadata, config["config"])

    def infer(self, model: str, inputs: Tensors) -> dict[str, Array]:
        tensors = []
        for name, values in inputs.items():
            tensor = triton_grpc.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
            tensor.set_data_from_numpy(values)
            tensors.append(tensor)
        answer = _said(lambda: self._grpc.infer(model, tensors))
        return {each.name: answer.as_numpy(each.name) for each in answer.get_response().outputs}


def _said(ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except InferenceServerException as exc:
        raise ModelUnavailable(str(exc.message())) from exc


def _loaded(load: Callable[[], object]) -> bool:
    try:
        load()
    except (InferenceServerException, ModelUnavailable) as exc:
        if "polling is enabled" not in str(exc):
            raise
        return False
    return True
