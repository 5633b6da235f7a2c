"""The only module that speaks to Triton, and where tritonclient's errors end.

Each thread has one client of its own, as tritonclient demands, whose connection is kept alive.
Every call has a deadline for all of it: resolving, connecting, sending, waiting and reading.
Large tensors go to a Triton of the same machine in shared memory, a piece of it for each thread, and are
asked about over a connection of their own (app.direct).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import gevent
import numpy as np
import numpy.typing as npt
import tritonclient.http as triton_http
from geventhttpclient.response import HTTPConnectionClosed
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from app import tracing
from app.direct import Direct, TooLate
from app.errors import InferenceFailed, ModelNotReady, TritonBusy, TritonTooSlow, TritonUnavailable
from app.shared_tensors import LEAST_BYTES, SharedInput, is_about_region, may_share

Tensors = Mapping[str, npt.NDArray[Any]]
T = TypeVar("T")

# How long a change of a model that kept its version, such as of its threshold, may go unnoticed.
DESCRIPTION_AGE_S: Final = 5.0
# What Triton says of a request that waited in its queue until its deadline.
_TIMED_OUT: Final = "timeout expired"
_LOST: Final = (HTTPConnectionClosed, ConnectionResetError, BrokenPipeError)


class Refused(InferenceFailed):
    """Triton says that the request is at fault: its picture, or what we believe the model takes."""


@dataclass(frozen=True)
class TensorSpec:
    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelInfo:
    """What a served model takes and gives, as Triton tells."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: Mapping[str, str]
    version: str = ""  # the newest of those that are ready, which is the one that answers
    max_batch_size: int = 0  # 0 where its shapes are whole, without a first dimension of rows


@dataclass(frozen=True)
class ModelStatistics:
    """What a version of a model has done since Triton loaded it; times are sums over its requests."""

    name: str
    version: str
    requests: int
    failures: int
    rows: int
    executions: int
    queue_ns: int
    input_ns: int
    infer_ns: int
    output_ns: int
    executions_by_batch: Mapping[int, int]


@dataclass(frozen=True)
class Answer:
    outputs: Tensors
    model_version: str
    bytes_sent: int


class Deadline:
    """A moment by which everything must be done, on a clock that cannot jump."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left_s(self) -> float:
        return max(0.001, self._end - time.monotonic())

    def left_us(self) -> int:
        """In the unit in which Triton takes it."""
        return int(self.left_s() * 1_000_000)


class _Connection:
    """One thread's client, and whether it has been answered before."""

    def __init__(self, url: str, connect_timeout_s: float) -> None:
        # The deadline ends calls earlier than any network timeout: one that fires is of connecting.
        self.client = triton_http.InferenceServerClient(
            url, connection_timeout=connect_timeout_s, network_timeout=3600.0
        )
        # geventhttpclient would send a lost request again up to twice, also one that ended Triton.
        self.client._client_stub._connection_pool.size = -1
        self.direct = Direct(url)
        self.kept_alive = False

    def close(self) -> None:
        self.client.close()
        self.direct.close()


