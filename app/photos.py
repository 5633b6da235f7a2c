"""Calls with photos: read them, and answer a form with a card, or an API call with a result for each photo.

Each photo is its own request to Triton. One request with a row for each photo would be a little cheaper. But
a model that decodes fails the whole request for one broken row, without saying which row. Triton's dynamic
batcher makes a batch of requests that arrive together, and meanwhile decoding here uses the other cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from flask import Response, current_app, g, request
from pydantic import SerializeAsAny
from werkzeug.exceptions import UnsupportedMediaType

from app.api import schemas
from app.api.uploads import MAX_OTHER_PARTS, WRAPPING_BYTES, chosen_model, from_json, one_of, receiving
from app.models import Prediction
from app.services import Services
from app.web.admission import deadline_of_request
from app.web.errors import BadRequest, ServingError, UnknownModel, as_dict, for_visitor
from app.web.http import JSON, phases_ms, render, request_id, unstored
from app.web.messages import say
from app.web.metrics import MAX_LABELS, OTHER, Metrics
from app.web.rate_limit import count_photos
from app.web.settings import Settings
from app.web.tracing import carried
from gourmet.pictures.decode import from_base64
from gourmet.pictures.errors import PictureError
from gourmet.triton_client.deadline import Deadline

FIELD: Final = "file"
OTHER_FIELD: Final = "image"  # accepted too
MULTIPART: Final = "multipart/form-data"
RAW: Final = "application/octet-stream"
# A photo as a data: URL has one comma, and one separates two photos. The rest lets a refusal count a few
# photos too many.
_COMMAS_A_PHOTO: Final = 64
# Threads of a call with several photos. Its place in the queue limits how many calls there are.
PHOTO_THREADS: Final = 4
TimingsMs = Mapping[str, float]
Describe = Callable[[Prediction, TimingsMs, str | None], schemas.Schema]
InJson = TypeVar("InJson", bound=schemas.Base64Photos)
P = TypeVar("P", bound=schemas.Predicted)
# Makes the result of a photo from its bytes, its file name, and how long it waited for a thread.
Work = Callable[[bytes, str | None, float | None], schemas.Schema]


@dataclass(frozen=True)
class UploadedPhoto:
    """A photo as it was sent; `fault` is the error if it is refused before decoding."""

    data: bytes
    filename: str | None = None
    fault: Exception | None = None

    def checked(self, settings: Settings) -> UploadedPhoto:
        """Return the photo, or its refusal if it is too large; count its bytes."""
        current_app.extensions["metrics"].photo_bytes.observe(len(self.data))
        if len(self.data) <= settings.max_upload_bytes:
            return self
        too_large = ServingError("upload_too_large", _too_large(settings))
        return UploadedPhoto(b"", self.filename, too_large)

    def content(self) -> bytes:
        """Return the photo's bytes, or raise its error."""
        if self.fault:
            raise self.fault
        return self.data


def _too_large(settings: Settings) -> str:
    return f"the photo is larger than {settings.max_upload_mb:g} MB: send a smaller one, or save it as JPEG"


def form_photo(settings: Settings) -> bytes:
    """Return the photo in the form field `file`."""
    with receiving(_too_large(settings)):
        upload = request.files.get(FIELD) or request.files.get(OTHER_FIELD)
        in_form = FIELD in request.form
    if upload is None:
        raise ServingError(
            "no_file",
            f"the form's field `{FIELD}` holds text and not a photo: with curl, write -F {FIELD}=@photo.jpg"
            if in_form
            else f"no photo found: send it as the field `{FIELD}` of a multipart form",
        )
    data = upload.stream.read()
    if not data and not upload.filename:
        raise ServingError("no_file", "no photo was chosen: choose one and send it again")
    return UploadedPhoto(data).checked(settings).content()


def only_photo(photos: list[UploadedPhoto], rule: str) -> bytes:
    """Return the photo of a call that takes one, as the `rule` says."""
    if len(photos) != 1:
        raise BadRequest(f"{rule}, and these are {len(photos)}")
    return photos[0].content()


def photos_and_model(settings: Settings) -> tuple[list[UploadedPhoto], str]:
    """Read the photos and the model's name; raise an error that concerns the whole request."""
    photos, model, _ = photos_and_more(settings, schemas.Base64Photos)
    return photos, model


