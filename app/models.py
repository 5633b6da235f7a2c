"""The models that Triton serves for the app's systems, and classification of pictures by them."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from flask import has_request_context

from app.web import tracing
from app.web.errors import UnknownModel, as_serving_error, refused_picture
from app.web.http import request_id
from gourmet.contracts import BadAnswer, BadModel, ModelInfo, System
from gourmet.errors import GourmetError
from gourmet.pictures.certainty import Floats, RankedLabels
from gourmet.pictures.classifier import PictureClassifier
from gourmet.pictures.decode import Pixels, from_base64, whole_pixels
from gourmet.pictures.decoders import Decoding
from gourmet.pictures.errors import DecodersBusy, PictureError
from gourmet.pictures.header import parse_header
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import InvalidRequest, ModelUnavailable, TritonError
from gourmet.triton_client.statistics import ModelStatistics
from gourmet.triton_client.triton import Answer, Triton

S = TypeVar("S", bound=System)
BytesKind = Literal["photo", "pixels", "tensor"]
_BYTES_KINDS: Final[dict[str, BytesKind]] = {"BYTES": "photo", "UINT8": "pixels"}
# How long the app may miss a change, such as of the threshold, in a model that keeps its version.
DESCRIPTION_AGE_S: Final = 5.0
# The request id of readiness checks, which no request waits for.
PROBE: Final = "readyz"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}(/[1-9][0-9]{0,17})?")
_log: Final = logging.getLogger(__name__)


@contextlib.contextmanager
def request_to_model(count: Callable[[str, str], object], target: str) -> Iterator[str]:
    """Trace and count a request to a model; yield the id of the request that the app answers.

    `count` gets the model's name and the outcome: answered, refused, or an error's code.
    """
    name = target.partition("/")[0]
    try:
        with tracing.span("triton", model=target):
            yield request_id() if has_request_context() else PROBE
    except TritonError as exc:
        count(name, "refused" if isinstance(exc, InvalidRequest) else as_serving_error(exc).code)
        raise
    except GeneratorExit:
        count(name, "client_left")
        raise
    count(name, "answered")


@dataclass(frozen=True)
class Model(Generic[S]):
    """A model that is ready, with its system and what its config says of its answers."""

    system: S
    info: ModelInfo
    labels: tuple[str, ...] = ()
    threshold: float = 0.0
    subject_threshold: float = 0.0

    @property
    def bytes_kind(self) -> BytesKind:
        """Return the form in which a photo is sent: as itself, its pixels, or the normalised tensor."""
        return _BYTES_KINDS.get(self.info.inputs[0].datatype, "tensor")


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
        self._models: dict[tuple[str, str], Model[S]] = {}

    @property
    def default_system(self) -> str:
        return next(iter(self.systems))

    def takes(self, system: S, info: ModelInfo) -> bool:
        """Return True if `system` can ask a model with these inputs."""
        return True

    def labels_of(self, system: S, info: ModelInfo) -> tuple[str, ...]:
        """Return the labels of a model; raise BadModel."""
        return ()

    def find(self, model: str, deadline: Deadline, system: str = "", *, use_cache: bool = True) -> Model[S]:
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
        info = its_system = None
        try:
            if owner or _NAME.fullmatch(model):
                info = self._describe(model, deadline, use_cache=use_cache)
        except ModelUnavailable as exc:
            may_come = base == model if owner else exc.state == "LOADING" or model in self._expected
            if may_come:
                raise
        if info and owner:
            its_system = self.systems.get(info.system, self.systems[owner])
        elif info:
            its_system = self._owner(info, system)
        if not info or not its_system:
            raise UnknownModel(model, [other.info.target for other in self.models(deadline, system)])
        if not self.takes(its_system, info):
            takes = ", ".join(
                f"{tensor.name} {tensor.datatype} {list(tensor.shape)}" for tensor in info.inputs
            )
            raise BadModel(
                f"{model!r} takes {takes}, which is not what models of {its_system.name} take: set "
                f"{self.systems[owner].model_variable} to one that Triton serves"
            )
        return self._model(its_system, info)

    def loaded(self, system: str, deadline: Deadline) -> ModelInfo:
        """Return the configured model of `system` as Triton has it now; raise ModelUnavailable."""
        return self.find("", deadline, system, use_cache=False).info

    def models(self, deadline: Deadline, system: str = "") -> list[Model[S]]:
        """Return the ready versions of models, of `system` or of all systems."""
        models = []
        for name in self._triton.ready_versions(deadline):
            try:
                info = self._describe(name, deadline)
                if its_system := self._owner(info, system):
                    models.append(self._model(its_system, info))
            except ModelUnavailable:  # unloaded after it was listed
                pass
            except BadModel as exc:
                _log.warning("not listed: %s", exc)
        return models

    def _model(self, system: S, info: ModelInfo) -> Model[S]:
        """Parse the labels and thresholds of a model, once for each description; raise BadModel."""
        key = info.target, system.name
        if (model := self._models.get(key)) is None or model.info is not info:
            labels = self.labels_of(system, info)
            model = Model(system, info, labels, info.threshold, info.subject_threshold)
            self._models[key] = model
        return model

    def _describe(self, model: str, deadline: Deadline, *, use_cache: bool = True) -> ModelInfo:
        """Describe the inputs and outputs of `model`, cached for a few seconds."""
        at, info = self._described.get(model, (0.0, None))
        if info is None or not use_cache or time.monotonic() - at >= DESCRIPTION_AGE_S:
            info = self._triton.describe(model, deadline)
            self._described[model] = (time.monotonic(), info)
        return info

    def _owner(self, info: ModelInfo, system: str) -> S | None:
        is_open = info.is_open_to_web or info.name in self.configured.values()
        owner = self.systems.get(info.system) if is_open else None
        return owner if owner and system in ("", owner.name) and self.takes(owner, info) else None


class ServerTiming(NamedTuple):
    """Milliseconds inside Triton, as the mean of `requests` requests.

    Triton's HTTP answer does not have these times. Its statistics have them as sums over a model's requests,
    and grow while a request is under way. If other requests ended meanwhile, this is the mean of all.
    """

    requests: int
    queue: float
    compute: float


@dataclass(frozen=True, kw_only=True)
class Prediction(RankedLabels):
    """A picture's answer, with its model."""

    model: str
    version: str
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    bytes_sent: int = 0
    inside: ServerTiming | None = None


