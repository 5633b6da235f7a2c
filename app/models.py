"""Classification of pictures by any model of any picture system that Triton serves."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np

from app.served_models import Served, ServedModels
from app.web import tracing
from app.web.errors import UnknownModel, refused_picture
from gourmet.contracts import BadAnswer, BadModel, ModelInfo
from gourmet.errors import GourmetError
from gourmet.pictures.classifier import Floats, PictureClassifier, Ranked
from gourmet.pictures.decode import Pixels, whole_pixels
from gourmet.pictures.errors import DecodersBusy, PictureError
from gourmet.triton_client.deadline import Deadline
from gourmet.triton_client.errors import InvalidRequest, ModelUnavailable, TritonError
from gourmet.triton_client.statistics import ModelStatistics
from gourmet.triton_client.triton import Answer

BytesKind = Literal["photo", "pixels", "tensor"]
_BYTES_KINDS: Final[dict[str, BytesKind]] = {"BYTES": "photo", "UINT8": "pixels"}
_log: Final = logging.getLogger(__name__)


class ServerTiming(NamedTuple):
    """Milliseconds inside Triton, as the mean of `requests` requests.

    Triton's HTTP answer does not have these times. Its statistics have them as sums over a model's requests,
    and grow while a request is under way. The growth belongs to that request if no other one ended meanwhile;
    else the mean covers all requests that did.
    """

    requests: int
    queue: float
    compute: float


@dataclass(frozen=True)
class ServedModel(Served[PictureClassifier]):
    """A ready model and its config's parameters."""

    labels: tuple[str, ...]
    threshold: float
    subject_threshold: float = 0.0

    @classmethod
    def of(cls, served: Served[PictureClassifier]) -> ServedModel:
        system, info = served.system, served.info
        return cls(system, info, system.labels_of(info), info.threshold, info.subject_threshold)

    @property
    def bytes_kind(self) -> BytesKind:
        """Return the form in which a photo is sent: as itself, its pixels, or the normalised tensor."""
        return _BYTES_KINDS.get(self.info.inputs[0].datatype, "tensor")


@dataclass(frozen=True)
class Prediction(Ranked):
    """A picture's answer; `sure` is False below the model's threshold."""

    system: PictureClassifier
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    model: str
    version: str
    threshold: float = 0.0
    relevance: float | None = None
    subject_threshold: float = 0.0
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    bytes_sent: int = 0
    inside: ServerTiming | None = None

    @property
    def applying(self) -> list[tuple[str, float]] | None:
        """Return the labels that are sure, best first, where a picture may have several."""
        if not self.system.multi_label:
            return None
        pairs = zip(self.labels, self.probabilities, strict=True)
        return sorted((pair for pair in pairs if pair[1] >= self.threshold), key=lambda pair: -pair[1])

    @property
    def shown(self) -> str:
        """Return the label, or all labels that apply."""
        return ", ".join(label for label, _ in self.applying or ()) or self.label

    @property
    def candidates(self) -> list[tuple[str, float]]:
        return [] if self.system.multi_label else super().candidates


# Asks one version of a model about several pictures at once, already of its input size.
AskRows = Callable[[Pixels], Floats]