def photos_and_more(
    settings: Settings, shape: type[InJson]
) -> tuple[list[UploadedPhoto], str, InJson | None]:
    """Read photos and the other fields of a JSON body of this shape."""
    request.max_content_length = settings.max_call_bytes + WRAPPING_BYTES
    request.max_form_parts = settings.max_photos + MAX_OTHER_PARTS
    limits = f"send at most {settings.max_photos} photos and {settings.max_call_mb:g} MB"
    with receiving(f"the call is too large: {limits}"):
        received = _receive(settings)
    fields = None
    if isinstance(received, bytes):
        fields = from_json(shape, received, '{"images": ["<base64>", …]}')
        received = [photo_of_base64(text) for text in fields.images], fields.model or "", fields.version
    photos, model, version = received
    if not photos:
        raise ServingError("no_file", f"no photo found: send it as the field `{FIELD}` of a multipart form")
    if len(photos) > settings.max_photos:
        raise ServingError(
            "too_many_photos",
            f"{len(photos)} photos are too many for one call: send at most {settings.max_photos}",
        )
    return [photo.checked(settings) for photo in photos], chosen_model(model, version), fields


def _receive(settings: Settings) -> bytes | tuple[list[UploadedPhoto], str, str | None]:
    """Return the photos, the model's name and its version, or the unparsed JSON body."""
    kind = request.mimetype
    if kind == MULTIPART:
        files = [*request.files.getlist(FIELD), *request.files.getlist(OTHER_FIELD)]
        photos = [UploadedPhoto(file.stream.read(), file.filename or None) for file in files]
        # A browser sends an empty part if no file was chosen.
        chosen = [photo for photo in photos if photo.data or photo.filename]
        return chosen, request.form.get("model", ""), request.form.get("version", "")
    if kind == JSON:
        body = request.get_data(cache=False)
        # A parser makes an object of each value before it counts them: 16 MB of `"a",` took 1.5 s and 290 MB.
        if body.count(b",") > _COMMAS_A_PHOTO * settings.max_photos:
            limits = f"send at most {settings.max_photos} photos"
            raise ServingError("too_many_photos", f"too many photos in one request: {limits}")
        return body
    if kind == RAW or kind.startswith("image/"):
        data = request.get_data(cache=False)
        return [UploadedPhoto(data)] if data else [], "", ""
    raise UnsupportedMediaType(
        f"a body of type {kind or 'none'!r} is not read here: send {MULTIPART} with the field `{FIELD}`, "
        f"one photo as image/* or {RAW}, or {JSON} with base64 texts in `images`"
    )


def photo_of_base64(text: str) -> UploadedPhoto:
    encoded = text.encode()
    data = from_base64(encoded)
    if encoded and data is encoded:
        message = "this is not valid base64: encode the photo's bytes"
        return UploadedPhoto(b"", fault=PictureError("not_a_picture", message))
    return UploadedPhoto(data)


# ---- answers


class _CheckedResults(schemas.Schema):
    """`Results` of any schema, whose items were validated when they were made."""

    results: list[SerializeAsAny[schemas.Schema]]


def classify_each(services: Services, describe: Describe, system: str = "") -> Response:
    """Answer a call with photos; `describe` makes the result of each photo."""
    photos, model = photos_and_model(services.settings)
    count_photos(len(photos))
    deadline = deadline_of_request()
    with_server_timing = one_of("inside", ("1",)) == "1"

    def work(photo: bytes, filename: str | None, wait_ms: float | None) -> schemas.Schema:
        prediction = services.classifier.classify(
            photo, deadline, model, system=system, with_server_timing=with_server_timing
        )
        return describe(prediction, observed(prediction, wait_ms), filename)

    return answer_each(photos, work, deadline)


def answer_each(photos: list[UploadedPhoto], work: Work, deadline: Deadline) -> Response:
    """Answer with what `work` makes of each photo; a few are at work at a time.

    The status is the error's if there is one photo, or if the server answered none of several.
    """

    def outcome(photo: UploadedPhoto, submitted: float | None = None) -> schemas.Schema | Exception:
        wait_ms = None if submitted is None else (time.perf_counter() - submitted) * 1000
        try:
            return work(photo.content(), photo.filename, wait_ms)
        except Exception as exc:
            return exc

    outcomes: list[schemas.Schema | Exception]
    if len(photos) == 1:
        outcomes = [outcome(photos[0])]
    else:
        within, now = carried(outcome), time.perf_counter()
        threads = ThreadPoolExecutor(PHOTO_THREADS, thread_name_prefix="photo")
        futures = [threads.submit(within, photo, now) for photo in photos]
        # Calls end by themselves at the deadline. The extra time is for photos that wait for a thread.
        late = wait(futures, deadline.left_s() + 0.2).not_done
        threads.shutdown(wait=False, cancel_futures=True)
        too_slow = ServingError("triton_too_slow", f"there was no answer within {deadline.seconds:g} s")
        outcomes = [too_slow if future in late else future.result() for future in futures]

    results: list[schemas.Schema] = []
    errors: list[ServingError] = []
    for photo, result in zip(photos, outcomes, strict=True):
        if isinstance(result, (UnknownModel, BadRequest)):  # an error of the whole call
            raise result
        if isinstance(result, Exception):
            errors.append(for_visitor(result))
            problem = schemas.Problem(**as_dict(errors[-1])["error"])
            result = schemas.Failed(filename=photo.filename, error=problem)
        results.append(result)
    response = unstored(_CheckedResults(results=results))
    if len(results) == 1 and not errors:
        add_server_timing(response, results[0].as_dict()["timings_ms"])
    if len(errors) == len(photos) and (len(errors) == 1 or all(e.status >= 500 for e in errors)):
        response.status_code = errors[0].status
        if errors[0].retry_after_s is not None:
            response.headers["Retry-After"] = str(errors[0].retry_after_s)
    return response


