"""Counters for Prometheus, added up over all workers where gunicorn runs several."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from flask import Flask, Response, request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from app.core.http import since_start_ms
from gourmet.contracts import System

if TYPE_CHECKING:
    from app.classifier import Prediction

DIRECTORY_ENV: Final = "PROMETHEUS_MULTIPROC_DIR"
# A model's first labels have series of their own, of about a dozen lines each; all others are counted as one.
MOST_LABELS: Final = 100
OTHER: Final = "other"
_SHARES: Final = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
_BUCKETS_BYTES: Final = (1e4, 3e4, 1e5, 3e5, 1e6, 2e6, 5e6, 1e7)
_BUCKETS_S: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class _Registry(CollectorRegistry):
    """Of one app, so that a process may have several."""

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self)

    def histogram(
        self, name: str, text: str, *labels: str, buckets: Sequence[float] = _BUCKETS_S
    ) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self)


class ClassificationMetrics:
    """What is counted of a system that classifies; the names begin with its prefix."""

    def __init__(self, prefix: str, registry: _Registry) -> None:
        self.phase_seconds = registry.histogram(
            f"{prefix}_phase_seconds", "Where the time of a classified photo went", "phase"
        )
        self.predictions = registry.counter(
            f"{prefix}_predictions_total", "Photos classified, by model and label", "model", "label"
        )
        self.confidence = registry.histogram(
            f"{prefix}_confidence", "How sure the answers were, by label", "label", buckets=_SHARES
        )


class GenerationMetrics:
    """What is counted of a system that generates text; the names begin with its prefix."""

    def __init__(self, prefix: str, registry: _Registry) -> None:
        self.phase_seconds = registry.histogram(
            f"{prefix}_phase_seconds", "Where the time of a generated text went", "phase"
        )
        self.generations = registry.counter(
            f"{prefix}_generations_total", "Texts generated, by model", "model"
        )
        self.tokens = registry.counter(
            f"{prefix}_tokens_total", "Tokens of generated texts, where the model tells them", "model"
        )
        self.first_piece_seconds = registry.histogram(
            f"{prefix}_first_piece_seconds",
            "Time from asking Triton to the first piece of a streamed text",
            "model",
        )
        self.piece_seconds = registry.histogram(
            f"{prefix}_piece_seconds", "Time between the pieces of a streamed text", "model"
        )


class Metrics:
    def __init__(self, systems: Iterable[System] = ()) -> None:
        registry = self._registry = _Registry()
        self.classification: dict[str, ClassificationMetrics] = {}
        self.generation: dict[str, GenerationMetrics] = {}
        for system in systems:
            prefix = re.sub(r"\W", "_", system.metrics_prefix)
            if system.task == "classification":
                self.classification[system.name] = ClassificationMetrics(prefix, registry)
            else:
                self.generation[system.name] = GenerationMetrics(prefix, registry)
        self.requests = registry.counter(
            "web_requests_total", "Requests answered, by route and status", "route", "method", "status"
        )
        self.request_seconds = registry.histogram(
            "web_request_seconds", "Time from the end of a request's headers to its answer", "route"
        )
        self.photo_bytes = registry.histogram(
            "web_photo_bytes", "How large the photos were that came", buckets=_BUCKETS_BYTES
        )
        self.errors = registry.counter(
            "web_errors_total",
            "Requests and photos refused or failed, by the code that the visitor was told",
            "code",
        )
        self.in_flight = Gauge(
            "web_photos_in_flight",
            "Requests with photos at the moment: being uploaded, waiting for their turn, at work",
            ["stage"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.refusals = registry.counter(
            "web_refusals_total",
            "Requests refused since there was too much to do, by what there was too much of",
            "at",
        )

    def observe_prediction(self, prediction: Prediction, timings_ms: Mapping[str, float]) -> None:
        counted = self.classification[prediction.system.name]
        label = prediction.label if prediction.class_id < MOST_LABELS else OTHER
        counted.predictions.labels(prediction.model, label).inc()
        counted.confidence.labels(label).observe(prediction.probability)
        _observe_phases(counted.phase_seconds, timings_ms)

    def observe_generation(
        self, system: str, model: str, tokens: int | None, timings_ms: Mapping[str, float]
    ) -> None:
        counted = self.generation[system]
        counted.generations.labels(model).inc()
        counted.tokens.labels(model).inc(tokens or 0)
        _observe_phases(counted.phase_seconds, timings_ms)

    def observe_response(self, response: Response) -> Response:
        route = request.url_rule.rule if request.url_rule else "unknown"
        self.observe_request(route, request.method, response.status_code, since_start_ms() / 1000)
        return response

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        self.requests.labels(route, method, status).inc()
        self.request_seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        registry: CollectorRegistry = self._registry
        if os.environ.get(DIRECTORY_ENV):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


def _observe_phases(histogram: Histogram, timings_ms: Mapping[str, float]) -> None:
    for phase, ms in timings_ms.items():
        histogram.labels(phase).observe(ms / 1000)


def init_app(app: Flask, systems: Iterable[System]) -> None:
    metrics = Metrics(systems)
    app.extensions["metrics"] = metrics
    app.after_request(metrics.observe_response)
