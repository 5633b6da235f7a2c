"""Counters for Prometheus, added up over all workers where gunicorn runs several."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from flask import Flask, Response, request
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from app.errors import Interrupted
from app.web import since_start_ms
from gourmet.systems.digits import contract as digits
from gourmet.systems.food11 import contract as food11

if TYPE_CHECKING:
    from app.classifier import Prediction

DIRECTORY_ENV: Final = "PROMETHEUS_MULTIPROC_DIR"
# What the counters of each system begin with.
_SYSTEMS: Final = {food11.NAME: "food", digits.NAME: "digits"}
_SHARES: Final = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
_BUCKETS_BYTES: Final = (1e4, 3e4, 1e5, 3e5, 1e6, 2e6, 5e6, 1e7)
_BUCKETS_S: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """One app's counters; in a registry of its own, so that a process may have several apps."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "web_requests_total",
            "Requests answered, by route and status",
            ["route", "method", "status"],
            registry=self._registry,
        )
        self.request_seconds = Histogram(
            "web_request_seconds",
            "Time from the end of a request's headers to its answer",
            ["route"],
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self.phase_seconds = {
            system: Histogram(
                f"{name}_phase_seconds",
                "Where the time of a classified photo went",
                ["phase"],
                buckets=_BUCKETS_S,
                registry=self._registry,
            )
            for system, name in _SYSTEMS.items()
        }
        self.predictions = {
            system: Counter(
                f"{name}_predictions_total",
                "Photos classified, by model and label",
                ["model", "label"],
                registry=self._registry,
            )
            for system, name in _SYSTEMS.items()
        }
        self.confidence = {
            system: Histogram(
                f"{name}_confidence",
                "How sure the answers were, by label",
                ["label"],
                buckets=_SHARES,
                registry=self._registry,
            )
            for system, name in _SYSTEMS.items()
        }
        self.photo_bytes = Histogram(
            "web_photo_bytes",
            "How large the photos were that came",
            buckets=_BUCKETS_BYTES,
            registry=self._registry,
        )
        self.errors = Counter(
            "web_errors_total",
            "Requests and photos refused or failed, by the code that the visitor was told",
            ["code"],
            registry=self._registry,
        )
        self.errors.labels(Interrupted.code)  # from the start on, since an alert waits for its first increase
        self.in_flight = Gauge(
            "web_photos_in_flight",
            "Requests with photos at the moment: being uploaded, waiting for their turn, at work",
            ["stage"],
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        self.refusals = Counter(
            "web_refusals_total",
            "Requests refused since there was too much to do, by what there was too much of",
            ["at"],
            registry=self._registry,
        )

    def observe_prediction(self, prediction: Prediction, timings_ms: Mapping[str, float]) -> None:
        system = prediction.system.NAME
        self.predictions[system].labels(prediction.model, prediction.label).inc()
        self.confidence[system].labels(prediction.label).observe(prediction.probability)
        for phase, ms in timings_ms.items():
            self.phase_seconds[system].labels(phase).observe(ms / 1000)

    def observe_response(self, response: Response) -> Response:
        route = request.url_rule.rule if request.url_rule else "unknown"
        self.requests.labels(route, request.method, response.status_code).inc()
        self.request_seconds.labels(route).observe(since_start_ms() / 1000)
        return response

    def text(self) -> tuple[bytes, str]:
        """Everything measured, and the content type of the text."""
        registry = self._registry
        if os.environ.get(DIRECTORY_ENV):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry), CONTENT_TYPE_LATEST


def init_app(app: Flask) -> None:
    metrics = Metrics()
    app.extensions["metrics"] = metrics
    app.after_request(metrics.observe_response)
