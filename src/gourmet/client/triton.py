"""A Triton server, or several of which the first one that can be reached is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from gourmet.client.deadline import Deadline
from gourmet.client.errors import (
    ModelFailed,
    ModelUnavailable,
    NotTriton,
    TritonError,
    TritonRefused,
    TritonUnreachable,
    of_model,
)
from gourmet.client.http import HttpTransport
from gourmet.client.shared_memory import SharedMemory
from gourmet.client.statistics import ModelStatistics, by_version
from gourmet.client.tensors import Inputs, joined, raw_bytes
from gourmet.client.transport import Call, Operation, Reply, Transport
from gourmet.contracts import Array, ModelInfo, Tensors

T = TypeVar("T")
CONNECT_TIMEOUT_S: Final = 2.0
_POLLS: Final = "polling is enabled"


@dataclass(frozen=True)
class Answer:
    outputs: dict[str, Array]
    model_version: str
    bytes_sent: int


class Triton:
    """For any number of threads; every call has a deadline for all of it but the resolving of a name.

    A call without a deadline has `timeout_s`. Of several addresses ("a:8000,b:8000") each question goes to
    the first that can be reached, so that configs, statistics and versions are that server's; loading and
    unloading go to all. What is spread over them, and by what rule, is for a Transport of its own to say.
    """

    def __init__(
        self, transports: Iterable[Transport], timeout_s: float = 30.0, keys: Mapping[str, str] | None = None
    ) -> None:
        self._transports = tuple(transports)
        self._timeout_s = timeout_s
        self._keys = keys or {}

    @classmethod
    def at(
        cls,
        addresses: str,
        timeout_s: float = 30.0,
        *,
        keys: Mapping[str, str] | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        shares_memory: bool = False,
    ) -> Triton:
        """The servers at `addresses`: host:port with commas between them, after http:// or grpc://.

        Over HTTP where nothing is said. `keys` are headers for what is locked.
        """
        found: list[Transport] = [transport(each, connect_timeout_s) for each in addresses.split(",")]
        if shares_memory:
            found = [SharedMemory(each, keys or {}) for each in found]
        return cls(found, timeout_s, keys)

    def __enter__(self) -> Triton:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for each in self._transports:
            each.close()

    @property
    def protocol(self) -> Literal["http", "grpc"]:
        return self._transports[0].protocol

    @property
    def address(self) -> str:
        return ",".join(each.address for each in self._transports)

    def is_live(self, deadline: Deadline | None = None) -> bool:
        with contextlib.suppress(TritonError):
            self._ask(Call("live"), deadline)
            return True
        return False

    def is_ready(self, model: str, deadline: Deadline | None = None) -> bool:
        with contextlib.suppress(TritonRefused):
            self._ask(Call("ready", model), deadline)
            return True
        return False

    def version(self) -> str:
        """Name and version of the server."""
        about = self._ask(Call("server")).fields
        return f"{about['name']} {about['version']}"

    def describe(self, model: str, deadline: Deadline | None = None) -> ModelInfo:
        """What `model` takes and gives; raise ModelUnavailable unless it is ready."""
        deadline = deadline or Deadline(self._timeout_s)
        metadata = self._ask_model(Call("metadata", model), deadline).fields
        config = self._ask_model(Call("config", model), deadline).fields
        return self._parsed(lambda: ModelInfo.from_triton(metadata, config))

    def config(self, model: str) -> dict[str, Any]:
        return dict(self._ask_model(Call("config", model), Deadline(self._timeout_s)).fields)

    def statistics(self, model: str = "", deadline: Deadline | None = None) -> list[ModelStatistics]:
        """What `model`, or each model that is ready, has done so far, version by version."""
        reply = self._ask(Call("statistics", model), deadline)
        return self._parsed(lambda: by_version(reply.fields))

    def total(self, model: str) -> ModelStatistics:
        """The same of a model, over all its versions."""
        return sum(self.statistics(model), ModelStatistics())

    def ready_models(self, deadline: Deadline | None = None) -> list[str]:
        """Their names: those that have statistics, which need no key."""
        return sorted({each.name for each in self.statistics("", deadline)})

    def index(self, deadline: Deadline | None = None) -> dict[str, dict[str, str]]:
        """Every model that Triton knows of, by name, with its state and, if it failed, the reason.

        Triton has a row for each version that it ever loaded; the one that is ready speaks for the model.
        """
        entries = self._ask(Call("index", keys=self._keys), deadline).fields or []

        def by_name() -> dict[str, dict[str, str]]:
            found: dict[str, dict[str, str]] = {}
            for entry in entries:
                if found.get(entry["name"], {}).get("state") != "READY":
                    found[entry["name"]] = entry
            return found

        return self._parsed(by_name)

    def infer(
        self, model: str, inputs: Inputs, deadline: Deadline | None = None, request_id: str = ""
    ) -> Answer:
        """Ask `model` once, which must answer in one piece."""
        call = Call("infer", model, inputs=inputs, request_id=request_id)
        reply = self._ask_model(call, deadline or Deadline(self._timeout_s))
        version = str(reply.fields.get("model_version", ""))
        return Answer(dict(reply.outputs), version, sum(map(raw_bytes, inputs.values())))

    def stream(
        self, model: ModelInfo, inputs: Tensors, deadline: Deadline | None = None, request_id: str = ""
    ) -> Generator[Tensors | None, None, None]:
        """The outputs of each piece of an answer; None where there was none for SILENCE_S.

        Closing it has Triton cancel the request, so a consumer that stops reading frees the model at once.
        """
        datatypes = {spec.name: spec.datatype for spec in model.outputs}
        call = Call("stream", model.name, inputs=inputs, request_id=request_id, datatypes=datatypes)
        deadline = deadline or Deadline(self._timeout_s)
        try:
            for reply in self._send(call, deadline):
                yield reply.outputs if reply else None
        except TritonRefused as exc:
            raise self._explained(call.target, exc, deadline) from exc

    def generate(
        self, model: ModelInfo, inputs: Tensors, deadline: Deadline | None = None
    ) -> dict[str, Array]:
        """The whole answer of a model, in one piece or put together."""
        if not model.decoupled:
            return self.infer(model.name, inputs, deadline).outputs
        pieces = [piece for piece in self.stream(model, inputs, deadline) if piece]
        if not pieces:
            raise NotTriton(f"{model.name!r} ended its answer without any piece of it")
        return joined(pieces)

    def load(self, model: str, config: str = "") -> bool:
        """Have it serve what is on disk, or that with the JSON of a `config`.

        False where it polls its repository, as in NVIDIA's example, and will load the model by itself.
        """
        fields = {"parameters": {"config": config}} if config else {}
        return self._control_all("load", model, fields)

    def unload(self, model: str) -> None:
        self._control_all("unload", model, {})

    def register(self, region: str, fields: Mapping[str, Any]) -> None:
        """Have it see memory of this machine, as transport.py's SharedTensor names it."""
        self._ask(Call("register", region, fields, keys=self._keys))

    def unregister(self, region: str) -> None:
        self._ask(Call("unregister", region, keys=self._keys))

    def _control_all(self, operation: Operation, model: str, fields: Mapping[str, Any]) -> bool:
        call, polls = Call(operation, model, fields, keys=self._keys), False
        for each in self._transports:
            try:
                list(each.send(call, Deadline(self._timeout_s)))
            except TritonRefused as exc:
                if _POLLS not in exc.reason:
                    raise
                polls = True
        return not polls

    def _ask(self, call: Call, deadline: Deadline | None = None) -> Reply:
        (reply,) = self._send(call, deadline or Deadline(self._timeout_s))
        assert reply is not None
        return reply

    def _ask_model(self, call: Call, deadline: Deadline) -> Reply:
        try:
            return self._ask(call, deadline)
        except TritonRefused as exc:
            raise self._explained(call.target, exc, deadline) from exc

    def _send(self, call: Call, deadline: Deadline) -> Iterator[Reply | None]:
        for each in self._transports:
            has_begun = False
            try:
                with contextlib.closing(each.send(call, deadline)) as replies:  # type: ignore[type-var]
                    for reply in replies:
                        has_begun = True
                        yield reply
                return
            except TritonUnreachable:
                if has_begun or each is self._transports[-1]:
                    raise

    def _explained(self, model: str, refused: TritonRefused, deadline: Deadline) -> TritonError:
        if type(refused) is not TritonRefused:  # said already
            return refused
        if self.is_ready(model, deadline):
            return of_model(model, refused, deadline.seconds)
        entry: Mapping[str, str] = {}
        with contextlib.suppress(TritonRefused):  # a Triton whose list of models is locked does not tell
            entry = self.index(deadline).get(model, {})
        try:
            ready = self.ready_models(deadline)
        except TritonRefused as exc:
            return ModelFailed(exc.reason, exc.status, f"Triton does not tell what it serves: {exc.reason}")
        return ModelUnavailable(model, ready, entry.get("state", ""), entry.get("reason", ""), refused.status)

    def _parsed(self, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise NotTriton.at(self.address, repr(exc)) from exc


def transport(address: str, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> Transport:
    """The way to the server at `address`."""
    protocol, _, place = address.strip().rpartition("://")
    if protocol == "grpc":
        from gourmet.client.grpc import GrpcTransport

        return GrpcTransport(place.rstrip("/"), connect_timeout_s)
    return HttpTransport(place.rstrip("/"), connect_timeout_s)
