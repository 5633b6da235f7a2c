"""Answer a form with a card for its photo, or an API call with a result for each photo.

Each photo is its own request to Triton. One request with a row for each photo would be a little cheaper. But
a model that decodes fails the whole request for one broken row, without saying which row. Triton's dynamic
batcher makes a batch of requests that arrive together, and meanwhile decoding here uses the other cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

from flask import Response, current_app, g, request
from pydantic import SerializeAsAny

from app.api import schemas
from app.api.uploads import UploadedPhoto, chosen_model, form_photo, one_of, photos_and_model
from app.models import Prediction
from app.services import Services
from app.web.admission import deadline_of_request
from app.web.errors import BadRequest, ServingError, UnknownModel, as_dict, for_visitor
from app.web.http import phases_ms, render, request_id, unstored
from app.web.messages import say
from app.web.metrics import MAX_LABELS, OTHER, Metrics
from app.web.rate_limit import count_photos
from app.web.tracing import carried
from gourmet.triton_client.deadline import Deadline

# Threads of a call with several photos. Its place in the queue limits how many calls there are.
PHOTO_THREADS: Final = 4
TimingsMs = Mapping[str, float]
Describe = Callable[[Prediction, TimingsMs, str | None], schemas.Schema]
P = TypeVar("P", bound=schemas.Predicted)
# Makes the result of a photo from its bytes, its file name, and how long it waited for a thread.
Work = Callable[[bytes, str | None, float | None], schemas.Schema]


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
