"""The app's client of Triton, which traces and counts its calls, and the models that Triton serves."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from flask import has_request_context

from app.web.admission import Decoding
from app.web.errors import UnknownModel, as_serving_error
from app.web.http import request_id
from app.web.tracing import span, traceparent
from gourmet.contracts import BadModel, ModelInfo, System, Tensors
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import InvalidRequest, ModelUnavailable, TritonError
from gourmet.triton_client.tensors import Inputs
from gourmet.triton_client.triton import Answer, Triton

S = TypeVar("S", bound=System)
# How long the app may miss a change, such as of the threshold, in a model that keeps its version.
DESCRIPTION_AGE_S: Final = 5.0
# The request id of readiness checks, which no request waits for.
PROBE: Final = "readyz"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}(/[1-9][0-9]{0,17})?")


def _request_id() -> str:
    return request_id() if has_request_context() else PROBE


class AppTriton(Triton):
    """The Triton at `address`, or a proxy in front of several.

    Whole answers come over gRPC from `grpc_address` if that is given. Triton gets the id of
    the request that the app answers.
    """

    def __init__(
        self,
        address: str,
        connect_timeout_s: float = 2.0,
        grpc_address: str = "",
        count: Callable[[str, str], object] = lambda model, outcome: None,
    ) -> None:
        """`count` gets the outcome of each request to a model: answered, refused, or an error's code."""
        self._count = count
        if grpc_address and "://" not in grpc_address:
            grpc_address = f"grpc://{grpc_address}"
        super().__init__(
            address, connect_timeout_s=connect_timeout_s, grpc_address=grpc_address, headers=traceparent
        )

    def infer(
        self, model: str, inputs: Inputs, deadline: Deadline | None = None, request_id: str = ""
    ) -> Answer:
        with self._counted(model), span("triton", model=model):
            return super().infer(model, inputs, deadline, request_id or _request_id())

    def stream(
        self, model: ModelInfo, inputs: Tensors, deadline: Deadline | None = None, request_id: str = ""
    ) -> Generator[Tensors | None, None, None]:
        with self._counted(model.name), span("triton", model=model.target):
            yield from super().stream(model, inputs, deadline, request_id or _request_id())

    @contextlib.contextmanager
    def _counted(self, model: str) -> Iterator[None]:
        name = model.partition("/")[0]
        try:
            yield
        except TritonError as exc:
            self._count(name, "refused" if isinstance(exc, InvalidRequest) else as_serving_error(exc).code)
            raise
        except GeneratorExit:
            self._count(name, "client_left")
            raise
        self._count(name, "answered")


@dataclass(frozen=True)
class Served(Generic[S]):
    """A model that is ready, with the system that it belongs to."""

    system: S
    info: ModelInfo


class ServedModels(Generic[S]):
    """The models that Triton serves for `systems`, which all have the same task.

    A model belongs to the system that its config names, or else to the system whose setting names the model.
    """

    def __init__(
        self,
        triton: Triton,
        systems: Mapping[str, S],
        configured: Mapping[str, str],
        max_sandboxed: int = 1,
        expected: Collection[str] = (),
    ) -> None:
        """Let other processes decode at most `max_sandboxed` pictures at a time.

        `configured` has the model that each system's setting names; `expected` names other models that Triton
        serves once they are loaded.
        """
        self.systems = systems
        self.configured = {name: configured[name] for name in systems}
        self._triton = triton
        self._decoding = Decoding(max_sandboxed)
        self._expected = expected
        self._described: dict[str, tuple[float, ModelInfo]] = {}

    @property
    def default_system(self) -> str:
        return next(iter(self.systems))

    def takes(self, system: S, info: ModelInfo) -> bool:
        """Return True if `system` can ask a model with these inputs."""
        return True

    def find(self, model: str, deadline: Deadline, system: str = "", *, afresh: bool = False) -> Served[S]:
        """Find `model`, as NAME or NAME/VERSION; if `system` is given, the model has to belong to it.

        Without a name it is the configured model of `system` or of the default system; /VERSION is a version
        of that. A system's configured model needs no entry about itself. Any other model has to name its
        system in its config, and may exclude itself from the web there. Raise UnknownModel; ModelUnavailable
        for a configured or expected model; BadModel for a config that cannot be used.
        """
        if model[:1] in ("", "/"):
            model = self.configured[system or self.default_system] + model
        # A name like `a/b/c` would change the path of the request to Triton.
        base = model.partition("/")[0] if _NAME.fullmatch(model) else model
        owners = [name for name, chosen in self.configured.items() if chosen == base]
        owner = next((name for name in owners if not system or name == system), "")
        try:
            info = self._describe(model, deadline, afresh=afresh) if owner or _NAME.fullmatch(model) else None
        except ModelUnavailable as exc:
            may_come = base == model if owner else exc.state == "LOADING" or model in self._expected
            if may_come:
                raise
            info = None
        mine = None
        if info:
            mine = self.systems.get(info.system, self.systems[owner]) if owner else self._owner(info, system)
        if not info or not mine:
            raise UnknownModel(model, [served.info.target for served in self.ready(deadline, system)])
        if not self.takes(mine, info):
            takes = ", ".join(
                f"{tensor.name} {tensor.datatype} {list(tensor.shape)}" for tensor in info.inputs
            )
            raise BadModel(
                f"{model!r} takes {takes}, which is not what models of {mine.name} take: set "
                f"{self.systems[owner].model_variable} to one that Triton serves"
            )
        _ = info.threshold  # raises BadModel for one that is not a number
        return Served(mine, info)

    def loaded(self, system: str, deadline: Deadline) -> ModelInfo:
        """Return the configured model of `system` as Triton has it now; raise ModelUnavailable."""
        return self.find("", deadline, system, afresh=True).info

    def ready(self, deadline: Deadline, system: str = "") -> Iterator[Served[S]]:
        """Yield the ready versions of models, of `system` or of all systems."""
        for name in self._triton.ready_versions(deadline):
            with contextlib.suppress(ModelUnavailable):  # unloaded after it was listed
                info = self._describe(name, deadline)
                if mine := self._owner(info, system):
                    yield Served(mine, info)

    def _describe(self, model: str, deadline: Deadline, *, afresh: bool = False) -> ModelInfo:
        """Describe the inputs and outputs of `model`, cached for a few seconds."""
        at, info = self._described.get(model, (0.0, None))
        if info is None or afresh or time.monotonic() - at >= DESCRIPTION_AGE_S:
            info = self._triton.describe(model, deadline)
            self._described[model] = (time.monotonic(), info)
        return info

    def _owner(self, info: ModelInfo, system: str) -> S | None:
        is_open = info.is_open_to_web or info.name in self.configured.values()
        owner = self.systems.get(info.system) if is_open else None
        return owner if owner and system in ("", owner.name) and self.takes(owner, info) else None
