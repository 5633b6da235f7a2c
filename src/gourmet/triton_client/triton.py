"""The client of a Triton server, or of a balancer in front of several."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar

from gourmet.contracts import Array, ModelInfo, System, Tensors
from gourmet.errors import GourmetError
from gourmet.triton_client.address import Address
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import (
    UNKNOWN_MODEL,
    InvalidRequest,
    ModelFailed,
    ModelUnavailable,
    NotTriton,
    TritonError,
    TritonRefused,
    of_model,
)
from gourmet.triton_client.http import Http
from gourmet.triton_client.statistics import ModelStatistics, by_version
from gourmet.triton_client.tensors import Fields, Headers, Inputs, joined, raw_bytes

T = TypeVar("T")
# Triton counts a request shortly after it answered.
_COUNTED_WITHIN_S: Final = 3.0
_POLLS: Final = "polling is enabled"


@dataclass(frozen=True)
class Answer:
    outputs: dict[str, Array]
    model_version: str
    bytes_sent: int


class Triton:
    """The server at `address`, over HTTP unless its scheme says otherwise; for any number of threads.

    Every call has one deadline, by default `timeout_s`. `keys` are sent only with operations that may be
    locked; `headers` makes the headers of a request to a model. If `grpc_address` is set, whole answers are
    asked for there: Triton detects a disconnected client only over gRPC. If `load_address` is set, models are
    loaded and unloaded there: over HTTP, Triton does that in the thread that answers other kept connections,
    and they wait until the model is loaded (triton-inference-server/server issue 8958). Each request to a
    model runs within `around(model)`, whose value is the id of a request that has none.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float = 30.0,
        connect_timeout_s: float = 2.0,
        keys: Headers | None = None,
        headers: Callable[[], Headers] = dict,
        grpc_address: str = "",
        load_address: str = "",
        around: Callable[[str], AbstractContextManager[str]] = lambda _: nullcontext(""),
    ) -> None:
        self._wire = self._infer_wire = _wire_to(address, connect_timeout_s, headers)
        self._new_load_wire = load_address and partial(_wire_to, load_address, connect_timeout_s, headers)
        if grpc_address:
            self._infer_wire = _wire_to(grpc_address, connect_timeout_s, headers)
        self.address = self._wire.address
        self._timeout_s = timeout_s
        self._keys = keys or {}
        self._around = around

    def __enter__(self) -> Triton:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._wire.close()
        self._infer_wire.close()

    def check_live(self) -> None:
        """Raise TritonError unless the server answers."""
        self._call("is_server_live")

    def is_live(self) -> bool:
        with contextlib.suppress(TritonError):
            self.check_live()
            return True
        return False

    def is_ready(self, model: str, deadline: Deadline | None = None) -> bool:
        with contextlib.suppress(TritonRefused):
            self._call("is_model_ready", model, deadline)
            return True
        return False

    def version(self) -> str:
        """Return the name and version of the server."""
        about = self._call("get_server_metadata")
        return f"{about['name']} {about['version']}"

    def describe(self, model: str, deadline: Deadline | None = None) -> ModelInfo:
        """Describe the inputs of `model`, or of NAME/VERSION; raise ModelUnavailable unless it is ready."""
        deadline = deadline or Deadline(self._timeout_s)
        metadata = self._ask_model("get_model_metadata", model, deadline)
        config = self._ask_model("get_model_config", model, deadline)
        info = self._parsed(lambda: ModelInfo.from_triton(metadata, config))
        version = model.partition("/")[2]
        return info.at(version) if version else info

    def config(self, model: str, deadline: Deadline | None = None) -> dict[str, Any]:
        return dict(self._ask_model("get_model_config", model, deadline or Deadline(self._timeout_s)))

    def statistics(self, model: str = "", deadline: Deadline | None = None) -> list[ModelStatistics]:
        """Return the counts of `model`, or of each ready model, version by version."""
        answer = self._call("get_inference_statistics", model, deadline)
        return self._parsed(lambda: by_version(answer))

    def total(self, model: str, deadline: Deadline | None = None) -> ModelStatistics:
        """Return the counts of a model, summed over its versions."""
        return sum(self.statistics(model, deadline), ModelStatistics())

    def counted(
        self,
        model: str,
        before: ModelStatistics,
        done: Callable[[ModelStatistics], bool],
        deadline: Deadline | None = None,
    ) -> ModelStatistics:
        """Return what Triton counted for a model since `before`, once that is `done`, or after a while."""
        ends = Deadline(_COUNTED_WITHIN_S)
        while not done(counted := self.total(model, deadline).since(before)) and not ends.passed:
            time.sleep(0.005)
        return counted

    def ready_models(self, deadline: Deadline | None = None) -> list[str]:
        """Return the names of the ready models: those with statistics, which need no key."""
        return [target for target in self.ready_versions(deadline) if "/" not in target]

    def ready_versions(self, deadline: Deadline | None = None) -> list[str]:
        """Return the ready models, with NAME/VERSION for each older version that serves too, newest first."""
        versions: dict[str, list[str]] = {}
        for counts in self.statistics("", deadline):
            versions.setdefault(counts.name, []).append(counts.version)
        targets = []
        for name, numbers in sorted(versions.items()):
            _, *older = sorted(numbers, key=lambda text: (len(text), text), reverse=True)
            targets += [name, *(f"{name}/{number}" for number in older)]
        return targets

    def index(self, deadline: Deadline | None = None) -> dict[str, dict[str, str]]:
        """Return every model that Triton knows, by name, with its state and, if it failed, the reason.

        Triton has a row for each version that it ever loaded; a ready one decides.
        """
        models: dict[str, dict[str, str]] = {}
        for entry in self.versions(deadline):
            if models.get(entry["name"], {}).get("state") != "READY":
                models[entry["name"]] = entry
        return models

    def versions(self, deadline: Deadline | None = None) -> list[dict[str, str]]:
        """Return Triton's row for each version that it ever loaded."""
        entries = self._ask_locked("get_model_repository_index", "", None, deadline) or []
        return self._parsed(lambda: [{"name": entry["name"], **entry} for entry in entries])

    def infer(
        self, model: str, inputs: Inputs, deadline: Deadline | None = None, request_id: str = ""
    ) -> Answer:
        """Ask `model` for an answer in one piece; raise NobodyWaits if `deadline` is cancelled."""
        deadline = deadline or Deadline(self._timeout_s)
        with self._around(model) as own_id:
            try:
                version, outputs = self._infer_wire.infer(model, inputs, deadline, request_id or own_id)
            except TritonRefused as exc:
                raise self._specific_error(model, exc, deadline) from exc
        return Answer(outputs, version, sum(map(raw_bytes, inputs.values())))

    def stream(
        self, model: ModelInfo, inputs: Tensors, deadline: Deadline | None = None, request_id: str = ""
    ) -> Generator[Tensors | None, None, None]:
        """Yield the outputs of each piece of an answer, and None after each SILENCE_S without one.

        Closing the generator makes Triton cancel the request, so that the model is free at once. Raise
        ModelFailed if the answer ends without a piece.
        """
        deadline = deadline or Deadline(self._timeout_s)
        with self._around(model.target) as own_id:
            pieces, is_answered = self._wire.stream(model, inputs, deadline, request_id or own_id), False
            try:
                with contextlib.closing(pieces):
                    for piece in pieces:
                        is_answered = is_answered or piece is not None
                        yield piece
            except TritonRefused as exc:
                raise self._specific_error(model.target, exc, deadline) from exc
            if not is_answered:
                reason = f"{model.target} ended its answer without a piece"
                raise ModelFailed(reason, HTTPStatus.OK, reason)

    def generate(
        self, model: ModelInfo, inputs: Tensors, deadline: Deadline | None = None
    ) -> dict[str, Array]:
        """Return the whole answer of a model, joined if it comes in pieces."""
        if not model.decoupled:
            return self.infer(model.target, inputs, deadline).outputs
        return joined([piece for piece in self.stream(model, inputs, deadline) if piece])

    def load(
        self, model: str, config: Mapping[str, Any] | None = None, files: Mapping[str, bytes] | None = None
    ) -> bool:
        """Load the model from disk, or from `files`, with `config` in place of its own if one is passed.

        Return False if Triton polls its repository, and so loads the model by itself.
        """
        contents = {f"file:{name}": data for name, data in (files or {}).items()}
        fields = {"config": json.dumps(config), "files": contents} if config else {}
        return self._change("load_model", model, fields) is not False

    def unload(self, model: str) -> None:
        self._change("unload_model", model, {})

    def _change(self, operation: str, model: str, fields: Fields) -> Any:
        if not self._new_load_wire:
            return self._ask_locked(operation, model, fields)
        with contextlib.closing(self._new_load_wire()) as wire:
            return self._ask_locked(operation, model, fields, wire=wire)

    def _call(self, operation: str, target: str = "", deadline: Deadline | None = None) -> Any:
        """Return the answer in the form of HTTP's JSON; operations have tritonclient's names."""
        return self._wire.call(operation, target, deadline or Deadline(self._timeout_s), {}, {})

    def _ask_locked(
        self,
        operation: str,
        target: str,
        fields: Fields | None = None,
        deadline: Deadline | None = None,
        wire: Any = None,
    ) -> Any:
        """Ask with the keys, as a locked operation needs; return False if Triton polls its repository."""
        deadline = deadline or Deadline(self._timeout_s)
        try:
            return (wire or self._wire).call(operation, target, deadline, self._keys, fields or {})
        except TritonRefused as exc:
            if _POLLS not in exc.reason:
                raise
            return False

    def _ask_model(self, operation: str, model: str, deadline: Deadline) -> Any:
        try:
            return self._call(operation, model, deadline)
        except TritonRefused as exc:
            raise self._specific_error(model, exc, deadline) from exc

    def _specific_error(self, model: str, refused: TritonRefused, deadline: Deadline) -> TritonError:
        if type(refused) is not TritonRefused:  # explained already
            return refused
        # Behind a balancer another server may answer whether the model is ready. A model that asks others may
        # report that one of these is unknown.
        name, reason = model.partition("/")[0], refused.reason.lower()
        if f"{UNKNOWN_MODEL}: '{name.lower()}'" not in reason and self.is_ready(model, deadline):
            return of_model(model, refused, deadline.seconds)
        entry: Mapping[str, str] = {}
        with contextlib.suppress(TritonRefused):  # the list of models may be locked
            entry = self.index(deadline).get(name, {})
        try:
            ready = self.ready_models(deadline)
        except TritonRefused as exc:
            return ModelFailed(exc.reason, exc.status, f"Triton does not list its models: {exc.reason}")
        return ModelUnavailable(model, ready, entry.get("state", ""), entry.get("reason", ""), refused.status)

    def _parsed(self, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as exc:
            raise NotTriton.at(self.address, repr(exc)) from exc


def _wire_to(address: str, connect_timeout_s: float, headers: Callable[[], Headers]) -> Any:
    at = Address.of(address)
    if not at.is_grpc:
        return Http(at, connect_timeout_s, headers)
    from gourmet.triton_client.grpc import Grpc

    return Grpc(at, connect_timeout_s, headers)


class BadSample(GourmetError):
    """A system's sample cannot be read or used, so it says nothing about the model."""


def ask_sample(triton: Triton, system: System, model: str) -> str:
    """Ask a model for its system's sample; describe the answer, or raise."""
    info = triton.describe(model)
    try:
        outputs = triton.generate(info, system.request_inputs(system.sample(), info))
    except GourmetError as exc:
        if isinstance(exc, InvalidRequest):  # only the sample can be at fault
            raise _unusable(system, exc) from exc
        raise
    except Exception as exc:  # the system's own code may raise anything
        raise _unusable(system, exc) from exc
    return system.describe_answer(outputs, info)


def _unusable(system: System, exc: Exception) -> BadSample:
    return BadSample(f"the sample of {system.name} cannot be used ({exc}): correct the system's folder")