class Classifier(ServedModels[PictureClassifier]):
    """Ask served models, and send the input that each takes: the photo or a tensor."""

    def takes(self, system: PictureClassifier, info: ModelInfo) -> bool:
        return system.takes(info)

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
        served: ServedModel | None = None
        try:
            served = self._find(model, deadline, system)
            try:
                return self._ask(served, photo, deadline, with_server_timing)
            except InvalidRequest:
                # Another version with other inputs may have replaced the model.
                before, served = served, self._find_afresh(served, deadline)
                if served.info.inputs == before.info.inputs:
                    raise
                return self._ask(served, photo, deadline, with_server_timing)
        except GourmetError as error:
            by_decoder = isinstance(error, InvalidRequest) and served and served.bytes_kind == "photo"
            if by_decoder and (refusal := refused_picture(error)):
                raise refusal from error
            # A file that is not a photo is refused as such, whatever the error was. If Triton decodes it,
            # this is the first check here: a photo that is answered is not checked twice.
            self._refuse_if_bad(
                served.system if served else self.systems[system or self.default_system], photo, deadline
            )
            if by_decoder:
                _log.warning("a photo was refused: %s", error)
                raise PictureError(
                    "broken_picture",
                    "the model could not decode this photo: save it again as JPEG or PNG, and send that",
                ) from error
            raise

    def rows(self, deadline: Deadline, model: str = "") -> tuple[ServedModel, AskRows]:
        """Return the model and a function that asks it about decoded pictures.

        If the model reports relevance, a last column has the probability of something else.
        """
        served = self._find(model, deadline, afresh=True)
        info, system = served.info, served.system

        def ask(images: Pixels) -> Floats:
            tensor = np.concatenate([system.arrange(image, info.inputs[0].datatype) for image in images])
            answer = self._triton.infer(info.target, {info.inputs[0].name: tensor}, deadline)
            if answer.model_version != info.version:
                raise BadAnswer(f"{info.name} was replaced while it was asked: ask again")
            rows = _probabilities(answer, served, len(images))
            relevance = system.relevance(answer.outputs, info)
            return rows if relevance is None else np.column_stack([rows, 1.0 - relevance])

        return served, ask

    def pixels(self, system: PictureClassifier, photo: bytes, deadline: Deadline) -> Pixels:
        """Decode a photo for `system`; raise PictureError or DecodersBusy."""
        with self._decoding.here(deadline):
            return system.pixels(photo)

    def whole(self, photo: bytes, longest: int, deadline: Deadline) -> Pixels:
        """Decode the whole photo, shrunk to `longest`; raise PictureError or DecodersBusy."""
        with self._decoding.here(deadline):
            return whole_pixels(photo, longest)

    def _refuse_if_bad(self, system: PictureClassifier, photo: bytes, deadline: Deadline) -> None:
        """Check the photo; raise PictureError, unless the check takes too long."""
        try:
            with self._decoding.here(deadline):
                system.identify(photo)
        except DecodersBusy:
            pass
        except PictureError as exc:
            if exc.code != "too_slow":
                raise

    def models(self, deadline: Deadline, system: str = "") -> list[ServedModel]:
        """Return the ready models, of `system` or of all systems."""
        models = []
        for served in self.ready(deadline, system):
            try:
                models.append(ServedModel.of(served))
            except BadModel as exc:
                _log.warning("not listed: %s", exc)
        return models

    def _find(self, model: str, deadline: Deadline, system: str = "", *, afresh: bool = False) -> ServedModel:
        return ServedModel.of(self.find(model, deadline, system, afresh=afresh))

    def _find_afresh(self, served: ServedModel, deadline: Deadline) -> ServedModel:
        return self._find(served.info.target, deadline, served.system.name, afresh=True)

    def _ask(
        self, served: ServedModel, photo: bytes, deadline: Deadline, with_server_timing: bool
    ) -> Prediction:
        system, spec = served.system, served.info.inputs[0]
        phases: dict[str, float] = {}
        started = time.perf_counter()
        # Limits photos that a model may decode for long, so that they do not delay others.
        decoding: AbstractContextManager[None] = nullcontext()
        with tracing.span("decode", photo_bytes=len(photo)):
            if served.bytes_kind == "photo":
                tensor = system.encode(photo, spec.datatype)
                phases["decode"] = _ms_since(started)
                decoding = self._decoding.there(photo, deadline)
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
                served = self._find(replacement, deadline, system.name)
            except (ModelUnavailable, UnknownModel):  # replaced again
                served = self._find_afresh(served, deadline)
                return self._ask(served, photo, deadline, with_server_timing)
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
    served: ServedModel, answer: Answer, phases: Mapping[str, float], inside: ServerTiming | None = None
) -> Prediction:
    relevance = served.system.relevance(answer.outputs, served.info)
    return Prediction(
        served.system,
        served.labels,
        tuple(_probabilities(answer, served, 1)[0].tolist()),
        served.info.name,
        answer.model_version,
        served.threshold,
        None if relevance is None else float(relevance[0]),
        served.subject_threshold,
        phases,
        answer.bytes_sent,
        inside,
    )


def _probabilities(answer: Answer, served: ServedModel, pictures: int) -> Floats:
    rows = served.system.probabilities(answer.outputs, served.info)
    if rows.shape != (pictures, len(served.labels)) or not np.isfinite(rows).all():
        raise BadAnswer(f"{served.info.name!r} answered {pictures} pictures with {rows.tolist()}")
    return rows
