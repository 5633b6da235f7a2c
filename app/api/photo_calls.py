"""Calls with photos: read them from a form, raw bytes or JSON, and answer with a result for each photo.

Each photo is its own request to Triton. One request with a row for each photo would be a little cheaper. But
a model that decodes fails the whole request for one broken row, without saying which row. Triton's dynamic
batcher makes a batch of requests that arrive together, and meanwhile decoding here uses the other cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, wait
from typing import Any, TypeVar

from flask import Response, current_app, g, request
from pydantic import SerializeAsAny

from app.admission.queue import deadline_of_request
from app.admission.rate_limit import count_photos
from app.admission.uploads import FIELD, OTHER_FIELD, photo_too_large, receiving
from app.api import schemas
from app.api.request_parsing import UploadedPhoto, chosen_model, photos_and_model
from app.api.services import Services
from app.classifier import Prediction
from app.core.errors import (
    BadRequest,
    RefusedRequest,
    ServingError,
    TritonTooSlow,
    UnknownModel,
    as_dict,
    for_visitor,
)
from app.core.http import phases_ms, render, request_id, unstored
from app.core.metrics import MOST_LABELS, OTHER, Metrics
from app.core.settings import Settings
from app.core.tracing import carried
from gourmet.client.deadline import Deadline

TimingsMs = Mapping[str, float]
Describe = Callable[[Prediction, TimingsMs, str | None], schemas.Schema]
P = TypeVar("P", bound=schemas.Predicted)
Found = TypeVar("Found")
# The answer or the error of each photo, and the times of its phases.
Outcomes = Sequence[tuple[Found | Exception, TimingsMs]]


class _CheckedResults(schemas.Schema):
    """`Results` of any schema, whose items were validated when they were made."""

    results: list[SerializeAsAny[schemas.Schema]]


def one_of(parameter: str, allowed: Collection[str]) -> str:
    """Return a query parameter that is one of `allowed`, or an empty string if it is missing."""
    value = request.args.get(parameter)
    if value is None:
        return ""
    if value not in allowed:
        raise BadRequest(f"{parameter} is {value!r}; allowed: {', '.join(allowed)}")
    return value


def answer(services: Services, describe: Describe, system: str = "") -> Response:
    """Answer a call with photos; `describe` makes the result of each photo."""
    photos, model = photos_and_model(services.settings)
    if services.settings.rate_limit:
        count_photos(current_app, len(photos))
    deadline = deadline_of_request(services.settings.request_deadline_s)
    asked_as, with_server_timing = request_id(), one_of("inside", ("1",)) == "1"

    def ask(photo: bytes) -> tuple[Prediction, TimingsMs]:
        prediction = services.classifier.classify(
            photo, deadline, asked_as, model, system=system, with_server_timing=with_server_timing
        )
        return prediction, prediction.timings_ms

    def tell(prediction: Prediction, timings: TimingsMs, name: str | None) -> schemas.Schema:
        count(prediction, timings)
        return describe(prediction, timings, name)

    return answer_each(photos, ask, tell, deadline, services.photos)


def answer_each(
    photos: list[UploadedPhoto],
    ask: Callable[[bytes], tuple[Found, TimingsMs]],
    tell: Callable[[Found, TimingsMs, str | None], schemas.Schema],
    deadline: Deadline,
    threads: Executor,
) -> Response:
    """Ask about each photo with `ask`, note the phases, and let `tell` make the result.

    Several photos share `threads`.
    """

    def outcome(photo: UploadedPhoto, submitted: float | None = None) -> tuple[Found | Exception, TimingsMs]:
        wait_ms = None if submitted is None else (time.perf_counter() - submitted) * 1000
        try:
            if photo.fault:
                raise photo.fault
            result, phases = ask(photo.data)
            return result, phases_ms(phases, wait_ms)
        except Exception as exc:
            return exc, {}

    if len(photos) == 1:
        return _results(photos, [outcome(photos[0])], tell)

    within, now = carried(outcome), time.perf_counter()
    futures = [threads.submit(within, photo, now) for photo in photos]
    # Calls end by themselves at the deadline. The extra time is for photos that wait for a thread.
    late = wait(futures, deadline.left_s() + 0.2).not_done
    for future in late:
        future.cancel()
    too_slow = TritonTooSlow(f"there was no answer within {deadline.seconds:g} s")
    outcomes = [(too_slow, {}) if future in late else future.result() for future in futures]
    return _results(photos, outcomes, tell)


def _results(
    photos: list[UploadedPhoto],
    outcomes: Outcomes[Found],
    tell: Callable[[Found, TimingsMs, str | None], schemas.Schema],
) -> Response:
    """Return the results of all photos.

    The status is the error's if there is one photo, or if the server answered none of several.
    """
    results: list[schemas.Schema] = []
    errors: list[ServingError] = []
    timings: TimingsMs = {}
    for photo, (outcome, timings) in zip(photos, outcomes, strict=True):
        if isinstance(outcome, (UnknownModel, BadRequest)):  # an error of the whole call
            raise outcome
        if isinstance(outcome, Exception):
            errors.append(for_visitor(outcome))
            problem = schemas.Problem(**as_dict(errors[-1])["error"])
            results.append(schemas.Failed(filename=photo.filename, error=problem))
        else:
            results.append(tell(outcome, timings, photo.filename))
    response = unstored(_CheckedResults(results=results))
    if len(photos) == 1 and timings:
        add_server_timing(response, timings)
    if len(errors) == len(photos) and (len(errors) == 1 or all(e.status >= 500 for e in errors)):
        response.status_code = errors[0].status
        if errors[0].retry_after_s is not None:
            response.headers["Retry-After"] = str(errors[0].retry_after_s)
    return response


def form_photo(settings: Settings) -> bytes:
    """Return the photo in the form field `file`; raise RefusedRequest or Overloaded."""
    with receiving(photo_too_large(settings)):
        upload = request.files.get(FIELD) or request.files.get(OTHER_FIELD)
        in_form = FIELD in request.form
    if upload is None:
        raise RefusedRequest(
            "no_file",
            f"the form's field `{FIELD}` holds text and not a photo: with curl, write -F {FIELD}=@photo.jpg"
            if in_form
            else f"no photo found: send it as the field `{FIELD}` of a multipart form",
        )
    data = upload.stream.read()
    if not data and not upload.filename:
        raise RefusedRequest("no_file", "no photo was chosen: choose one and send it again")
    current_app.extensions["metrics"].photo_bytes.observe(len(data))
    if len(data) > settings.max_upload_bytes:
        raise RefusedRequest("upload_too_large", photo_too_large(settings))
    return data


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
    deadline = deadline_of_request(services.settings.request_deadline_s)
    prediction = services.classifier.classify(data, deadline, request_id(), model, system=system)
    timings = phases_ms(prediction.timings_ms)
    count(prediction, timings)
    response = render(
        "photo_result.html",
        lambda: answer_of(shape, prediction, timings),
        prediction=prediction,
        timings=timings,
        **context,
    )
    add_server_timing(response, timings)
    return response


def count(prediction: Prediction, timings: TimingsMs) -> None:
    g.model = prediction.model
    metrics: Metrics = current_app.extensions["metrics"]
    metrics.observe_phases(prediction.system.name, timings)
    counted = metrics.of_system[prediction.system.name]
    label = prediction.label if prediction.class_id < MOST_LABELS else OTHER
    counted["predictions_total"].labels(prediction.model, label).inc()
    counted["confidence"].labels(label).observe(prediction.probability)


def _guesses(labels: list[tuple[str, float]]) -> list[schemas.Guess]:
    return [schemas.Guess(label=label, probability=probability) for label, probability in labels]


def answer_of(
    shape: type[P], prediction: Prediction, timings: TimingsMs, filename: str | None = None, **own: Any
) -> P:
    """Return the answer as `shape`; `own` overrides its fields."""
    facts = {
        "label": prediction.label,
        "probability": prediction.probability,
        "sure": prediction.sure,
        "calibrated": None if prediction.calibrated else False,
        "relevant": None if prediction.relevance is None else prediction.relevant,
        "doubtful": None if prediction.relevance is None else prediction.doubtful,
        "candidates": _guesses(prediction.candidates) or None,
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