class Triton:
    """A Triton server over HTTP, for any number of threads."""

    def __init__(self, url: str, connect_timeout_s: float = 2.0, *, shares_memory: bool = False) -> None:
        self.url = url
        self._connect_timeout_s = connect_timeout_s
        self._shares_memory = shares_memory and may_share(url)
        self._mine = threading.local()
        self._all: weakref.WeakSet[_Connection] = weakref.WeakSet()
        self._described: dict[str, tuple[float, ModelInfo]] = {}

    def describe(self, model: str, deadline: Deadline, *, afresh: bool = False) -> ModelInfo:
        """What `model` takes and gives, remembered for a few seconds unless asked `afresh`."""
        at, info = self._described.get(model, (0.0, None))
        if info and not afresh and time.monotonic() - at < DESCRIPTION_AGE_S:
            return info
        metadata = self._ask_model(model, deadline, lambda client: client.get_model_metadata(model))
        config = self._ask_model(model, deadline, lambda client: client.get_model_config(model))
        try:
            info = _info(model, metadata, config)
        except (AttributeError, KeyError, TypeError) as exc:
            raise InferenceFailed(f"what answers at {self.url} is no Triton: it lacks {exc}") from exc
        self._described[model] = (time.monotonic(), info)
        return info

    def infer(self, model: str, inputs: Tensors, deadline: Deadline, request_id: str = "") -> Answer:
        """Run `model` once; raise Refused where Triton says that the request is at fault."""
        with tracing.span("triton", model=model):
            result = self._ask_model(
                model, deadline, lambda client: self._infer(client, model, inputs, deadline, request_id)
            )
        response = result.get_response()
        try:
            outputs = {output["name"]: result.as_numpy(output["name"]) for output in response["outputs"]}
        except (KeyError, TypeError, ValueError) as exc:
            raise InferenceFailed(f"the answer of {model} cannot be read: {exc!r}") from exc
        return Answer(outputs, response.get("model_version", ""), sum(map(_bytes, inputs.values())))

    def _infer(self, client: Any, model: str, inputs: Tensors, deadline: Deadline, request_id: str) -> Any:
        tensors = [
            triton_http.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
            for name, values in inputs.items()
        ]
        # A model with a queue policy drops what still waits when nobody waits for it any more.
        said = {"request_id": request_id, "timeout": deadline.left_us()}
        headers = tracing.headers()
        if len(tensors) == 1 and self._shared(client, tensors[0], *inputs.values()):
            try:
                direct = self._connection().direct
                return direct.infer(model, tensors, deadline.left_s, headers, **said)
            except InferenceServerException as exc:
                if not is_about_region(str(exc.message())):
                    raise
                self._mine.shared = None  # a Triton that was started again knows of none
        for tensor, values in zip(tensors, inputs.values(), strict=True):
            tensor.set_data_from_numpy(values)
        return client.infer(model, tensors, headers=headers or None, **said)

    def _shared(self, client: Any, tensor: Any, values: npt.NDArray[Any]) -> bool:
        """Put `values` where Triton sees them and point `tensor` there, if that can be done."""
        if not self._shares_memory or values.dtype == np.object_ or values.nbytes < LEAST_BYTES:
            return False
        shared: SharedInput | None = getattr(self._mine, "shared", None)
        if shared is None or shared.nbytes < values.nbytes:
            try:
                shared = SharedInput(values.nbytes)
                shared.register(client)
            except (InferenceServerException, OSError):  # it runs elsewhere, or as another user
                self._shares_memory = False
                return False
            self._mine.shared = shared
        shared.put(values)
        tensor.set_shared_memory(shared.name, values.nbytes)
        return True

    def served(self, deadline: Deadline) -> list[str]:
        """The names of all models that are ready: those that have statistics, which need no key."""
        return sorted({statistics.name for statistics in self.model_statistics(deadline)})

    def model_statistics(self, deadline: Deadline, model: str = "") -> list[ModelStatistics]:
        """What `model`, or each model that is ready, has done so far, version by version."""
        try:
            found = self._call(deadline, lambda client: client.get_inference_statistics(model))
            return [_statistics(entry) for entry in found["model_stats"]]
        except (AttributeError, KeyError, TypeError, ValueError, InferenceServerException) as exc:
            raise InferenceFailed(f"Triton at {self.url} does not tell what it serves: {exc}") from exc

    def _is_loading(self, model: str, deadline: Deadline) -> bool:
        """Whether `model` is on its way; a Triton whose list of models is locked does not tell."""
        try:
            index = self._call(deadline, lambda client: client.get_model_repository_index())
            return any(entry["name"] == model and entry.get("state") == "LOADING" for entry in index)
        except InferenceServerException:
            return False
        except (AttributeError, KeyError, TypeError) as exc:
            raise InferenceFailed(f"what answers at {self.url} is no Triton: {exc!r}") from exc

    def close(self) -> None:
        """Close the clients of all threads; for a process that is about to end."""
        for connection in list(self._all):
            connection.close()

    def _ask_model(self, model: str, deadline: Deadline, ask: Callable[[Any], T]) -> T:
        try:
            return self._call(deadline, ask)
        except InferenceServerException as exc:
            reason, status = str(exc.message()), str(exc.status())
            if not self._call(deadline, lambda client: client.is_model_ready(model)):
                self._described.pop(model, None)
                loading = self._is_loading(model, deadline)
                raise ModelNotReady(model, self.served(deadline), loading=loading) from exc
            if status == "400":
                raise Refused(reason) from exc
            if status == "503" and _TIMED_OUT in reason:
                raise TritonTooSlow(f"{model} did not come to it within {deadline.seconds:g} s") from exc
            if status == "503":
                raise TritonBusy(f"{model} has too much to do: {reason}") from exc
            raise InferenceFailed(f"{model} could not answer: {reason}") from exc

    def _call(self, deadline: Deadline, ask: Callable[[Any], T]) -> T:
        connection = self._connection()
        was_kept_alive = connection.kept_alive
        try:
            answer = self._call_once(connection, deadline, ask)
        except _LOST as exc:
            if not was_kept_alive:
                raise TritonUnavailable(f"Triton at {self.url} broke off: {exc}") from exc
        else:
            connection.kept_alive = True
            return answer
        # A kept connection that is found closed is what a restart of Triton leaves behind. Inference
        # changes nothing there, so it may be asked again: once, on a new connection.
        return self._call(deadline, ask)

    def _call_once(self, connection: _Connection, deadline: Deadline, ask: Callable[[Any], T]) -> T:
        timeout = gevent.Timeout(deadline.left_s())
        try:
            with timeout:
                return ask(connection.client)
        except InferenceServerException:
            connection.kept_alive = True  # answered, with an error
            raise
        except BaseException as exc:
            # What is left of the call may still lie in the connection.
            self._forget(connection)
            if exc is timeout or isinstance(exc, TooLate):
                raise TritonTooSlow(f"Triton did not answer within {deadline.seconds:g} s") from None
            if isinstance(exc, _LOST):
                raise
            if isinstance(exc, OSError):
                raise TritonUnavailable(f"no Triton answers at {self.url}: {exc}") from exc
            if isinstance(exc, Exception):
                raise InferenceFailed(f"what answers at {self.url} is no Triton: {exc!r}") from exc
            raise

    def _connection(self) -> _Connection:
        connection: _Connection | None = getattr(self._mine, "connection", None)
        if connection is None:
            connection = self._mine.connection = _Connection(self.url, self._connect_timeout_s)
            self._all.add(connection)
        return connection

    def _forget(self, connection: _Connection) -> None:
        self._mine.connection = None
        connection.close()


