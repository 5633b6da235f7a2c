"""A prediction as the API answers it; `POST /predict` answers with a part of the same."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from flask import Response, current_app, g

from app.api.shapes import Classified, Digit, Guess, Inside, ModelName, Predicted, Timings
from app.classifier import Prediction
from app.metrics import Metrics
from app.web import request_id

# The answer of `POST /predict`, whose clients were written before there was /api/v1.
PREDICT_KEYS: Final = tuple(Predicted.model_fields)


def timings_ms(
    prediction: Prediction, *, done_at: float | None = None, wait_ms: float | None = None
) -> dict[str, float]:
    """Every phase that was really timed, in the order in which they passed; counts the prediction too.

    `done_at` is time.perf_counter() when the answer was there, now unless given.
    """
    in_line_ms = float(g.get("line_ms", 0.0))
    waited = {"wait": in_line_ms + (wait_ms or 0.0)} if in_line_ms or wait_ms is not None else {}
    total = ((done_at or time.perf_counter()) - float(g.started)) * 1000
    timings = {"receive": float(g.get("receive_ms", 0.0)), **waited, **prediction.timings_ms, "total": total}
    g.model = prediction.model
    metrics: Metrics = current_app.extensions["metrics"]
    metrics.observe_prediction(prediction, timings)
    return timings


def classified(
    prediction: Prediction, timings: Mapping[str, float], filename: str | None = None
) -> dict[str, Any]:
    return Classified(**_facts(prediction, timings, filename)).as_dict()


def digit(
    prediction: Prediction, timings: Mapping[str, float], filename: str | None = None
) -> dict[str, Any]:
    return Digit(
        **_facts(prediction, timings, filename), probabilities=list(prediction.probabilities)
    ).as_dict()


def _facts(prediction: Prediction, timings: Mapping[str, float], filename: str | None) -> dict[str, Any]:
    return {
        "filename": filename,
        "label": prediction.label,
        "class_id": prediction.class_id,
        "probability": prediction.probability,
        "sure": prediction.sure,
        "threshold": prediction.threshold,
        "top": [Guess(label=label, probability=probability) for label, probability in prediction.top],
        "model": ModelName(name=prediction.model, version=prediction.version),
        "bytes_sent": prediction.bytes_sent,
        "inside": _inside(prediction),
        "timings_ms": Timings(**{phase: round(ms, 2) for phase, ms in timings.items()}),
        "request_id": request_id(),
    }


def _inside(prediction: Prediction) -> Inside | None:
    found = prediction.inside
    if found is None:
        return None
    return Inside(requests=found.requests, queue=round(found.queue_ms, 2), compute=round(found.compute_ms, 2))


def add_server_timing(response: Response, timings: Mapping[str, float]) -> None:
    """What browsers show beside the network's own times."""
    response.headers["Server-Timing"] = ", ".join(f"{phase};dur={ms:.1f}" for phase, ms in timings.items())
