"""The only module that speaks to Triton, and where tritonclient's errors end.

Connections are kept, and each is used by one thread at a time, as is its piece of shared memory, in which
large tensors go to a Triton of the same machine. Every call has a deadline for all of it but the resolving
of a name: connecting, sending, waiting and reading.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, serialize_byte_tensor

from app.core import tracing
from app.core.errors import InferenceFailed, ModelNotReady, TritonBusy, TritonTooSlow, TritonUnavailable
from app.triton import shared_memory
from app.triton.connection import BadReply, Connection, Reply, TooLate
from gourmet.contracts import ModelInfo, Tensors
from gourmet.runtime.generate import GenerateError, pieces, request_body
from gourmet.runtime.statistics import ModelStatistics, by_version

T = TypeVar("T")
# How long a change of a model that kept its version, such as of its threshold, may go unnoticed.
DESCRIPTION_AGE_S: Final = 5.0
# After so long without a piece of an answer the consumer is asked whether it still wants one.
SILENCE_S: Final = 1.0
# What Triton says of a request that waited in its queue until its deadline.
_TIMED_OUT: Final = "timeout expired"


class Refusal(Exception):
    """Triton answered, with a status that is not 200 and a reason."""

    def __init__(self, reply: Reply) -> None:
        try:
            reason = str(json.loads(reply.body)["error"])
        except (ValueError, KeyError, TypeError):
            reason = reply.body[:200].decode(errors="replace")
        super().__init__(reason)
        self.status = reply.status


class Refused(InferenceFailed):
    """Triton says that the request is at fault: its picture, or what we believe the model takes."""


@dataclass(frozen=True)
class Answer:
    outputs: Tensors
    model_version: str
    bytes_sent: int


class Deadline:
    """A moment by which everything must be done, on a clock that cannot jump.

    `wanted` says whether somebody still waits for it.
    """

    def __init__(self, seconds: float, wanted: Callable[[], bool] = lambda: True) -> None:
        self.seconds = seconds
        self.wanted = wanted
        self._end = time.monotonic() + seconds

    def left_s(self) -> float:
        return max(0.001, self._end - time.monotonic())


class Triton:
    """A Triton server over HTTP, for any number of threads."""

    def __init__(self, url: str, connect_timeout_s: float = 2.0, *, shares_memory: bool = False) -> None:
        self.url = url
        self._connect_timeout_s = connect_timeout_s
        self._shares_memory = shares_memory and shared_memory.may_share(url)
        # The one that was used last is used next, so that there are no more than are used at a time.
        self._idle: list[Connection] = []
        self._described: dict[str, tuple[float, ModelInfo]] = {}

    def describe(self, model: str, deadline: Deadline, *, afresh: bool = False) -> ModelInfo:
        """What `model` takes and gives, remembered for a few seconds unless asked `afresh`."""
        at, info = self._described.get(model, (0.0, None))
        if info and not afresh and time.monotonic() - at < DESCRIPTION_AGE_S:
            return info
        with self._explained(model, deadline):
            metadata = self._json(deadline, _path_of(model), dict)
            config_path = _path_of(model, "config")
            info = self._json(deadline, config_path, lambda config: ModelInfo.from_triton(metadata, config))
        self._described[model] = (time.monotonic(), info)
        return info

    def infer(self, model: str, inputs: Tensors, deadline: Deadline, request_id: str = "") -> Answer:
        """Run `model` once; raise Refused where Triton says that the request is at fault."""
        with tracing.span("triton", model=model), self._explained(model, deadline):
            reply = self._infer(model, inputs, deadline, request_id)
        try:
            result = InferenceServerClient.parse_response_body(reply.body, header_length=reply.json_bytes)
            response = result.get_response()
            outputs = {output["name"]: result.as_numpy(output["name"]) for output in response["outputs"]}
        except (KeyError, TypeError, ValueError, InferenceServerException) as exc:
            raise InferenceFailed(f"the answer of {model} cannot be read: {exc!r}") from exc
        return Answer(outputs, response.get("model_version", ""), sum(map(_bytes, inputs.values())))

    def _infer(self, model: str, inputs: Tensors, deadline: Deadline, request_id: str) -> Reply:
        tensors = [
            InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
            for name, values in inputs.items()
        ]

        def send(connection: Connection) -> Reply:
            # A model with a queue policy drops what still waits when nobody waits for it any more.
            body, json_bytes = InferenceServerClient.generate_request_body(
                tensors, request_id=request_id, timeout=int(deadline.left_s() * 1_000_000)
            )
            headers = tracing.headers()
            if json_bytes is not None:
                headers["Inference-Header-Content-Length"] = str(json_bytes)
            return self._ask(connection, deadline, "POST", _path_of(model, "infer"), body, headers)

        with self._connection() as connection:
            if len(tensors) == 1 and self._put_in_memory(connection, deadline, tensors[0], *inputs.values()):
                try:
                    return send(connection)
                except Refusal as exc:
                    if shared_memory.UNKNOWN_REGION not in str(exc).lower():
                        raise
                    connection.shared = None  # a Triton that was started again knows of none
            for tensor, values in zip(tensors, inputs.values(), strict=True):
                tensor.set_data_from_numpy(values)
            return send(connection)

    def _put_in_memory(
        self, connection: Connection, deadline: Deadline, tensor: InferInput, values: npt.NDArray[Any]
    ) -> bool:
        """Put `values` where Triton sees them and point `tensor` there, if that can be done."""
        nbytes = _bytes(values)
        is_text = values.dtype == np.object_  # strings, such as a photo as it came
        if (
            not self._shares_memory
            or nbytes < shared_memory.LEAST_BYTES
            or (is_text and nbytes > shared_memory.MOST_TEXT_BYTES)
        ):
            return False
        if is_text:
            values = np.frombuffer(serialize_byte_tensor(values).item(), np.uint8)
        if connection.shared is None or connection.shared.nbytes < nbytes:

            def offer(name: str, region: dict[str, Any]) -> None:
                path, body = f"/v2/systemsharedmemory/region/{name}/register", json.dumps(region).encode()
                self._ask(connection, deadline, "POST", path, body, shared_memory.memory_key())

            try:
                # Photos are of all sizes: with room for larger ones, Triton is told of it once.
                connection.shared = shared_memory.SharedInput(
                    1 << nbytes.bit_length() if is_text else nbytes, offer
                )
            except (Refusal, OSError):  # it runs elsewhere, or as another user
                self._shares_memory = False
                return False
        connection.shared.put(values)
        tensor.set_shared_memory(connection.shared.name, nbytes)
        return True

    def stream(
        self, model: ModelInfo, inputs: Tensors, deadline: Deadline, request_id: str = ""
    ) -> Generator[Tensors | None, None, None]:
        """The outputs of each piece of an answer; None where there was none for `SILENCE_S`.

        tritonclient has this over gRPC alone. A connection serves one answer: closing it, as closing this
        does, is what has Triton cancel the request, so a consumer that stops reading frees the model at once.
        """
        body = request_body(inputs, request_id)
        with (
            contextlib.closing(Connection(self.url, self._connect_timeout_s)) as connection,
            tracing.span("triton", model=model.name),
            self._explained(model.name, deadline),
            self._reached(deadline),
        ):
            path = _path_of(model.name, "generate_stream")
            headers = {"Content-Type": "application/json"} | tracing.headers()
            rest = b""
            for came in connection.stream(path, deadline.left_s, body, headers, SILENCE_S):
                if came is None:
                    yield None
                    continue
                status, part = came
                *lines, rest = (rest + part).split(b"\n")
                if status != HTTPStatus.OK:
                    raise Refusal(Reply(status, part, None))
                try:
                    yield from pieces(lines, model)
                except GenerateError as exc:
                    raise InferenceFailed(f"{model.name} could not answer: {exc}") from exc
                except (ValueError, TypeError) as exc:
                    message = f"a piece of the answer of {model.name} cannot be read: {exc!r}"
                    raise InferenceFailed(message) from exc

    def served(self, deadline: Deadline) -> list[str]:
        """The names of all models that are ready: those that have statistics, which need no key."""
        return sorted({statistics.name for statistics in self.model_statistics(deadline)})

    def model_statistics(self, deadline: Deadline, model: str = "") -> list[ModelStatistics]:
        """What `model`, or each model that is ready, has done so far, version by version."""
        try:
            return self._json(deadline, _path_of(model, "stats"), by_version)
        except Refusal as exc:
            raise InferenceFailed(f"Triton at {self.url} does not tell what it serves: {exc}") from exc

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        """One that nobody else uses within the block."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = Connection(self.url, self._connect_timeout_s)
        try:
            yield connection
        finally:
            self._idle.append(connection)

    @contextlib.contextmanager
    def _explained(self, model: str, deadline: Deadline) -> Iterator[None]:
        """Around what is asked of `model`: a refusal becomes what a visitor can be told."""
        try:
            yield
        except Refusal as exc:
            if not self._is_ready(model, deadline):
                self._described.pop(model, None)
                loading = self._is_loading(model, deadline)
                raise ModelNotReady(model, self.served(deadline), loading=loading) from exc
            raise _error(model, exc, deadline) from exc

    def _is_ready(self, model: str, deadline: Deadline) -> bool:
        with contextlib.suppress(Refusal), self._connection() as connection:
            self._ask(connection, deadline, "GET", _path_of(model, "ready"))
            return True
        return False

    def _is_loading(self, model: str, deadline: Deadline) -> bool:
        """Whether `model` is on its way; a Triton whose list of models is locked does not tell."""

        def is_loading(index: list[dict[str, Any]]) -> bool:
            return any((each["name"], each.get("state")) == (model, "LOADING") for each in index)

        with contextlib.suppress(Refusal):
            return self._json(deadline, "/v2/repository/index", is_loading, "POST")
        return False

    def _json(self, deadline: Deadline, path: str, parse: Callable[[Any], T], method: str = "GET") -> T:
        """What `parse` makes of the JSON that Triton answers."""
        with self._connection() as connection:
            reply = self._ask(connection, deadline, method, path)
        try:
            return parse(json.loads(reply.body))
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise InferenceFailed(f"what answers at {self.url} is not Triton: {exc!r}") from exc

    def _ask(
        self,
        connection: Connection,
        deadline: Deadline,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """The reply to a request that Triton grants; raise Refusal for any other."""
        with self._reached(deadline):
            reply = connection.exchange(method, path, deadline.left_s, body, headers)
        if reply.status != HTTPStatus.OK:
            raise Refusal(reply)
        return reply

    @contextlib.contextmanager
    def _reached(self, deadline: Deadline) -> Iterator[None]:
        """Around what goes over a connection: what goes wrong with it becomes what a visitor can be told."""
        try:
            yield
        except TooLate:
            raise TritonTooSlow(f"Triton did not answer within {deadline.seconds:g} s") from None
        except BadReply as exc:
            raise InferenceFailed(f"what answers at {self.url} is not Triton: {exc}") from exc
        except OSError as exc:
            raise TritonUnavailable(f"no Triton answers at {self.url}") from exc


def _path_of(model: str, what: str = "") -> str:
    """The address of `what` a model has to say, or of all models together where it has no name."""
    return "/".join(part for part in ("/v2/models", quote(model), what) if part)


def _error(model: str, refusal: Refusal, deadline: Deadline) -> Exception:
    if refusal.status == HTTPStatus.BAD_REQUEST:
        return Refused(str(refusal))
    if refusal.status == HTTPStatus.SERVICE_UNAVAILABLE and _TIMED_OUT in str(refusal):
        return TritonTooSlow(f"{model} did not come to it within {deadline.seconds:g} s")
    if refusal.status == HTTPStatus.SERVICE_UNAVAILABLE:
        return TritonBusy(f"{model} has too much to do: {refusal}")
    return InferenceFailed(f"{model} could not answer: {refusal}")


def _bytes(values: npt.NDArray[Any]) -> int:
    """What `values` take on the way to Triton; a string goes after four bytes that say its length."""
    if values.dtype == np.object_:
        return sum(4 + len(value) for value in values.flat)
    return values.nbytes