def form_answer(
    services: Services,
    system: str,
    shape: type[schemas.Predicted] = schemas.Predicted,
    data: bytes | None = None,
    **context: Any,
) -> Response:
    """Answer a form with one photo, or `data`, by a model of `system`; JSON has the shape `shape`."""
    if data is None:
        data = form_photo(services.settings)
    model = chosen_model(request.form.get("model", ""), request.form.get("version", ""))
    deadline = deadline_of_request()
    prediction = services.classifier.classify(data, deadline, model, system=system)
    timings = observed(prediction)
    response = render(
        "photo_result.html",
        lambda: answer_of(shape, prediction, timings),
        prediction=prediction,
        timings=timings,
        **context,
    )
    add_server_timing(response, timings)
    return response


def observed(prediction: Prediction, wait_ms: float | None = None) -> TimingsMs:
    """Count the prediction, and return the phases of its request until now."""
    timings = phases_ms(prediction.timings_ms, wait_ms)
    count(prediction, timings)
    return timings


def count(prediction: Prediction, timings: TimingsMs) -> None:
    g.model = prediction.model
    metrics: Metrics = current_app.extensions["metrics"]
    metrics.observe_phases(prediction.system.name, timings)
    counted = metrics.of_system[prediction.system.name]
    label = prediction.label if prediction.class_id < MAX_LABELS else OTHER
    counted["predictions_total"].labels(prediction.model, label).inc()
    counted["confidence"].labels(label).observe(prediction.probability)


def _guesses(labels: list[tuple[str, float]]) -> list[schemas.Guess]:
    return [schemas.Guess(label=label, probability=probability) for label, probability in labels]


def answer_of(
    shape: type[P], prediction: Prediction, timings: TimingsMs, filename: str | None = None, **own: Any
) -> P:
    """Return the answer as `shape`; `own` overrides its fields."""
    facts = {
        "verdict": schemas.Verdict(**say(prediction)._asdict()),
        "label": prediction.label,
        "probability": prediction.probability,
        "sure": prediction.sure,
        "calibrated": None if prediction.calibrated else False,
        "relevant": None if prediction.relevance is None else prediction.relevant,
        "doubtful": None if prediction.relevance is None else prediction.doubtful,
        "candidates": _guesses(prediction.candidates) or None,
        "dish": prediction.finer_name or None,
        "perhaps": prediction.finer_candidates or None,
        "dishes": [schemas.DishGuess(dish=name, probability=likely) for name, likely in prediction.finer]
        or None,
        "top": _guesses(prediction.top),
        "labels": None if prediction.applying is None else _guesses(prediction.applying),
        "model": schemas.ModelName(name=prediction.model, version=prediction.version),
        "timings_ms": schemas.Timings(**timings),
        "request_id": request_id(),
        "filename": filename,
        "class_id": prediction.class_id,
        "threshold": prediction.threshold,
        "bytes_sent": prediction.bytes_sent,
        "inside": prediction.inside and schemas.Inside(**prediction.inside._asdict()),
        "probabilities": prediction.probabilities,
        **own,
    }
    answer: dict[str, Any] = {name: fact for name, fact in facts.items() if name in shape.model_fields}
    if prediction.relevance is not None:
        answer[prediction.system.subject] = prediction.relevance
    return shape(**answer)


def add_server_timing(response: Response, timings: TimingsMs) -> None:
    """Add the Server-Timing header, which browsers show next to the network times."""
    response.headers["Server-Timing"] = ", ".join(f"{phase};dur={ms:.1f}" for phase, ms in timings.items())