def _info(model: str, metadata: dict[str, Any], config: dict[str, Any]) -> ModelInfo:
    def specs(tensors: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(t["name"], t["datatype"], tuple(t["shape"])) for t in tensors)

    parameters = config.get("parameters", {})
    return ModelInfo(
        name=model,
        inputs=specs(metadata["inputs"]),
        outputs=specs(metadata["outputs"]),
        parameters={key: value.get("string_value", "") for key, value in parameters.items()},
        version=max(map(str, metadata.get("versions") or [""]), key=lambda text: (len(text), text)),
        max_batch_size=int(config.get("max_batch_size", 0)),
    )


def _statistics(entry: dict[str, Any]) -> ModelStatistics:
    of_requests = entry["inference_stats"]

    def total_ns(phase: str) -> int:
        return int(of_requests[phase].get("ns", 0))

    batches = entry.get("batch_stats", [])
    return ModelStatistics(
        name=entry["name"],
        version=entry["version"],
        requests=int(of_requests["success"].get("count", 0)),
        failures=int(of_requests["fail"].get("count", 0)),
        rows=int(entry.get("inference_count", 0)),
        executions=int(entry.get("execution_count", 0)),
        queue_ns=total_ns("queue"),
        input_ns=total_ns("compute_input"),
        infer_ns=total_ns("compute_infer"),
        output_ns=total_ns("compute_output"),
        executions_by_batch={
            int(batch["batch_size"]): int(batch["compute_infer"].get("count", 0)) for batch in batches
        },
    )


def _bytes(values: npt.NDArray[Any]) -> int:
    """What `values` take on the way to Triton; a string goes after four bytes that say its length."""
    if values.dtype == np.object_:
        return sum(4 + len(value) for value in values.flat)
    return values.nbytes