# Asks one version of a model about several pictures at once, already of its input size.
AskRows = Callable[[Pixels], Floats]


class Classifier(ServedModels[PictureClassifier]):
    """Ask served models, and send the input that each takes: the photo or a tensor."""

    def takes(self, system: PictureClassifier, info: ModelInfo) -> bool:
        return system.takes(info)

    def labels_of(self, system: PictureClassifier, info: ModelInfo) -> tuple[str, ...]:
        return system.labels_of(info)

    def classify(
        self,
        photo: bytes,
        deadline: Deadline,
        model: str = "",
        *,
        system: str = "",
        with_server_timing: bool = False,
    ) -> Prediction:
        """Classify a photo; raise PictureError, DecodersBusy or GourmetError."""
        try:
            served = self.find(model, deadline, system)
        except GourmetError:
            # A file that is not a photo is refused as such, whatever the error was.
            self._refuse_if_bad(self.systems[system or self.default_system], photo, deadline)
            raise
        try:
            try:
                return self._ask_model(served, photo, deadline, with_server_timing)
            except InvalidRequest:
                # Another version with other inputs may have replaced the model.
                before, served = served, self._find_again(served, deadline)
                if served.info.inputs == before.info.inputs:
                    raise
                return self._ask_model(served, photo, deadline, with_server_timing)
        except InvalidRequest as error:
            if served.bytes_kind != "photo":  # decoded here, so the photo is not at fault
                raise
            if refusal := refused_picture(error):
                raise refusal from error
            self._refuse_if_bad(served.system, photo, deadline)
            _log.warning("a photo was refused: %s", error)
            raise PictureError(
                "broken_picture",
                "the model could not decode this photo: save it again as JPEG or PNG, and send that",
            ) from error

    def rows(self, deadline: Deadline, model: str = "") -> tuple[Model[PictureClassifier], AskRows]:
        """Return the model and a function that asks it about decoded pictures.

        If the model reports relevance, a last column has the probability of something else.
        """
        served = self.find(model, deadline, use_cache=False)
        info, system = served.info, served.system

        def ask_model(images: Pixels) -> Floats:
            tensor = np.concatenate([system.arrange(image, info.inputs[0].datatype) for image in images])
            answer = self._triton.infer(info.target, {info.inputs[0].name: tensor}, deadline)
            if answer.model_version != info.version:
                raise BadAnswer(f"{info.name} was replaced while it was asked: ask again")
            rows = _probabilities(answer, served, len(images))
            relevance = system.relevance(answer.outputs, info, served.labels)
            return rows if relevance is None else np.column_stack([rows, 1.0 - relevance])

        return served, ask_model

    def pixels(self, system: PictureClassifier, photo: bytes, deadline: Deadline) -> Pixels:
        """Decode a photo for `system`; raise PictureError or DecodersBusy."""
        with self._decoding.decode_in_app(deadline):
            return system.pixels(photo)

    def whole(self, photo: bytes, longest: int, deadline: Deadline) -> Pixels:
        """Decode the whole photo, shrunk to `longest`; raise PictureError or DecodersBusy."""
        with self._decoding.decode_in_app(deadline):
            return whole_pixels(photo, longest)

    def decode_in_model(self, photos: Sequence[bytes], deadline: Deadline) -> AbstractContextManager[None]:
        """Return a context manager for asking a model that decodes; slow photos need a place."""
        for photo in photos:
            with suppress(PictureError):  # the model refuses it
                head = parse_header(from_base64(photo))
                if not head.is_harmless:
                    return self._decoding.decode_in_model(head, deadline)
        return nullcontext()

    def _refuse_if_bad(self, system: PictureClassifier, photo: bytes, deadline: Deadline) -> None:
        """Check the photo; raise PictureError, unless the check takes too long."""
        try:
            with self._decoding.decode_in_app(deadline):
                system.identify(photo)
        except DecodersBusy:
            pass
        except PictureError as exc:
            if exc.code != "too_slow":
                raise

    def _find_again(self, served: Model[PictureClassifier], deadline: Deadline) -> Model[PictureClassifier]:
        return self.find(served.info.target, deadline, served.system.name, use_cache=False)

    def _ask_model(
        self, served: Model[PictureClassifier], photo: bytes, deadline: Deadline, with_server_timing: bool
    ) -> Prediction:
        system, spec = served.system, served.info.inputs[0]
        phases: dict[str, float] = {}
        started = time.perf_counter()
        # Limits photos that a model may decode for long, so that they do not delay others.
        decoding: AbstractContextManager[None] = nullcontext()
        with tracing.span("decode", photo_bytes=len(photo)):
            if served.bytes_kind == "photo":
                tensor = system.encode(photo, spec.datatype)
                decoding = self._decoding.decode_in_model(from_base64(photo), deadline)
                phases["decode"] = _ms_since(started)
            else:
                pixels = self.pixels(system, photo, deadline)
                phases["decode"], decoded = _ms_since(started), time.perf_counter()
                tensor = system.arrange(pixels, spec.datatype)
                phases["preprocess"] = _ms_since(decoded)
        before = self._counted(served.info.name, deadline) if with_server_timing else None
        prepared = time.perf_counter()
        with decoding:
            answer = self._triton.infer(served.info.target, {spec.name: tensor}, deadline)
        phases["triton"] = _ms_since(prepared)
        inside = self._inside(served.info.name, before, deadline) if before else None
        if answer.model_version != served.info.version:  # it was replaced after it was described
            try:
                replacement = f"{served.info.name}/{answer.model_version}"
                served = self.find(replacement, deadline, system.name)
            except (ModelUnavailable, UnknownModel):  # replaced again
                served = self._find_again(served, deadline)
                return self._ask_model(served, photo, deadline, with_server_timing)
        return _prediction(served, answer, phases, inside)

    def _counted(self, model: str, deadline: Deadline) -> ModelStatistics | None:
        with suppress(TritonError):
            return self._triton.total(model, deadline)
        return None

    def _inside(self, model: str, before: ModelStatistics, deadline: Deadline) -> ServerTiming | None:
        """Return Triton's times of `model` since `before`; None if it was loaded again or reports none."""
        with suppress(TritonError):
            grew = self._triton.counted(model, before, lambda counted: counted.requests != 0, deadline)
            compute_ns = grew.input_ns + grew.infer_ns + grew.output_ns
            # Behind a load balancer the two counts may come from two servers, and differ by neither's.
            if grew.requests > 0 and min(grew.queue_ns, compute_ns) >= 0:
                ms_per_request = 1 / grew.requests / 1e6
                return ServerTiming(
                    grew.requests, grew.queue_ns * ms_per_request, compute_ns * ms_per_request
                )
        return None


def _ms_since(moment: float) -> float:
    return (time.perf_counter() - moment) * 1000


def _prediction(
    served: Model[PictureClassifier],
    answer: Answer,
    phases: Mapping[str, float],
    inside: ServerTiming | None = None,
) -> Prediction:
    relevance = served.system.relevance(answer.outputs, served.info, served.labels)
    return Prediction(
        served.system,
        served.labels,
        tuple(_probabilities(answer, served, 1)[0].tolist()),
        served.threshold,
        None if relevance is None else float(relevance[0]),
        served.subject_threshold,
        tuple(served.system.finer(answer.outputs)[0]),
        model=served.info.name,
        version=answer.model_version,
        timings_ms=phases,
        bytes_sent=answer.bytes_sent,
        inside=inside,
    )


def _probabilities(answer: Answer, served: Model[PictureClassifier], pictures: int) -> Floats:
    rows = served.system.probabilities(answer.outputs, served.info, served.labels)
    if rows.shape != (pictures, len(served.labels)) or not np.isfinite(rows).all():
        raise BadAnswer(f"{served.info.name!r} answered {pictures} pictures with {rows.tolist()}")
    return rows
