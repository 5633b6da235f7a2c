"""What was found out about a photo, as the API's answers say it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, TypeVar

from flask import Response, current_app, g

from app.api.schemas import Guess, Inside, ModelName, Predicted, Schema, Timings
from app.classifier import Prediction
from app.core.http import as_json, request_id
from app.core.metrics import Metrics

TimingsMs = Mapping[str, float]
P = TypeVar("P", bound=Predicted)


def timings_ms(
    prediction: Prediction, *, done_at: float | None = None, wait_ms: float | None = None
) -> dict[str, float]:
    """Every phase that was really timed, in the order in which they passed; counts the prediction too.

    `done_at` is time.perf_counter() when the answer was there, now unless given.
    """
    timings = phases_ms(prediction.timings_ms, done_at=done_at, wait_ms=wait_ms)
    g.model = prediction.model
    metrics: Metrics = current_app.extensions["metrics"]
    metrics.observe_prediction(prediction, timings)
    return timings


def phases_ms(
    inner: TimingsMs, *, done_at: float | None = None, wait_ms: float | None = None
) -> dict[str, float]:
    """The phases of `inner` with those of the request round them."""
    in_line_ms = float(g.get("line_ms", 0.0))
    waited = {"wait": in_line_ms + (wait_ms or 0.0)} if in_line_ms or wait_ms is not None else {}
    total = ((done_at or time.perf_counter()) - float(g.started)) * 1000
    return {"receive": float(g.get("receive_ms", 0.0)), **waited, **inner, "total": total}


def told(
    shape: type[P], prediction: Prediction, timings: TimingsMs, filename: str | None = None, **own: Any
) -> P:
    """The answer of `shape`, which says in its `own` way what stands there."""
    inside = prediction.inside
    facts = {
        "label": prediction.label,
        "probability": prediction.probability,
        "sure": prediction.sure,
        "top": [Guess(label=label, probability=probability) for label, probability in prediction.top],
        "model": ModelName(name=prediction.model, version=prediction.version),
        "timings_ms": Timings(**rounded(timings)),
        "request_id": request_id(),
        "filename": filename,
        "class_id": prediction.class_id,
        "threshold": prediction.threshold,
        "bytes_sent": prediction.bytes_sent,
        "inside": inside
        and Inside(
            requests=inside.requests, queue=round(inside.queue_ms, 2), compute=round(inside.compute_ms, 2)
        ),
        "probabilities": prediction.probabilities,
        **own,
    }
    return shape(**{name: fact for name, fact in facts.items() if name in shape.model_fields})


def rounded(timings: TimingsMs) -> dict[str, float]:
    return {phase: round(ms, 2) for phase, ms in timings.items()}


def unstored(body: Schema) -> Response:
    """An answer of the API, which is of this moment."""
    response = as_json(body)
    response.headers["Cache-Control"] = "no-store"
    return response


def add_server_timing(response: Response, timings: TimingsMs) -> None:
    """What browsers show beside the network's own times."""
    response.headers["Server-Timing"] = ", ".join(f"{phase};dur={ms:.1f}" for phase, ms in timings.items())
